// Types of elements: what is known of each, and how bf16 and f16 are rounded.
#include "catch.hpp"

#include <lamina/tensor/precision.hpp>

#include <bit>
#include <cmath>
#include <limits>

using namespace lamina;

namespace {

template <class T>
T of_bits(int bits) {
  T t;
  t.bits = std::uint16_t(bits);
  return t;
}

constexpr int sign = 0x8000;

/// How many of all numbers do not come back from float and from double, NaN as NaN.
template <class T>
int lost() {
  int lost = 0;
  for (int bits = 0; bits < 0x10000; ++bits) {
    const float v = of_bits<T>(bits);
    for (const T back : {T(v), T(double(v))})
      lost += std::isnan(v) ? !std::isnan(float(back)) || (back.bits & sign) != (bits & sign)
                            : back.bits != bits;
  }
  return lost;
}

/// How many of all gaps between neighbours, up to that behind the largest number, are not cut in
/// the middle: there the even one of the two wins.
template <class T>
int cut_wrong(int infinity, double behind_largest) {
  int wrong = 0;
  for (int low = 0; low < infinity; ++low) {
    const double below = float(of_bits<T>(low));
    const double above = low + 1 == infinity ? behind_largest : float(of_bits<T>(low + 1));
    const double middle = (below + above) / 2;
    const auto becomes = [&](double v, int bits) {
      return T(v).bits == bits && T(-v).bits == (bits | sign);
    };
    wrong += !becomes(middle, low + low % 2);
    // So little beside it that float would make it the middle.
    wrong += !becomes(std::nextafter(middle, 0), low);
    wrong += !becomes(std::nextafter(middle, HUGE_VAL), low + 1);
  }
  return wrong;
}

}  // namespace

TEST_CASE("every number of bf16 and f16 comes back from float and double") {
  CHECK(lost<BF16>() == 0);
  CHECK(lost<F16>() == 0);
}

TEST_CASE("bf16 and f16 are rounded to nearest, ties to even") {
  CHECK(cut_wrong<BF16>(0x7F80, std::ldexp(1.0, 128)) == 0);
  CHECK(cut_wrong<F16>(0x7C00, std::ldexp(1.0, 16)) == 0);
}

TEST_CASE("bf16 and f16 mean what IEEE 754 says") {
  CHECK(float(of_bits<F16>(0x3C00)) == 1);
  CHECK(float(of_bits<F16>(0xC500)) == -5);
  CHECK(float(of_bits<F16>(0x7BFF)) == 65504);
  CHECK(double(of_bits<F16>(1)) == std::ldexp(1.0, -24));
  CHECK(double(of_bits<F16>(0x03FF)) == std::ldexp(1023.0, -24));
  CHECK(std::isinf(float(of_bits<F16>(0x7C00))));
  CHECK(float(of_bits<BF16>(0x3F80)) == 1);
  CHECK(float(of_bits<BF16>(0xC0A0)) == -5);
  CHECK(double(of_bits<BF16>(1)) == std::ldexp(1.0, -133));
  CHECK(std::isinf(float(BF16(1e39))));
  CHECK(BF16(-1e39).bits == 0xFF80);
  CHECK(F16(1e300).bits == 0x7C00);
  CHECK(F16(-1e-300).bits == sign);
  CHECK(BF16(std::numeric_limits<double>::denorm_min()).bits == 0);
#ifdef __FLT16_MAX__
  int differ = 0;  // from what the compiler does
  for (std::uint32_t i = 0; i < 1U << 20; ++i) {
    const auto v = std::bit_cast<float>(i * 4099);
    if (!std::isnan(v)) differ += F16(v).bits != std::bit_cast<std::uint16_t>(_Float16(v));
  }
  CHECK(differ == 0);
#endif
}

TEST_CASE("the roundoff of a type is what rounding changes at most") {
  const auto changed = []<Floating T>(T) {
    double most = 0;
    for (int i = 0; i < 100'000; ++i) {
      const double v = 1 + i / 100'000.0;
      most = std::max(most, std::abs(double(T(v)) - v) / v);
    }
    return most;
  };
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    CAPTURE(name(t));
    CHECK(visit(t, changed) <= roundoff(t));
    CHECK(visit(t, changed) > 0.99 * roundoff(t) / (1 + roundoff(t)) - 1e-9);
  }
}

TEST_CASE("types of elements have a name, a size, and a C++ type") {
  for (const DType t : {DType::f32, DType::f64, DType::i32, DType::bf16, DType::f16}) {
    CAPTURE(name(t));
    visit(t, [&]<class T>(T) {
      CHECK(dtype_of<T> == t);
      CHECK(sizeof(T) == size_of(t));
      CHECK(dtype_of<Wide<T>> == wide(t));
    });
    if (is_floating(t)) CHECK(parse_dtype(name(t)) == t);
  }
  CHECK(stored_name(DType::bf16) == "BF16");
  CHECK_THROWS_WITH(parse_dtype("i32"), ContainsSubstring("expected f32, f64, bf16 or f16"));
  CHECK_THROWS_WITH(visit(DType::i32, []<Floating T>(T) {}), ContainsSubstring("i32"));
  CHECK_THROWS_WITH(visit(DType::f16, []<std::floating_point T>(T) {}), ContainsSubstring("f16"));
}

TEST_CASE("a precision is made of a type, and says what is not usual") {
  const Precision half = DType::bf16;
  CHECK((half.compute == DType::bf16 && half.weights == DType::bf16));
  CHECK((half.gradients == DType::f32 && half.states == DType::f32));
  CHECK(half.statistics == DType::f32);
  CHECK(half.text() == "bf16");
  CHECK(Precision(DType::f64).states == DType::f64);
  CHECK(Precision() == Precision(DType::f32));
  Precision unusual = DType::f16;
  unusual.gradients = DType::f16, unusual.states = DType::f64;
  CHECK(unusual.text() == "f16 (gradients f16, states f64)");
}
