// A pass over a result that waits for memory: whoever can does this while it writes the result.
#include "elements.hpp"
#include "epilogue.hpp"
#include "rows.hpp"

namespace lamina::cuda {

namespace {

template <class T, int V>
struct Operands {
  Pack<T, V> y, added;
};

template <class T, int V>
__global__ void finish_rows(std::int64_t rows, int channels, const T* b, const T* added,
                            Rectifier<Wide<T>> rectifier, T* y) {
  T bias[V];
  load_channels(b, channels, bias, narrow<T>(Wide<T>(0)));
  each_row<V>(
      rows, channels,
      [&](std::int64_t at) {
        Operands<T, V> from;
        from.y = load<V>(y + at);
        if (added) from.added = load<V>(added + at);
        return from;
      },
      [&](std::int64_t at, const Operands<T, V>& from) {
        Wide<T> values[V];
        for (int v = 0; v < V; ++v) {
          values[v] = from.y.wide(v) + widen(bias[v]);
          if (added) values[v] += from.added.wide(v);
          values[v] = rectifier.value(values[v]);
        }
        store<V>(y + at, Pack<T, V>(values));
      });
}

}  // namespace

cudaError_t finish(cudaStream_t stream, const Finish& f, const void* b, const void* added,
                   void* y) {
  return with_elements(f.dtype, [&]<class T>(T) {
    return with_packs<T>(f.channels, aligned(added, y), [&]<int V>(std::integral_constant<int, V>) {
      const Tiles tiles(f.rows, f.channels, V);
      return launch(stream, tiles.grid, tiles.block, finish_rows<T, V>, f.rows, f.channels,
                    static_cast<const T*>(b), static_cast<const T*>(added),
                    Rectifier<Wide<T>>{Wide<T>(f.slope)}, static_cast<T*>(y));
    });
  });
}

}  // namespace lamina::cuda
