// Updates and sums of squares. The numbers of a step, some of which earlier kernels made, are
// worked out by the first thread of each block; those of a run by each of its threads.
#include "elements.hpp"
#include "flat.hpp"
#include "update.hpp"

#include <cmath>

namespace lamina::cuda {

namespace {

/// What an update does to each element.
struct Numbers {
  double rate, decay, scale, correct1, correct2;
  bool skip;
};

__device__ double sum_of(const double* squares, int count) {
  double sum = 0;
  for (int i = 0; i < count; ++i) sum += squares[i];
  return sum;
}

__device__ bool finite(double v) { return v - v == 0; }

// As UpdatePart::resolved() does on the host.

__device__ Numbers resolve(const Update& u) {
  Numbers n{u.rate, u.weight_decay, u.grad_scale, 1, 1, false};
  double step = u.step;
  if (u.values) n.rate *= u.values->rate, n.scale *= u.values->scale, step = u.values->step;
  if (u.found) n.scale *= u.samples / (u.found[3] > 1 ? u.found[3] : 1);
  if (u.loss_scale) n.scale /= u.loss_scale->scale;
  if (u.squares) {
    const double sum = sum_of(u.squares, u.square_count), norm = n.scale * std::sqrt(sum);
    n.skip = u.loss_scale && !finite(sum);
    if (u.clip_norm > 0 && norm > u.clip_norm) n.scale *= u.clip_norm / norm;
  }
  if (u.kind != Update::Kind::sgd)
    n.correct1 = 1 - std::pow(u.beta1, step), n.correct2 = 1 - std::pow(u.beta2, step);
  return n;
}

/// Called by all threads of a block.
__device__ Numbers resolve_once(const Update& u) {
  __shared__ double shared[6];
  if (threadIdx.x == 0) {
    const Numbers n = resolve(u);
    shared[0] = n.rate, shared[1] = n.decay, shared[2] = n.scale;
    shared[3] = n.correct1, shared[4] = n.correct2, shared[5] = n.skip;
  }
  __syncthreads();
  return {shared[0], shared[1], shared[2], shared[3], shared[4], shared[5] != 0};
}

/// Of a run.
__device__ Numbers resolve(Numbers n, const UpdateRun& r) {
  n.rate *= r.rate, n.decay += r.weight_decay;
  if (r.value_square) {
    const double w = std::sqrt(*r.value_square), dw = n.scale * std::sqrt(*r.grad_square);
    const double below = dw + n.decay * w;
    const double local = w > 0 && below > 0 ? r.trust * w / below : 1;
    n.decay *= local, n.scale *= local;
  }
  return n;
}

/// What becomes of an element, whose states change.
template <class T>
__device__ T sgd(const Update& u, const Numbers& n, T w, double dw, bool has_velocity,
                 T& velocity) {
  double g = n.scale * dw + n.decay * w;
  if (has_velocity) {
    const double v = u.momentum * velocity + g;
    velocity = T(v);
    g = u.nesterov ? g + u.momentum * v : v;
  }
  return T(w - n.rate * g);
}

template <class T>
__device__ T adam(const Update& u, const Numbers& n, T w, double dw, T& first, T& second) {
  double value = w, g = n.scale * dw;
  if (u.kind == Update::Kind::adamw)
    value -= n.rate * n.decay * value;
  else
    g += n.decay * value;
  const double m = u.beta1 * first + (1 - u.beta1) * g;
  const double v = u.beta2 * second + (1 - u.beta2) * g * g;
  first = T(m), second = T(v);
  return T(value - n.rate * (m / n.correct1 / (std::sqrt(v / n.correct2) + u.epsilon)));
}

template <class R, class T, int V>
__device__ void store_rounded(void* to, std::int64_t i, const Pack<T, V>& values) {
  T all[V];
  for (int k = 0; k < V; ++k) all[k] = values[k];
  store<V>(static_cast<R*>(to) + i, Pack<R, V>(all));
}

template <class T, class G, int V>
struct Operands {
  Pack<T, V> w, first, second;
  Pack<G, V> dw;
};

/// V elements at a time, twice at once.
template <int V, class T, class G>
__device__ void update_chunk(const Update& u, DType rounded, const Numbers& n, const UpdateRun& r,
                             std::int64_t begin, std::int64_t end) {
  using From = Operands<T, G, V>;
  auto* const w = static_cast<T*>(r.w);
  auto *const first = static_cast<T*>(r.first), *const second = static_cast<T*>(r.second);
  const auto read = [&](std::int64_t i) {
    From from;
    from.w = load<V>(w + i), from.dw = load<V>(static_cast<const G*>(r.dw) + i);
    if (first) from.first = load<V>(first + i);
    if (second) from.second = load<V>(second + i);
    return from;
  };
  const auto use = [&](std::int64_t i, const From& from) {
    From to;
    for (int k = 0; k < V; ++k) {
      const double g = from.dw.wide(k);
      T a = from.first[k], b = from.second[k];
      to.w.set(k, u.kind == Update::Kind::sgd ? sgd(u, n, from.w[k], g, first != nullptr, a)
                                              : adam(u, n, from.w[k], g, a, b));
      to.first.set(k, a), to.second.set(k, b);
    }
    store<V>(w + i, to.w);
    if (first) store<V>(first + i, to.first);
    if (second) store<V>(second + i, to.second);
    if (!r.rounded) return;
    if (rounded == DType::bf16)
      store_rounded<BF16>(r.rounded, i, to.w);
    else if (rounded == DType::f16)
      store_rounded<F16>(r.rounded, i, to.w);
    else
      store_rounded<float>(r.rounded, i, to.w);
  };
  constexpr int step = flat_threads * V;
  each_item<2>(begin + std::int64_t(threadIdx.x) * V, step, 2 * step, end, read, use);
}

template <class T, class G>
__global__ void update_all(Update u, DType rounded, const UpdateRun* runs, const Chunk* chunks,
                           std::int64_t count) {
  const Numbers all = resolve_once(u);
  if (all.skip) return;
  for (std::int64_t c = blockIdx.x; c < count; c += gridDim.x) {
    const UpdateRun& r = runs[chunks[c].run];
    const Numbers n = resolve(all, r);
    const std::int64_t begin = chunks[c].number * chunk_elements;
    const std::int64_t end = begin + chunk_elements < r.count ? begin + chunk_elements : r.count;
    if (r.packed)
      update_chunk<pack_of<T>, T, G>(u, rounded, n, r, begin, end);
    else
      update_chunk<1, T, G>(u, rounded, n, r, begin, end);
  }
}

/// Of this block's threads, for the first one.
__device__ double add_up(double mine) {
  __shared__ double sums[flat_threads];
  __syncthreads();  // what was added up before has been read
  sums[threadIdx.x] = mine;
  for (unsigned half = flat_threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  return threadIdx.x == 0 ? sums[0] : 0;
}

template <class T>
__device__ double squares_of(const void* x, std::int64_t begin, std::int64_t end) {
  double sum = 0;
  each_item<2 * batch>(
      begin + threadIdx.x, flat_threads, 2 * batch * flat_threads, end,
      [&](std::int64_t i) { return static_cast<const T*>(x)[i]; },
      [&](std::int64_t, T item) {
        const double v = widen(item);
        sum += v * v;
      });
  return sum;
}

__global__ void square_chunks(const SquaresRun* runs, const Chunk* chunks, std::int64_t count,
                              double* partials) {
  for (std::int64_t c = blockIdx.x; c < count; c += gridDim.x) {
    const SquaresRun& r = runs[chunks[c].run];
    const std::int64_t begin = chunks[c].number * chunk_elements;
    const std::int64_t end = begin + chunk_elements < r.count ? begin + chunk_elements : r.count;
    double sum = 0;
    if (r.dtype == DType::f32)
      sum = squares_of<float>(r.x, begin, end);
    else if (r.dtype == DType::f64)
      sum = squares_of<double>(r.x, begin, end);
    else if (r.dtype == DType::bf16)
      sum = squares_of<BF16>(r.x, begin, end);
    else
      sum = squares_of<F16>(r.x, begin, end);
    sum = add_up(sum);
    if (threadIdx.x == 0) partials[c] = sum;
  }
}

__global__ void add_partials(const SquaresRun* runs, std::int64_t count, const double* partials) {
  for (std::int64_t i = blockIdx.x; i < count; i += gridDim.x) {
    const SquaresRun& r = runs[i];
    const std::int64_t chunks = (r.count + chunk_elements - 1) / chunk_elements;
    double sum = 0;
    each_item<2 * batch>(
        threadIdx.x, flat_threads, 2 * batch * flat_threads, chunks,
        [&](std::int64_t c) { return partials[r.first_chunk + c]; },
        [&](std::int64_t, double part) { sum += part; });
    sum = add_up(sum);
    if (threadIdx.x == 0) *r.sum = sum;
  }
}

__global__ void adjust(LossScaling how, const double* squares, int count, LossScale* scale) {
  scale->adjust(how, !finite(sum_of(squares, count)));
}

/// A block for each, up to the most.
dim3 blocks_for(std::int64_t count) { return dim3(unsigned(std::min(count, most_blocks))); }

}  // namespace

cudaError_t update(cudaStream_t stream, const Update& u, const UpdateTypes& types,
                   const UpdateRun* runs, const Chunk* chunks, std::int64_t chunk_count) {
  if (chunk_count == 0) return cudaSuccess;
  const auto of = [&]<class T>(T) {
    return with_elements(types.dw, [&]<class G>(G) {
      return launch(stream, blocks_for(chunk_count), dim3(flat_threads), update_all<T, G>, u,
                    types.rounded, runs, chunks, chunk_count);
    });
  };
  if (types.w == DType::f32) return of(float{});
  return types.w == DType::f64 ? of(double{}) : cudaErrorInvalidValue;
}

cudaError_t square(cudaStream_t stream, const SquaresRun* runs, std::int64_t run_count,
                   const Chunk* chunks, std::int64_t chunk_count, double* partials) {
  if (run_count == 0) return cudaSuccess;
  if (chunk_count > 0) {
    const cudaError_t status = launch(stream, blocks_for(chunk_count), dim3(flat_threads),
                                      square_chunks, runs, chunks, chunk_count, partials);
    if (status != cudaSuccess) return status;
  }
  return launch(stream, blocks_for(run_count), dim3(flat_threads), add_partials, runs, run_count,
                static_cast<const double*>(partials));
}

cudaError_t adjust_loss_scale(cudaStream_t stream, const LossScaling& how, const double* squares,
                              int square_count, LossScale* scale) {
  return launch(stream, dim3(1), dim3(1), adjust, how, squares, square_count, scale);
}

}  // namespace lamina::cuda
