// Softmax and cross-entropy: a warp for each row.
#include "elements.hpp"
#include "loss.hpp"
#include "warps.hpp"

#include <cmath>
#include <limits>

namespace lamina::cuda {

namespace {

template <class T>
__global__ void find_largest(const T* x, const std::int32_t* labels, const StepValues* now,
                             std::int64_t rows, std::int64_t part, std::int64_t first,
                             double* largest) {
  constexpr double lowest = -std::numeric_limits<double>::infinity();
  each_row_of_warp(rows, [&](std::int64_t r, int lane) {
    const T* const row = x + r * part;
    Wide<T> most = Wide<T>(lowest);
    for (std::int64_t k = lane; k < part; k += warp)
      if (most < widen(row[k])) most = widen(row[k]);
    const double top = warp_largest(most);
    if (lane > 0) return;
    const Wide<T> head = widen(row[0]);
    largest[r] = head != head ? double(head) : top;  // as a search that begins with it
    const std::int64_t k = labels[r] - first;
    const Wide<T> at_label = k >= 0 && k < part ? widen(row[k]) : Wide<T>(lowest);
    largest[rows + r] = at_label != at_label ? lowest : double(at_label);
  });
  if (blockIdx.x == 0 && threadIdx.x == 0 && threadIdx.y == 0) largest[2 * rows] = now->stop;
}

template <class T>
__global__ void add_exponentials(const T* x, const std::int32_t* labels, const double* largest,
                                 Loss of, Wide<T>* p, double* sums) {
  each_row_of_warp(of.rows, [&](std::int64_t r, int lane) {
    const T* const row = x + r * of.part;
    const auto top = Wide<T>(largest[r]);
    const double at_label = largest[of.rows + r];
    const std::int64_t label = labels[r] - of.first;
    double sum = 0, logits = 0, before = 0;
    for (std::int64_t k = lane; k < of.part; k += warp) {
      const Wide<T> logit = widen(row[k]), e = exp(logit - top);
      p[r * of.part + k] = e;
      sum += e, logits += logit;
      before += logit > at_label || logit != logit || (logit == at_label && k < label);
    }
    sum = warp_sum(sum), logits = warp_sum(logits), before = warp_sum(before);
    if (lane > 0) return;
    sums[r] = sum, sums[of.rows + r] = logits;
    // A label whose logit is NaN is no hit, whatever other ranks have.
    const bool here = label >= 0 && label < of.part;
    const Wide<T> own = here ? widen(row[label]) : Wide<T>(0);
    sums[2 * of.rows + r] = labels[r] < 0 ? 0 : own != own ? double(of.classes + 5) : before;
  });
}

template <class P>
__global__ void divide(const double* sums, std::int64_t rows, std::int64_t part, P* p) {
  each_row_of_warp(rows, [&](std::int64_t r, int lane) {
    for (std::int64_t k = lane; k < part; k += warp) p[r * part + k] = P(p[r * part + k] / sums[r]);
  });
}

/// One block.
__global__ void add_rows(const std::int32_t* labels, const double* largest, const double* sums,
                         Loss of, double* totals) {
  __shared__ double parts[4][warp * warps];
  const unsigned thread = threadIdx.y * warp + threadIdx.x;
  double loss = 0, top1 = 0, top5 = 0, count = 0;
  for (std::int64_t r = thread; r < of.rows; r += warp * warps) {
    if (labels[r] < 0) continue;
    const double before = sums[2 * of.rows + r];
    loss += largest[r] + log(sums[r]) - (1 - of.smoothing) * largest[of.rows + r];
    // Not 0 * infinity.
    if (of.smoothing > 0) loss -= of.smoothing * sums[of.rows + r] / double(of.classes);
    if (labels[r] >= of.classes) loss = std::numeric_limits<double>::quiet_NaN();
    top1 += before < 1, top5 += before < 5, count += 1;
  }
  parts[0][thread] = loss, parts[1][thread] = top1;
  parts[2][thread] = top5, parts[3][thread] = count;
  for (unsigned half = warp * warps / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread >= half) continue;
    for (auto& part : parts) part[thread] += part[thread + half];
  }
  if (thread > 0) return;
  for (int i = 0; i < 4; ++i) totals[i] = parts[i][0];
  totals[4] = largest[2 * of.rows];
}

__global__ void make_mean(double* totals, double* rows) {
  *rows = totals[3] > 1 ? totals[3] : 1;
  totals[0] /= *rows;
}

/// As lamina::add_found() does.
__global__ void join_found(const double* found, bool first, double* totals) {
  double joined[5];
  for (int i = 0; i < 5; ++i) joined[i] = (first ? 0 : totals[i]) + found[i];
  const double before = first ? 0 : totals[3], loss = first ? 0 : totals[0];
  joined[0] = joined[3] > 0 ? (loss * before + found[0] * found[3]) / joined[3] : 0;
  for (int i = 0; i < 5; ++i) totals[i] = joined[i];
}

template <class T>
__global__ void take_target(const Wide<T>* p, const std::int32_t* labels, const double* rows,
                            double samples, Loss of, T* dx, const double* by) {
  const double scale = (by ? *by : 1) / (samples > 0 ? samples : *rows);
  const double everywhere = of.smoothing / double(of.classes);
  each_row_of_warp(of.rows, [&](std::int64_t r, int lane) {
    const std::int64_t label = labels[r] - of.first;
    for (std::int64_t k = lane; k < of.part; k += warp) {
      const double target = (k == label ? 1 - of.smoothing : 0) + everywhere;
      const std::int64_t i = r * of.part + k;
      dx[i] = labels[r] < 0 ? narrow<T>(0.0) : narrow<T>(scale * (p[i] - target));
    }
  });
}

}  // namespace

cudaError_t loss_largest(cudaStream_t stream, const Loss& l, const void* x,
                         const std::int32_t* labels, const StepValues* now, double* largest) {
  return with_elements(l.dtype, [&]<class T>(T) {
    return launch_rows(stream, l.rows, find_largest<T>, static_cast<const T*>(x), labels, now,
                       l.rows, l.part, l.first, largest);
  });
}

cudaError_t loss_sums(cudaStream_t stream, const Loss& l, const void* x, const std::int32_t* labels,
                      const double* largest, void* p, double* sums) {
  return with_elements(l.dtype, [&]<class T>(T) {
    return launch_rows(stream, l.rows, add_exponentials<T>, static_cast<const T*>(x), labels,
                       largest, l, static_cast<Wide<T>*>(p), sums);
  });
}

cudaError_t loss_finish(cudaStream_t stream, const Loss& l, const std::int32_t* labels,
                        const double* largest, const double* sums, void* p, double* totals) {
  const cudaError_t status = with_elements(l.dtype, [&]<class T>(T) {
    return launch_rows(stream, l.rows, divide<Wide<T>>, sums, l.rows, l.part,
                       static_cast<Wide<T>*>(p));
  });
  if (status != cudaSuccess) return status;
  return launch(stream, dim3(1), dim3(warp, warps), add_rows, labels, largest, sums, l, totals);
}

cudaError_t loss_mean(cudaStream_t stream, double* totals, double* rows) {
  return launch(stream, dim3(1), dim3(1), make_mean, totals, rows);
}

cudaError_t loss_add_found(cudaStream_t stream, const double* found, bool first, double* totals) {
  return launch(stream, dim3(1), dim3(1), join_found, found, first, totals);
}

cudaError_t loss_input_grad(cudaStream_t stream, const Loss& l, const void* p,
                            const std::int32_t* labels, const double* rows, double samples,
                            void* dx, const double* scale) {
  return with_elements(l.dtype, [&]<class T>(T) {
    return launch_rows(stream, l.rows, take_target<T>, static_cast<const Wide<T>*>(p), labels, rows,
                       samples, l, static_cast<T*>(dx), scale);
  });
}

}  // namespace lamina::cuda
