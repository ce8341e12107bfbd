// DType: the type of an element, as a value.
#pragma once

#include <lamina/base/error.hpp>
#include <lamina/tensor/narrow.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>

namespace lamina {

enum class DType : std::uint8_t { f32, f64, i32, bf16, f16 };

namespace detail {
/// What is to be known of a type of elements.
struct DTypeTraits {
  std::string_view name, stored;  ///< "f32", and as safetensors call it
  std::size_t bytes;
  double roundoff;
};
inline constexpr DTypeTraits dtypes[] = {{"f32", "F32", 4, 0x1p-24},
                                         {"f64", "F64", 8, 0x1p-53},
                                         {"i32", "I32", 4, 0},
                                         {"bf16", "BF16", 2, 0x1p-8},
                                         {"f16", "F16", 2, 0x1p-11}};
inline constexpr int dtype_count = std::size(dtypes);
}  // namespace detail

constexpr std::size_t size_of(DType t) { return detail::dtypes[int(t)].bytes; }
constexpr std::string_view name(DType t) { return detail::dtypes[int(t)].name; }
/// f32 -> "F32": what safetensors call it.
constexpr std::string_view stored_name(DType t) { return detail::dtypes[int(t)].stored; }
/// The largest relative error of rounding to it; 0 of integers.
constexpr double roundoff(DType t) { return detail::dtypes[int(t)].roundoff; }
constexpr bool is_floating(DType t) { return roundoff(t) > 0; }
/// bf16 and f16: but stored so, and computed with as f32.
constexpr bool is_narrow(DType t) { return size_of(t) == 2; }
/// In what is computed with it.
constexpr DType wide(DType t) { return is_narrow(t) ? DType::f32 : t; }

template <class T>
constexpr DType dtype_of = DType::f32;
template <>
inline constexpr DType dtype_of<double> = DType::f64;
template <>
inline constexpr DType dtype_of<std::int32_t> = DType::i32;
template <>
inline constexpr DType dtype_of<BF16> = DType::bf16;
template <>
inline constexpr DType dtype_of<F16> = DType::f16;

/// A type of elements that are floating point numbers. Those that C++ computes with are
/// std::floating_point.
template <class T>
concept Floating = std::floating_point<T> || std::same_as<T, BF16> || std::same_as<T, F16>;

/// wide() of T.
template <class T>
using Wide = std::conditional_t<sizeof(T) == 2, float, T>;

/// Calls f with a zero of that type, for elements of which f is a template:
///
///   visit(x.dtype, [&]<Floating T>(T) { fill(x.elements<T>()); });
///
/// Throws Error for a type that f does not take.
template <class F>
decltype(auto) visit(DType t, F&& f) {
  using Result = std::invoke_result_t<F&, float>;
  const auto call = [&]<class T>(T zero) -> Result {
    if constexpr (std::invocable<F&, T>) return f(zero);
    throw Error(text("elements of ", name(t), " are not what this is for",
                     is_floating(t) ? "" : ": expected floating point numbers"));
  };
  switch (t) {
    case DType::f64:
      return call(double{});
    case DType::i32:
      return call(std::int32_t{});
    case DType::bf16:
      return call(BF16{});
    case DType::f16:
      return call(F16{});
    case DType::f32:
      break;
  }
  return call(float{});
}

/// "f32" -> DType::f32. Throws Error for other names than those of floating point numbers.
inline DType parse_dtype(std::string_view s) {
  for (int i = 0; i < detail::dtype_count; ++i)
    if (name(DType(i)) == s && is_floating(DType(i))) return DType(i);
  throw Error(text("dtype '", s, "' is not known: expected f32, f64, bf16 or f16"));
}

}  // namespace lamina
