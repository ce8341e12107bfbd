// Updates and sums of squares. The numbers of a step, some of which earlier kernels made, are
// worked out by the first thread of each block.
#include "elements.hpp"
#include "flat.hpp"
#include "update.hpp"

#include <cmath>

namespace lamina::cuda {

namespace {

/// What an update does to each element.
struct Numbers {
  double rate, decay, scale, correct1, correct2;
};

/// As UpdateStep::resolved() does on the host.
__device__ Numbers resolve(const Update& u) {
  Numbers n{u.rate, u.weight_decay, u.grad_scale, 1, 1};
  double step = u.step;
  if (u.values) n.rate *= u.values->rate, n.scale *= u.values->scale, step = u.values->step;
  if (u.found) n.scale *= u.samples / (u.found[3] > 1 ? u.found[3] : 1);
  if (u.squares) {
    double sum = 0;
    for (int i = 0; i < u.square_count; ++i) sum += u.squares[i];
    const double norm = n.scale * std::sqrt(sum);
    if (norm > u.clip_norm) n.scale *= u.clip_norm / norm;
  }
  if (u.value_square) {
    const double w = std::sqrt(*u.value_square), dw = n.scale * std::sqrt(*u.grad_square);
    const double below = dw + n.decay * w;
    const double local = w > 0 && below > 0 ? u.trust * w / below : 1;
    n.decay *= local, n.scale *= local;
  }
  n.correct1 = 1 - std::pow(u.beta1, step), n.correct2 = 1 - std::pow(u.beta2, step);
  return n;
}

/// Called by all threads of a block.
__device__ Numbers resolve_once(const Update& u) {
  __shared__ double shared[5];
  if (threadIdx.x == 0) {
    const Numbers n = resolve(u);
    shared[0] = n.rate, shared[1] = n.decay, shared[2] = n.scale;
    shared[3] = n.correct1, shared[4] = n.correct2;
  }
  __syncthreads();
  return {shared[0], shared[1], shared[2], shared[3], shared[4]};
}

template <class T, class G>
__global__ void update_sgd(Update u, std::int64_t count, T* w, const G* dw, T* velocity) {
  const Numbers n = resolve_once(u);
  each_element(count, [&](std::int64_t i) {
    double g = n.scale * double(widen(dw[i])) + n.decay * w[i];
    if (velocity) {
      const double v = u.momentum * velocity[i] + g;
      velocity[i] = T(v);
      g = u.nesterov ? g + u.momentum * v : v;
    }
    w[i] = T(w[i] - n.rate * g);
  });
}

template <class T, class G>
__global__ void update_adam(Update u, std::int64_t count, T* w, const G* dw, T* first, T* second) {
  const Numbers n = resolve_once(u);
  each_element(count, [&](std::int64_t i) {
    double value = w[i], g = n.scale * double(widen(dw[i]));
    if (u.kind == Update::Kind::adamw)
      value -= n.rate * n.decay * value;
    else
      g += n.decay * value;
    const double m = u.beta1 * first[i] + (1 - u.beta1) * g;
    const double v = u.beta2 * second[i] + (1 - u.beta2) * g * g;
    first[i] = T(m), second[i] = T(v);
    w[i] = T(value - n.rate * (m / n.correct1 / (std::sqrt(v / n.correct2) + u.epsilon)));
  });
}

/// Of this block's threads, for the first one.
__device__ double add_up(double mine) {
  __shared__ double sums[flat_threads];
  sums[threadIdx.x] = mine;
  for (unsigned half = flat_threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  return threadIdx.x == 0 ? sums[0] : 0;
}

template <class T>
__global__ void square(std::int64_t count, const T* x, double* partials) {
  double sum = 0;
  each_element(count, [&](std::int64_t i) {
    const double v = widen(x[i]);
    sum += v * v;
  });
  sum = add_up(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

/// By one block.
__global__ void add_partials(std::int64_t count, const double* partials, double* to) {
  double sum = 0;
  each_element(count, [&](std::int64_t i) { sum += partials[i]; });
  sum = add_up(sum);
  if (threadIdx.x == 0) *to = sum;
}

}  // namespace

cudaError_t update(cudaStream_t stream, const Update& u, DType dtype, std::int64_t count, void* w,
                   DType gradients, const void* dw, void* first, void* second) {
  const auto of = [&]<class T>(T) {
    return with_elements(gradients, [&]<class G>(G) {
      auto* const to = static_cast<T*>(w);
      const auto* const by = static_cast<const G*>(dw);
      auto *const a = static_cast<T*>(first), *const b = static_cast<T*>(second);
      if (u.kind == Update::Kind::sgd)
        return launch_flat(stream, count, update_sgd<T, G>, u, count, to, by, a);
      return launch_flat(stream, count, update_adam<T, G>, u, count, to, by, a, b);
    });
  };
  if (dtype == DType::f32) return of(float{});
  return dtype == DType::f64 ? of(double{}) : cudaErrorInvalidValue;
}

cudaError_t squared_norm(cudaStream_t stream, DType dtype, std::int64_t count, const void* x,
                         double* sum, void* workspace) {
  auto* const partials = static_cast<double*>(workspace);
  const std::int64_t blocks = std::min((count + flat_threads - 1) / flat_threads, most_blocks);
  const cudaError_t status = with_elements(dtype, [&]<class T>(T) {
    return launch_flat(stream, count, square<T>, count, static_cast<const T*>(x), partials);
  });
  if (status != cudaSuccess) return status;
  return launch(stream, dim3(1), dim3(flat_threads), add_partials, blocks,
                static_cast<const double*>(partials), sum);
}

}  // namespace lamina::cuda
