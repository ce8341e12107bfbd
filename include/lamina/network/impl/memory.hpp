// Where in the arena buffers lie.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/network/memory.hpp>

#include <algorithm>
#include <numeric>

namespace lamina {

LAMINA_INLINE std::size_t pack(std::vector<Lifetime>& buffers, std::size_t align) {
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
