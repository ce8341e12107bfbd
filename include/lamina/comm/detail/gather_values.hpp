// What each rank of a group gives of some whole words, on all of them.
#pragma once

#include <lamina/comm/transport.hpp>

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace lamina::detail {

/// What gather(in, all) brings together, by rank. Where it throws, a carrier that has given up may
/// still read and write there: then both stay to the end.
template <class T, class Gather>
std::vector<T> gather_held(int ranks, const T& mine, Gather&& gather) {
  struct Held {
    T mine;
    std::vector<T> all;
  };
  auto held = std::make_unique<Held>(mine, std::vector<T>(std::size_t(ranks), mine));
  try {
    gather(held->mine, held->all.data());
  } catch (...) {
    (void)held.release();
    throw;
  }
  return std::move(held->all);
}

/// By rank. Collective, on the thread that runs collectives.
template <class T>
std::vector<T> gather_values(Transport& ranks, const T& mine) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % 4 == 0);
  return gather_held(ranks.size(), mine, [&](const T& in, T* all) {
    Operation op;
    op.collective = Collective::all_gather, op.dtype = DType::i32;
    op.in = &in, op.out = all, op.count = sizeof(T) / 4;
    ranks.run(op);
  });
}

}  // namespace lamina::detail
