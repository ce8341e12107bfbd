// Bytes that stand for numbers.
#include "kernels/pixels.hpp"

#include "made.hpp"

#include <lamina/kernels/samples.hpp>

using namespace lamina;
using namespace lamina::test;

namespace {

template <class T>
void compare(const Shape& shape, std::size_t first = 0) {
  CAPTURE(name(dtype_of<T>), shape.text(), first);
  Pixels::Values values;
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = (float(i % 256) / 255 - 0.4f) / 0.3f + 10 * float(i / 256);
  const Random random(1);
  std::vector<std::uint8_t> bytes(std::size_t(shape.size()) + first);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::uint8_t(random.bits(i) >> 24);
  const There<std::uint8_t> from(bytes);
  const There<T> to(std::size_t(shape.size()), T(std::nanf("")));
  ok(cuda::convert_pixels(nullptr, dtype_of<T>, shape.n * shape.c, shape.h * shape.w, shape.c,
                          std::bit_cast<cuda::PixelValues>(values), from.data() + first,
                          to.data()));
  const Pixels pixels{bytes.data() + first, &values};
  Values right;
  for (std::size_t i = 0; i < std::size_t(shape.size()); ++i)
    right.push_back(double(T(pixels.value(shape, i))));
  CHECK(wide(to) == right);
}

template <class T>
void compare_all() {
  compare<T>({0, 3, 4, 4}), compare<T>({1, 1, 1, 1}), compare<T>({2, 1, 28, 28});
  compare<T>({3, 3, 32, 32}), compare<T>({3, 3, 32, 32}, 1);  // not aligned
  compare<T>({5, 3, 7, 9}), compare<T>({2, 4, 8, 8}), compare<T>({2, 2, 64, 65});
  compare<T>({2, 3, 300, 200});  // more than a grid's blocks have at once
}

}  // namespace

TEST_CASE("bytes of images on a GPU stand for the same numbers as on the host") {
  compare_all<double>(), compare_all<float>(), compare_all<BF16>(), compare_all<F16>();
}
