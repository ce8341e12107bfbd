// How blocks of tensors move on the host.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/kernels/backend.hpp>

#include <cstring>

namespace lamina {

namespace detail::boxes {

inline void zero(const BoxMove& m, Part some) {
  const std::size_t size = size_of(m.to.dtype);
  char* const to = m.to.as<char>();
  for_runs(m.box, some, m.to_block, m.to_block, [&](std::int64_t at, auto, std::int64_t length) {
    std::memset(to + std::size_t(at) * size, 0, std::size_t(length) * size);
  });
}

inline void copy(const BoxMove& m, Part some) {
  const std::size_t size = size_of(m.to.dtype);
  const char* const from = m.from.as<char>();
  char* const to = m.to.as<char>();
  const auto copy_run = [&](std::int64_t f, std::int64_t t, std::int64_t n) {
    std::memcpy(to + std::size_t(t) * size, from + std::size_t(f) * size, std::size_t(n) * size);
  };
  for_runs(m.box, some, m.from_block, m.to_block, copy_run);
}

template <class T>
void add(const BoxMove& m, Part some) {
  const T* const from = m.from.as<T>();
  T* const to = m.to.as<T>();
  const auto add_run = [&](std::int64_t f, std::int64_t t, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) to[t + i] = T(to[t + i] + from[f + i]);
  };
  for_runs(m.box, some, m.from_block, m.to_block, add_run);
}

}  // namespace detail::boxes

LAMINA_INLINE void move_part(const BoxMove& m, Part elements) {
  if (!m.from)
    detail::boxes::zero(m, elements);
  else if (!m.add)
    detail::boxes::copy(m, elements);
  else
    visit(m.to.dtype, [&]<class T>(T) { detail::boxes::add<T>(m, elements); });
}

LAMINA_INLINE void move_boxes(std::span<const BoxMove> moves) {
  for (const BoxMove& m : moves) move_part(m, {0, m.box.size()});
}

}  // namespace lamina
