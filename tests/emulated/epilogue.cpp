// What is left to do behind a convolution beside plain arithmetic.
#include "kernels/epilogue.hpp"

#include "made.hpp"

using namespace lamina;
using namespace lamina::test;

namespace {

template <class T>
void compare(std::int64_t rows, int channels, double slope, bool has_bias, bool adds,
             std::size_t after = 0) {
  CAPTURE(name(dtype_of<T>), rows, channels, slope, has_bias, adds, after);
  const auto size = std::size_t(rows * channels);
  auto y = as<T>(random_of<T>(size, 1));
  const auto added = as<T>(random_of<T>(size, 2)),
             b = as<T>(random_of<T>(std::size_t(channels), 3));
  if (size > 1) y[1] = T(std::nan(""));
  Values right(size);
  for (std::size_t i = 0; i < size; ++i) {
    double v = double(y[i]);
    if (has_bias) v += double(b[i % std::size_t(channels)]);
    if (adds) v += double(added[i]);
    right[i] = v > 0 || v != v ? v : slope * v;
  }
  const There<T> bias(b);
  const Operand<T> result(wide(y), after), more(wide(added), after);
  ok(cuda::finish(nullptr, {dtype_of<T>, rows, channels, slope}, has_bias ? bias.data() : nullptr,
                  adds ? more.data() : nullptr, result.data()));
  CHECK(difference_or_nan(result.values(), right) < 4 * roundoff(dtype_of<T>));
}

template <class T>
void compare_all() {
  for (const double slope : {1.0, 0.0, 0.25})
    for (const bool has_bias : {false, true})
      for (const bool adds : {false, true}) {
        compare<T>(300, 16, slope, has_bias, adds);
        compare<T>(1300, 24, slope, has_bias, adds);    // whole batches of rows, and what is left
        compare<T>(140, 16, slope, has_bias, adds, 1);  // not aligned
        compare<T>(7, 5, slope, has_bias, adds);
        compare<T>(1, 1, slope, has_bias, adds);
      }
}

}  // namespace

TEST_CASE("what is left behind a convolution is done on a GPU as by hand") {
  compare_all<double>(), compare_all<float>(), compare_all<BF16>(), compare_all<F16>();
}
