// Sums in one order (added_first), by their definition, and what ranks find.
#pragma once

#include "support/peek.hpp"

#include <lamina/base/random.hpp>
#include <lamina/comm/communicator.hpp>

#include <cstdint>
#include <vector>

namespace lamina::test {

/// What rank r has: numbers whose sums round, each order otherwise.
template <class T>
Tensor scattered_numbers(int rank, std::int64_t count) {
  const Random random(std::uint64_t(rank) + 1, 7);
  Tensor t({count, 1, 1, 1}, dtype_of<T>);
  for (std::int64_t i = 0; i < count; ++i)
    t.as<T>()[i] = T(random.normal(std::uint64_t(i)) * (i % 3 == 0 ? 1e4 : 1));
  return t;
}

/// The sum of ranks [first, first + ranks) of element i.
template <class T>
Wide<T> sum_in_order(const std::vector<Tensor>& all, std::size_t first, std::size_t ranks,
                     std::int64_t i) {
  if (ranks == 1) return Wide<T>(all[first].as<T>()[i]);
  const std::size_t left = added_first(ranks);
  return sum_in_order<T>(all, first, left, i) + sum_in_order<T>(all, first + left, ranks - left, i);
}

/// How many elements of an all-reduce and a reduce-scatter are not what the definition says.
template <class T>
std::int64_t wrong_in_order(const Communicator& ranks, std::int64_t count) {
  const auto n = std::size_t(ranks.size());
  std::vector<Tensor> all;
  for (int r = 0; r < int(n); ++r) all.push_back(scattered_numbers<T>(r, count * std::int64_t(n)));
  Stream s;
  std::int64_t wrong = 0;
  const std::int64_t own = ranks.rank() * count;
  Tensor part({count, 1, 1, 1}, dtype_of<T>);
  Tensor whole = scattered_numbers<T>(ranks.rank(), count * std::int64_t(n));
  ranks.reduce_scatter(s, Pass::update, whole, part).wait(s);
  for (std::int64_t i = 0; i < count; ++i)
    wrong += double(part.as<T>()[i]) != double(T(sum_in_order<T>(all, 0, n, own + i)));
  ranks.all_reduce(s, Pass::update, whole).wait(s);
  for (std::int64_t i = 0; i < whole.shape().size(); ++i)
    wrong += double(whole.as<T>()[i]) != double(T(sum_in_order<T>(all, 0, n, i)));
  return wrong;
}

}  // namespace lamina::test
