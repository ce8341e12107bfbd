// Memory planning: buffers whose lifetimes do not overlap share addresses in one arena.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

namespace lamina {

/// A buffer that is written first at time `first` and read last at time `last`; plan() sets
/// `offset`.
struct Lifetime {
  std::size_t bytes = 0;
  int first = 0, last = 0;
  std::size_t offset = 0;

  bool meets(const Lifetime& other) const { return first <= other.last && other.first <= last; }
};

/// Places each buffer, largest first, into the lowest gap that none of its contemporaries occupies.
/// Returns the bytes of the arena. Offsets are multiples of `align`.
inline std::size_t plan(std::vector<Lifetime>& buffers, std::size_t align = 4096) {
  std::vector<std::size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](auto a, auto b) { return buffers[a].bytes > buffers[b].bytes; });
  std::size_t total = 0;
  std::vector<const Lifetime*> placed, others;
  for (const std::size_t i : order) {
    Lifetime& buffer = buffers[i];
    others.clear();
    for (const Lifetime* p : placed)
      if (p->meets(buffer)) others.push_back(p);
    std::sort(others.begin(), others.end(), [](auto* a, auto* b) { return a->offset < b->offset; });
    std::size_t offset = 0;
    for (const Lifetime* p : others) {
      if (offset + buffer.bytes <= p->offset) break;
      offset = std::max(offset, (p->offset + p->bytes + align - 1) / align * align);
    }
    buffer.offset = offset;
    total = std::max(total, offset + buffer.bytes);
    placed.push_back(&buffer);
  }
  return total;
}

}  // namespace lamina
