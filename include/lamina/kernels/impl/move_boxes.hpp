// How blocks of tensors move on the host.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/kernels/backend.hpp>

#include <cstring>

namespace lamina {

namespace detail::boxes {

inline void zero(const BoxMove& m) {
  const std::size_t size = size_of(m.to.dtype);
  char* const to = m.to.as<char>();
  for_runs(m.box, m.to_block, m.to_block, [&](std::int64_t at, auto, std::int64_t length) {
    std::memset(to + std::size_t(at) * size, 0, std::size_t(length) * size);
  });
}

inline void copy(const BoxMove& m) {
  const std::size_t size = size_of(m.to.dtype);
  const char* const from = m.from.as<char>();
  char* const to = m.to.as<char>();
  for_runs(m.box, m.from_block, m.to_block, [&](std::int64_t f, std::int64_t t, std::int64_t n) {
    std::memcpy(to + std::size_t(t) * size, from + std::size_t(f) * size, std::size_t(n) * size);
  });
}

template <class T>
void add(const BoxMove& m) {
  const T* const from = m.from.as<T>();
  T* const to = m.to.as<T>();
  for_runs(m.box, m.from_block, m.to_block, [&](std::int64_t f, std::int64_t t, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) to[t + i] = T(to[t + i] + from[f + i]);
  });
}

}  // namespace detail::boxes

LAMINA_INLINE void move_boxes(std::span<const BoxMove> moves) {
  for (const BoxMove& m : moves) {
    if (!m.from)
      detail::boxes::zero(m);
    else if (!m.add)
      detail::boxes::copy(m);
    else
      visit(m.to.dtype, [&]<class T>(T) { detail::boxes::add<T>(m); });
  }
}

}  // namespace lamina
