// Samples on their way into a network of another type.
#include "catch.hpp"

#include <lamina/base/threads.hpp>
#include <lamina/kernels/samples.hpp>

#include <algorithm>
#include <bit>
#include <span>
#include <vector>

using namespace lamina;

namespace {

/// Numbers of T, what lies in the middle between two of them and right beside that, and NaN of all
/// kinds. More than one thread takes them.
template <class T>
std::vector<float> hard_to_round() {
  std::vector<float> all;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    T t;
    t.bits = std::uint16_t(bits);
    const float v = t;
    const auto exact = std::bit_cast<std::uint32_t>(v);
    all.push_back(v);
    t.bits = std::uint16_t(bits + 1);
    const auto next = std::bit_cast<std::uint32_t>(float(t));
    const std::uint32_t middle = exact + (next - exact) / 2;
    const float between = (v + float(t)) / 2;  // where subnormals of T are no floats in a row
    for (const std::uint32_t m : {middle, std::bit_cast<std::uint32_t>(between)})
      for (const std::uint32_t near : {m - 1, m, m + 1}) all.push_back(std::bit_cast<float>(near));
  }
  for (const std::uint32_t sign : {0U, 0x80000000U})
    for (int bit = 0; bit < 23; ++bit)
      for (const std::uint32_t more : {0U, 1U})
        all.push_back(std::bit_cast<float>(sign | 0x7F800000U | 1U << bit | more));
  return all;
}

template <class T>
std::size_t wrong(const std::vector<float>& from) {
  std::vector<T> to(from.size());
  convert_samples(from.data(), from.size(), dtype_of<T>, to.data());
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < from.size(); ++i) wrong += to[i].bits != T(double(from[i])).bits;
  return wrong;
}

}  // namespace

TEST_CASE("samples are rounded to bf16 and f16 as their types do, by any number of threads") {
  const int before = threads();
  for (const int n : {1, 2, 3, 5}) {
    CAPTURE(n);
    set_threads(n);
    CHECK(wrong<BF16>(hard_to_round<BF16>()) == 0);
    CHECK(wrong<F16>(hard_to_round<F16>()) == 0);
  }
  set_threads(before);
}

TEST_CASE("samples stay what they are in f32 and f64, and nothing is written behind them") {
  std::vector<float> from(70001);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = float(i) / 3;
  std::vector<float> same(from.size() + 1, -1);
  std::vector<double> wide(from.size() + 1, -1);
  convert_samples(from.data(), from.size(), DType::f32, same.data());
  convert_samples(from.data(), from.size(), DType::f64, wide.data());
  CHECK(std::ranges::equal(from, std::span(same).first(from.size())));
  CHECK(std::ranges::equal(from, std::span(wide).first(from.size())));
  CHECK(same.back() == -1);
  CHECK(wide.back() == -1);
}

TEST_CASE(
    "bytes of images stand for their numbers, by any number of threads and from any byte on") {
  Pixels::Values values;
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = (float(i % 256) / 255 - 0.4f) / 0.3f + 10 * float(i / 256);
  const Shape shape{3, 4, 61, 96};  // 70272 bytes; a fourth channel is as the third
  std::vector<std::uint8_t> bytes(std::size_t(shape.size()));
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::uint8_t(i * 2654435761U >> 13);
  const Pixels pixels{bytes.data(), &values};
  const auto compare = [&]<Floating T>(T) {
    for (const std::size_t first : {0, 1, 5855, 5856, 40000}) {
      CAPTURE(name(dtype_of<T>), first);
      const std::size_t count = std::min(bytes.size() - first, std::size_t(50001));
      std::vector<T> to(count + 1, T(-7.0f));
      convert_pixels(pixels, shape, first, count, dtype_of<T>, to.data());
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < count; ++i)
        wrong += double(to[i]) != double(T(pixels.value(shape, first + i)));
      CHECK(wrong == 0);
      CHECK(double(to.back()) == -7);
    }
  };
  const int before = threads();
  for (const int n : {1, 2, 5}) {
    set_threads(n);
    compare(float{}), compare(double{}), compare(BF16{}), compare(F16{});
  }
  set_threads(before);
  CHECK(pixels.value(shape, std::size_t(3 * 61 * 96)) == values[512 + bytes[3 * 61 * 96]]);
}
