// What each rank of a group gives of some whole words, on all of them.
#pragma once

#include <lamina/comm/transport.hpp>

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace lamina::detail {

/// By rank. Collective, on the thread that runs collectives.
template <class T>
std::vector<T> gather_values(Transport& ranks, const T& mine) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % 4 == 0);
  struct Both {
    T mine;
    std::vector<T> all;
  };
  auto both = std::make_unique<Both>(mine, std::vector<T>(std::size_t(ranks.size()), mine));
  Operation op;
  op.collective = Collective::all_gather, op.dtype = DType::i32;
  op.in = &both->mine, op.out = both->all.data(), op.count = sizeof(T) / 4;
  try {
    ranks.run(op);
  } catch (...) {
    (void)both.release();  // a carrier that has given up may still write there
    throw;
  }
  return std::move(both->all);
}

}  // namespace lamina::detail
