// What each rank of a group gives of some whole words, on all of them.
#pragma once

#include <lamina/comm/transport.hpp>

#include <type_traits>
#include <vector>

namespace lamina::detail {

/// By rank. Collective, on the thread that runs collectives.
template <class T>
std::vector<T> gather_words(Transport& ranks, const T& mine) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % 4 == 0);
  std::vector<T> all(std::size_t(ranks.size()), mine);
  Operation op;
  op.collective = Collective::all_gather, op.dtype = DType::i32;
  op.in = &mine, op.out = all.data(), op.count = sizeof(T) / 4;
  ranks.run(op);
  return all;
}

}  // namespace lamina::detail
