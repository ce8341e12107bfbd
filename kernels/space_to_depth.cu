// Space to depth: a thread for each pack of channels of y. Those that come of one row of a block
// lie side by side in x, too, so that neighbouring threads read what the caches have.
#include "elements.hpp"
#include "flat.hpp"
#include "places.hpp"
#include "space_to_depth.hpp"

#include <limits>

namespace lamina::cuda {

namespace {

/// Where a row of y comes from. `run`: what one row of a block has, elements.
struct Source {
  Divisor height, run;  ///< of y; of block.w * x.c
  int block;            ///< rows of a block
  int top, left;        ///< zeros before x: rows, and elements of a row
  int x_height;
  unsigned x_row;  ///< elements of a row

  explicit Source(const SpaceToDepth& s)
      : height(s.y.h),
        run(s.block.w * s.x.c),
        block(int(s.block.h)),
        top(int(s.top)),
        left(int(s.left * s.x.c)),
        x_height(int(s.x.h)),
        x_row(unsigned(s.x.w * s.x.c)) {}
};

/// Dealt out by rows of y. `Whole`: x has whole packs of channels, of which each is inside or
/// outside.
template <class T, int V, bool Whole>
__global__ void take_blocks(Source of, Deal deal, const T* x, T* y) {
  each_pack<V>(deal, [&](int row, int, int position, int channel) {
    const int n = of.height.quotient(row), a = of.run.quotient(channel);
    const int top = (row - n * of.height.by()) * of.block - of.top;
    const int left = position * of.run.by() - of.left, right = left + of.run.by();
    const T* const from = x + std::int64_t(n) * of.x_height * of.x_row;
    const auto bottom = unsigned(std::max(std::min(top + of.block, of.x_height), 0));
    int line = top + a, column = left + channel - a * of.run.by();
    int at = line * of.x_row + column;
    const auto inside = [&] { return unsigned(line) < bottom && unsigned(column) < of.x_row; };
    Pack<T, V> to;
    if constexpr (Whole) {
      if (inside()) to = load<V>(from + at);
    } else {
      for (int v = 0; v < V; ++v) {
        if (inside()) to.set(v, from[at]);
        ++at, ++column;
        if (column == right) column = left, ++line, at += of.x_row - of.run.by();
      }
    }
    store<V>(y + (std::int64_t(row) * deal.count + position * deal.packs.by()) * V + channel, to);
  });
}

/// Each element of x from where it is in y.
template <class Y, class X>
__global__ void take_elements(Divisor x_row, Divisor x_height, Divisor run, Divisor block, int top,
                              int left, int y_height, int y_width, int y_channels,
                              std::int64_t count, const Y* y, X* x) {
  each_element<1>(
      count,
      [&](std::int64_t number) {
        const int line = x_row.quotient(int(number)), n = x_height.quotient(line);
        const int h = line - n * x_height.by() + top, at = int(number) - line * x_row.by() + left;
        const int i = block.quotient(h), j = run.quotient(at);
        const int channel = (h - i * block.by()) * run.by() + at - j * run.by();
        const std::int64_t position = (std::int64_t(n) * y_height + i) * y_width + j;
        return y[position * y_channels + channel];
      },
      [&](std::int64_t number, Y value) { x[number] = narrow<X>(Wide<X>(widen(value))); });
}

constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();

/// Whether the numbers that kernels compute with are small enough.
bool fits(const SpaceToDepth& s) {
  const std::int64_t lines = std::max(s.x.h, s.y.h * s.block.h) + s.top;
  const std::int64_t columns = std::max(s.x.w, s.y.w * s.block.w) + s.left;
  return s.x.n == s.y.n && (lines + 1) * columns * s.x.c <= most && s.y.w * s.y.c <= most &&
         s.y.n * s.y.h <= most && s.block.h * s.block.w * s.x.c <= s.y.c;
}

}  // namespace

cudaError_t space_to_depth(cudaStream_t stream, const SpaceToDepth& s, const void* x, void* y) {
  if (s.y.size() == 0) return cudaSuccess;
  if (!fits(s)) return cudaErrorInvalidValue;
  return with_elements(s.dtype, [&]<class T>(T) {
    return with_packs<T>(s.y.c, aligned(y), [&]<int V>(std::integral_constant<int, V>) {
      const Deal deal(s.y.n * s.y.h, 1, s.y.w, s.y.c / V);
      const auto start = [&](auto kernel) {
        return launch_packs(stream, deal, kernel, Source(s), deal, static_cast<const T*>(x),
                            static_cast<T*>(y));
      };
      const bool whole = s.x.c % V == 0 && aligned(x);
      return whole ? start(take_blocks<T, V, true>) : start(take_blocks<T, V, false>);
    });
  });
}

cudaError_t depth_to_space(cudaStream_t stream, const SpaceToDepth& s, const void* y, DType x_type,
                           void* x) {
  const std::int64_t count = s.x.size();
  if (count == 0) return cudaSuccess;
  if (!fits(s) || count > most) return cudaErrorInvalidValue;
  return with_elements(s.dtype, [&]<class Y>(Y) {
    const auto start = [&]<class X>(X) {
      return launch_flat<1>(stream, count, take_elements<Y, X>, Divisor(s.x.w * s.x.c),
                            Divisor(s.x.h), Divisor(s.block.w * s.x.c), Divisor(s.block.h),
                            int(s.top), int(s.left * s.x.c), int(s.y.h), int(s.y.w), int(s.y.c),
                            count, static_cast<const Y*>(y), static_cast<X*>(x));
    };
    if (x_type == s.dtype) return start(Y{});
    return x_type == wide(s.dtype) ? start(Wide<Y>{}) : cudaErrorInvalidValue;
  });
}

}  // namespace lamina::cuda
