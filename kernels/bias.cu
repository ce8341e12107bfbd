// Sums over rows: each block those of some rows, and then those of all blocks.
#include "bias.hpp"
#include "rows.hpp"

namespace lamina::cuda {

namespace {

template <class T, int V>
__global__ void sum_rows(const T* dy, std::int64_t rows, int channels, double* partials) {
  double sums[1][V] = {};
  each_row<V>(
      rows, channels, [&](std::int64_t at) { return load<V>(dy + at); },
      [&](std::int64_t, const Pack<T, V>& p) {
        for (int v = 0; v < V; ++v) sums[0][v] += p.wide(v);
      });
  add_up(sums, channels, partials);
}

template <class G>
__global__ void fold_bias(const double* partials, int blocks, int channels, G* db) {
  fold(partials, blocks, channels, [&](int i, double sum) { db[i] = narrow<G>(sum); });
}

}  // namespace

std::size_t bias_workspace(DType dtype, std::int64_t rows, int channels) {
  return partial_bytes(rows, channels, 1, dtype);
}

cudaError_t bias_grad(cudaStream_t stream, DType dtype, std::int64_t rows, int channels,
                      const void* dy, DType gradients, void* db, void* workspace) {
  auto* const partials = static_cast<double*>(workspace);
  return with_elements(dtype, [&]<class T>(T) {
    return with_packs<T>(channels, aligned(dy), [&]<int V>(std::integral_constant<int, V>) {
      const Tiles tiles(rows, channels, V);
      const cudaError_t status = launch(stream, tiles.grid, tiles.block, sum_rows<T, V>,
                                        static_cast<const T*>(dy), rows, channels, partials);
      if (status != cudaSuccess) return status;
      return with_elements(gradients, [&]<class G>(G) {
        return launch_fold(stream, channels, fold_bias<G>, partials, int(tiles.grid.y), channels,
                           static_cast<G*>(db));
      });
    });
  });
}

}  // namespace lamina::cuda
