// Blocks of positions as channels, and back, against plain loops.
#include "kernels/space_to_depth.hpp"

#include "made.hpp"

using namespace lamina;
using namespace lamina::test;

namespace {

/// Calls f(where in x, or -1 for zeros, where in y) for each element of y; both lie n-h-w-c.
template <class F>
void each_pair(const cuda::SpaceToDepth& s, const F& f) {
  const Shape &x = s.x, &y = s.y;
  std::size_t to = 0;
  for (std::int64_t n = 0; n < y.n; ++n)
    for (std::int64_t i = 0; i < y.h; ++i)
      for (std::int64_t j = 0; j < y.w; ++j)
        for (std::int64_t k = 0; k < y.c; ++k) {
          const std::int64_t of_block = k / x.c, a = of_block / s.block.w, b = of_block % s.block.w;
          const std::int64_t h = i * s.block.h + a - s.top, w = j * s.block.w + b - s.left;
          const bool inside = a < s.block.h && h >= 0 && h < x.h && w >= 0 && w < x.w;
          f(inside ? ((n * x.h + h) * x.w + w) * x.c + k % x.c : -1, to++);
        }
}

template <class T>
void compare_back(const cuda::SpaceToDepth& s, const There<T>& blocks, const Values& from) {
  const There<Wide<T>> wide_x(from.size(), std::nan(""));
  const There<T> x(from.size(), T(std::nan("")));
  ok(cuda::depth_to_space(nullptr, s, blocks.data(), dtype_of<Wide<T>>, wide_x.data()));
  CHECK(wide(wide_x) == from);
  ok(cuda::depth_to_space(nullptr, s, blocks.data(), dtype_of<T>, x.data()));
  CHECK(wide(x) == from);
}

/// With x, y, or none so many elements behind where a pack may begin. `all`: y has all of x.
template <class T>
void compare(const Shape& x, Pair block, Pad pad, Shape y, bool all, std::size_t x_after = 0,
             std::size_t y_after = 0) {
  cuda::SpaceToDepth s{dtype_of<T>, x, y, block, pad.top, pad.left};
  CAPTURE(name(s.dtype), x, y, block.text(), pad.text(), x_after, y_after);
  const Values from = random_of<T>(std::size_t(x.size()), 1);
  Values shifted(x_after, 7.0), right(y_after + std::size_t(y.size()), 0);
  shifted.insert(shifted.end(), from.begin(), from.end());
  std::fill_n(right.begin(), y_after, 9.0);
  each_pair(s, [&](std::int64_t at, std::size_t to) {
    if (at >= 0) right[y_after + to] = from[std::size_t(at)];
  });
  const There<T> in = there<T>(shifted);
  Values before(right.size(), std::nan(""));
  std::fill_n(before.begin(), y_after, 9.0);
  const There<T> out = there<T>(before);
  ok(cuda::space_to_depth(nullptr, s, in.data() + x_after, out.data() + y_after));
  CHECK(wide(out) == right);
  if (all && y_after == 0) compare_back<T>(s, out, from);
}

template <class T>
void compare_all() {
  constexpr std::int64_t pack = 16 / sizeof(T);
  compare<T>({1, 1, 1, 1}, 1, 0, {1, 1, 1, 1}, true);
  compare<T>({2, 3, 9, 7}, 2, {3, 3}, {2, 16, 7, 6}, true);    // 7x7/2
  compare<T>({2, 3, 23, 19}, 4, {2, 1}, {2, 48, 7, 6}, true);  // 11x11/4
  compare<T>({3, 3, 5, 300}, 1, {1, 1}, {3, std::max<std::int64_t>(pack, 4), 7, 302},
             true);  // 3x3/1; several parts
  compare<T>({2, 1, 11, 6}, {3, 2}, {0, 5, 0, 0}, {2, 8, 5, 7}, true);
  compare<T>({2, 3, 7, 7}, 2, 0, {2, 12, 4, 4}, true);                     // weights
  compare<T>({2, 2, 9, 9}, {1, 3}, {1, 2, 0, 0}, {2, 6, 4, 2}, false);     // not all of x, no packs
  for (const std::int64_t channels : {pack, 3 * pack, std::int64_t(5)}) {  // padding alone
    const Pad pad(0, 2, 1, 3);
    compare<T>({2, channels, 5, 4}, 1, pad, {2, channels, 6, 9}, true);
    compare<T>({2, channels, 5, 4}, 1, pad, {2, channels, 6, 9}, true, 1);
    compare<T>({2, channels, 5, 4}, 1, pad, {2, channels, 6, 9}, true, 0, 1);
  }
}

}  // namespace

TEST_CASE("blocks become channels on a GPU, and back, as by hand") {
  compare_all<double>(), compare_all<float>(), compare_all<BF16>(), compare_all<F16>();
}

TEST_CASE("blocks that do not fit into channels are refused") {
  const There<float> x(16), y(16);
  const cuda::SpaceToDepth s{DType::f32, {1, 1, 4, 4}, {1, 3, 2, 2}, 2};
  CHECK(cuda::space_to_depth(nullptr, s, x.data(), y.data()) == cudaErrorInvalidValue);
  CHECK(cuda::depth_to_space(nullptr, s, y.data(), DType::f32, x.data()) == cudaErrorInvalidValue);
}
