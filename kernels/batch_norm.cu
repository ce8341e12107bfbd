// Batch normalisation: two passes over x forward, two over x and dy backward, each as fast as
// memory. Sums are f64, since var = sum(x^2)/M - mean^2 is a small difference of large numbers.
#include "batch_norm.hpp"
#include "rows.hpp"

#include <cmath>

namespace lamina::cuda {

namespace {

template <class T, int V>
__global__ void sum_moments(const T* x, std::int64_t rows, int channels, double* partials) {
  double sums[2][V] = {};
  each_row<V>(
      rows, channels, [&](std::int64_t at) { return load<V>(x + at); },
      [&](std::int64_t, const Pack<T, V>& p) {
        for (int v = 0; v < V; ++v) {
          const double value = p.wide(v);
          sums[0][v] += value, sums[1][v] += value * value;
        }
      });
  add_up(sums, channels, partials);
}

/// Of V elements. `passed`: a bit for each that the activation let pass as it was.
template <class T, int V>
struct Gradients {
  Pack<T, V> x, dy;
  unsigned passed;
};

/// What is added to dy; without it, nothing.
template <class T, bool There>
struct More {
  template <int V>
  __device__ static Pack<T, V> add(const Pack<T, V>& dy, std::int64_t) {
    return dy;
  }
};
template <class T>
struct More<T, true> {
  const T* from;
  template <int V>
  __device__ Pack<T, V> add(const Pack<T, V>& dy, std::int64_t at) const {
    const Pack<T, V> more = load<V>(from + at);
    Wide<T> sums[V];
    for (int v = 0; v < V; ++v) sums[v] = dy.wide(v) + more.wide(v);
    return Pack<T, V>(sums);
  }
};

/// Operands of backward.
template <class T>
struct Backward {
  const T *x = nullptr, *dy = nullptr;
  const std::uint8_t* signs = nullptr;  // one for each pack
  const double *mean = nullptr, *inv_std = nullptr;
  Rectifier<Wide<T>> rectifier = {};

  template <int V>
  __device__ Gradients<T, V> read(std::int64_t at) const {
    return {load<V>(x + at), load<V>(dy + at), signs ? signs[std::uint64_t(at) / V] : ~0U};
  }
  /// dy before the activation.
  template <int V>
  __device__ Wide<T> gradient(const Gradients<T, V>& of, int v) const {
    const Wide<T> g = of.dy.wide(v);
    return of.passed >> v & 1 ? g : rectifier.below(g);
  }
};

/// A batch is summed as Wide<T>, since it is as long for all, and short; then batches as f64.
template <class T, int V, bool Adds>
__global__ void sum_gradients(Backward<T> of, More<T, Adds> more, std::int64_t rows, int channels,
                              T* dadded, double* partials) {
  double sums[2][V] = {}, inv_std[V];
  Wide<T> mean[V];
  load_channels(of.mean, channels, mean);
  each_batch_of_rows<V>(
      rows, channels,
      [&](std::int64_t at) {
        Gradients<T, V> item = of.template read<V>(at);
        item.dy = more.add(item.dy, at);
        return item;
      },
      [&](std::int64_t at, std::int64_t step, const auto& items) {
        Wide<T> sum[V] = {}, dot[V] = {};
        LAMINA_UNROLL
        for (const Gradients<T, V>& item : items) {
          Wide<T> g[V];
          for (int v = 0; v < V; ++v) {
            g[v] = of.gradient(item, v);
            sum[v] += g[v], dot[v] += g[v] * (item.x.wide(v) - mean[v]);
          }
          if (dadded) store<V>(dadded + at, Pack<T, V>(g)), at += step;
        }
        for (int v = 0; v < V; ++v) sums[0][v] += sum[v], sums[1][v] += dot[v];
      });
  load_channels(of.inv_std, channels, inv_std);
  for (int v = 0; v < V; ++v) sums[1][v] *= inv_std[v];
  add_up(sums, channels, partials);
}

/// sums[2][channels]; also to second and first, where these are there.
template <class G>
__global__ void fold_both(const double* partials, int blocks, int channels, double* sums, G* first,
                          G* second) {
  fold(partials, blocks, 2 * channels, [&](int i, double sum) {
    sums[i] = sum;
    G* const to = i < channels ? first : second;
    if (to) to[i % channels] = narrow<G>(sum);
  });
}

template <class G>
cudaError_t fold_sums(cudaStream_t stream, const double* partials, unsigned blocks, int channels,
                      double* sums, G* first, G* second) {
  return launch_fold(stream, 2 * channels, fold_both<G>, partials, int(blocks), channels, sums,
                     first, second);
}

template <class P>
__global__ void finish(const double* sums, int channels, double count, double epsilon,
                       double momentum, double* mean, double* inv_std, P* running_mean,
                       P* running_var) {
  const int c = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (c >= channels) return;
  const double m = sums[c] / count;
  // Rounding may take the difference of a constant channel below zero; NaN stays NaN.
  double var = sums[channels + c] / count - m * m;
  var = var < 0 ? 0 : var;
  const double unbiased = var * count / (count > 2 ? count - 1 : 1);
  mean[c] = m, inv_std[c] = 1 / sqrt(var + epsilon);
  running_mean[c] = P(running_mean[c] + momentum * (m - running_mean[c]));
  running_var[c] = P(running_var[c] + momentum * (unbiased - running_var[c]));
}

template <class P>
__global__ void copy_running(const P* running_mean, const P* running_var, int channels,
                             double* sums) {
  const int c = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (c < channels) sums[c] = running_mean[c], sums[channels + c] = running_var[c];
}

template <class P>
__global__ void take_running(const double* sums, int channels, int variants, double epsilon,
                             double* mean, double* inv_std) {
  const int c = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (c >= channels) return;
  const double var = P(sums[channels + c] / variants);
  mean[c] = P(sums[c] / variants), inv_std[c] = 1 / sqrt(var + epsilon);
}

template <class T, int V>
struct Operands {
  Pack<T, V> x, added;
};

template <class T, int V>
__global__ void normalize(const T* x, std::int64_t rows, int channels, const double* mean,
                          const double* inv_std, const Wide<T>* w, const Wide<T>* b, const T* added,
                          Rectifier<Wide<T>> rectifier, T* y, std::uint8_t* signs) {
  using W = Wide<T>;
  W m[V], scale[V], factor[V], shift[V];
  load_channels(mean, channels, m), load_channels(inv_std, channels, scale);
  load_channels(w, channels, factor, W(1)), load_channels(b, channels, shift);
  for (int v = 0; v < V; ++v) scale[v] *= factor[v];
  each_row<V>(
      rows, channels,
      [&](std::int64_t at) {
        Operands<T, V> from;
        from.x = load<V>(x + at);
        if (added) from.added = load<V>(added + at);
        return from;
      },
      [&](std::int64_t at, const Operands<T, V>& from) {
        W values[V];
        for (int v = 0; v < V; ++v) {
          values[v] = (from.x.wide(v) - m[v]) * scale[v] + shift[v];
          if (added) values[v] += from.added.wide(v);
          values[v] = rectifier.value(values[v]);
        }
        const Pack<T, V> to(values);
        unsigned passed = 0;
        for (int v = 0; v < V; ++v) passed |= unsigned(!(to.wide(v) <= W(0))) << v;
        store<V>(y + at, to);
        if (signs) signs[std::uint64_t(at) / V] = std::uint8_t(passed);
      });
}

/// dx is of_g g + of_x x + rest, in each channel.
template <class T, int V>
__global__ void input_grad(Backward<T> of, std::int64_t rows, int channels, const Wide<T>* w,
                           const double* sums, double count, T* dx) {
  Wide<T> of_g[V], of_x[V], rest[V];
  {
    double mean[V], inv_std[V], factor[V], sum[V], dot[V];
    load_channels(of.mean, channels, mean), load_channels(of.inv_std, channels, inv_std);
    load_channels(w, channels, factor, 1.0);
    load_channels(sums, channels, sum), load_channels(sums + channels, channels, dot);
    const double share = 1 / count;
    for (int v = 0; v < V; ++v) {
      const double g = factor[v] * inv_std[v], xhat = -g * share * dot[v] * inv_std[v];
      of_g[v] = Wide<T>(g), of_x[v] = Wide<T>(xhat);
      rest[v] = Wide<T>(-g * share * sum[v] - xhat * mean[v]);
    }
  }
  each_row<V>(
      rows, channels, [&](std::int64_t at) { return of.template read<V>(at); },
      [&](std::int64_t at, const Gradients<T, V>& item) {
        Wide<T> values[V];
        for (int v = 0; v < V; ++v)
          values[v] = of_g[v] * of.gradient(item, v) + (of_x[v] * item.x.wide(v) + rest[v]);
        store<V>(dx + at, Pack<T, V>(values));
      });
}

/// One thread for each channel.
dim3 grid_of(int channels) { return dim3(unsigned(channels + block_threads - 1) / block_threads); }

template <class T>
Backward<T> backward_of(const BatchNorm& n, const void* x, const double* mean,
                        const double* inv_std, const void* dy, const void* signs) {
  return {static_cast<const T*>(x),
          static_cast<const T*>(dy),
          static_cast<const std::uint8_t*>(signs),
          mean,
          inv_std,
          {Wide<T>(n.slope)}};
}

/// As with_packs(), where there may be signs, of whose bytes each belongs to one thread.
template <class T, class F>
cudaError_t with_signs(const BatchNorm& n, const void* signs, bool aligned, const F& f) {
  if (signs && !aligned && n.channels % pack_of<T> == 0) return cudaErrorInvalidValue;
  return with_packs<T>(n.channels, aligned, f);
}

}  // namespace

std::size_t norm_workspace(const BatchNorm& n) {
  return partial_bytes(n.rows, n.channels, 2, n.dtype);
}

std::size_t norm_signs(const BatchNorm& n) {
  const std::int64_t pack = 16 / std::int64_t(size_of(n.dtype));
  return std::size_t(n.rows * n.channels / (n.channels % pack == 0 ? pack : 1));
}

cudaError_t norm_statistics(cudaStream_t stream, const BatchNorm& n, const void* x, double* sums,
                            void* workspace) {
  auto* const partials = static_cast<double*>(workspace);
  return with_elements(n.dtype, [&]<class T>(T) {
    return with_packs<T>(n.channels, aligned(x), [&]<int V>(std::integral_constant<int, V>) {
      const Tiles tiles(n.rows, n.channels, V);
      const cudaError_t status = launch(stream, tiles.grid, tiles.block, sum_moments<T, V>,
                                        static_cast<const T*>(x), n.rows, n.channels, partials);
      if (status != cudaSuccess) return status;
      return fold_sums<double>(stream, partials, tiles.grid.y, n.channels, sums, nullptr, nullptr);
    });
  });
}

cudaError_t norm_finish(cudaStream_t stream, const BatchNorm& n, const double* sums, double count,
                        double epsilon, double momentum, double* mean, double* inv_std,
                        void* running_mean, void* running_var) {
  return with_elements(n.dtype, [&]<class T>(T) {
    using P = Wide<T>;
    return launch(stream, grid_of(n.channels), dim3(block_threads), finish<P>, sums, n.channels,
                  count, epsilon, momentum, mean, inv_std, static_cast<P*>(running_mean),
                  static_cast<P*>(running_var));
  });
}

cudaError_t norm_running(cudaStream_t stream, const BatchNorm& n, const void* running_mean,
                         const void* running_var, double* sums) {
  return with_elements(n.dtype, [&]<class T>(T) {
    using P = Wide<T>;
    return launch(stream, grid_of(n.channels), dim3(block_threads), copy_running<P>,
                  static_cast<const P*>(running_mean), static_cast<const P*>(running_var),
                  n.channels, sums);
  });
}

cudaError_t norm_from_running(cudaStream_t stream, const BatchNorm& n, const double* sums,
                              int variants, double epsilon, double* mean, double* inv_std) {
  return with_elements(n.dtype, [&]<class T>(T) {
    return launch(stream, grid_of(n.channels), dim3(block_threads), take_running<Wide<T>>, sums,
                  n.channels, variants, epsilon, mean, inv_std);
  });
}

cudaError_t norm_normalize(cudaStream_t stream, const BatchNorm& n, const void* x,
                           const double* mean, const double* inv_std, const void* w, const void* b,
                           const void* added, void* y, void* signs) {
  return with_elements(n.dtype, [&]<class T>(T) {
    using W = Wide<T>;
    const bool packs = aligned(x, added, y);
    return with_signs<T>(n, signs, packs, [&]<int V>(std::integral_constant<int, V>) {
      const Tiles tiles(n.rows, n.channels, V);
      return launch(stream, tiles.grid, tiles.block, normalize<T, V>, static_cast<const T*>(x),
                    n.rows, n.channels, mean, inv_std, static_cast<const W*>(w),
                    static_cast<const W*>(b), static_cast<const T*>(added),
                    Rectifier<W>{W(n.slope)}, static_cast<T*>(y),
                    static_cast<std::uint8_t*>(signs));
    });
  });
}

cudaError_t norm_gradients(cudaStream_t stream, const BatchNorm& n, const void* x,
                           const double* mean, const double* inv_std, const void* dy,
                           const void* signs, double* sums, DType gradients, void* dw, void* db,
                           void* dadded, void* workspace, const void* more) {
  auto* const partials = static_cast<double*>(workspace);
  return with_elements(n.dtype, [&]<class T>(T) {
    const bool packs = aligned(x, dy, dadded, more);
    return with_signs<T>(n, signs, packs, [&]<int V>(std::integral_constant<int, V>) {
      const Tiles tiles(n.rows, n.channels, V);
      const auto start = [&]<bool Adds>(More<T, Adds> added) {
        return launch(stream, tiles.grid, tiles.block, sum_gradients<T, V, Adds>,
                      backward_of<T>(n, x, mean, inv_std, dy, signs), added, n.rows, n.channels,
                      static_cast<T*>(dadded), partials);
      };
      const cudaError_t status =
          more ? start(More<T, true>{static_cast<const T*>(more)}) : start(More<T, false>{});
      if (status != cudaSuccess) return status;
      return with_elements(gradients, [&]<class G>(G) {
        return fold_sums(stream, partials, tiles.grid.y, n.channels, sums, static_cast<G*>(db),
                         static_cast<G*>(dw));
      });
    });
  });
}

cudaError_t norm_input_grad(cudaStream_t stream, const BatchNorm& n, const void* x,
                            const double* mean, const double* inv_std, const void* w,
                            const void* dy, const void* signs, const double* sums, double count,
                            void* dx) {
  return with_elements(n.dtype, [&]<class T>(T) {
    const bool packs = aligned(x, dy, dx);
    return with_signs<T>(n, signs, packs, [&]<int V>(std::integral_constant<int, V>) {
      const Tiles tiles(n.rows, n.channels, V);
      return launch(stream, tiles.grid, tiles.block, input_grad<T, V>,
                    backward_of<T>(n, x, mean, inv_std, dy, signs), n.rows, n.channels,
                    static_cast<const Wide<T>*>(w), sums, count, static_cast<T*>(dx));
    });
  });
}

}  // namespace lamina::cuda
