// DType: the type of an element, as a value.
#pragma once

#include <lamina/base/error.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lamina {

enum class DType : std::uint8_t { f32, f64, i32 };

constexpr std::size_t size_of(DType t) { return t == DType::f64 ? 8 : 4; }

constexpr std::string_view name(DType t) {
  return t == DType::f32 ? "f32" : t == DType::f64 ? "f64" : "i32";
}

template <class T>
constexpr DType dtype_of = DType::f32;
template <>
inline constexpr DType dtype_of<double> = DType::f64;
template <>
inline constexpr DType dtype_of<std::int32_t> = DType::i32;

/// "f32" -> DType::f32. Throws Error for other names.
inline DType parse_dtype(std::string_view s) {
  if (s == "f32") return DType::f32;
  if (s == "f64") return DType::f64;
  throw Error(text("dtype '", s, "' is not known: expected f32 or f64"));
}

}  // namespace lamina
