// Elements of any type as numbers, as stand-ins compute with them.
#pragma once

#include <lamina/tensor/dtype.hpp>

#include <cstdint>

namespace lamina::test {

inline double number_at(DType t, const void* data, std::int64_t i) {
  return visit(t, [&]<class T>(T) { return double(static_cast<const T*>(data)[i]); });
}
inline void put_number(DType t, void* data, std::int64_t i, double v) {
  visit(t, [&]<class T>(T) { static_cast<T*>(data)[i] = T(v); });
}

}  // namespace lamina::test
