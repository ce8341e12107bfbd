// Numbers that go to a GPU and back.
#pragma once

#include "cuda/memory.hpp"

#include <numeric>
#include <vector>

namespace lamina::test {

inline constexpr std::size_t count = 1000, bytes = count * sizeof(double);

inline std::vector<double> numbers_from(double first) {
  std::vector<double> to(count);
  std::iota(to.begin(), to.end(), first);
  return to;
}

/// Through two places on the GPU and back; what was given may change at once.
inline void round_trip(cuda::Memory& memory, Stream& stream, void* a, void* b, double first,
                       std::vector<double>& to) {
  std::vector<double> from = numbers_from(first);
  memory.put(stream, from.data(), a, bytes);
  from.assign(count, -1);
  memory.carry(stream, a, b, bytes);
  memory.get(stream, b, to.data(), bytes);
}

}  // namespace lamina::test
