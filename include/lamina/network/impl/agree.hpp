// What processes settle before the first network is placed on them.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/base/text.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/kernels/instruction_set.hpp>
#include <lamina/network/agree.hpp>

#include <algorithm>

namespace lamina {

namespace detail {

/// Of all ranks; none where the back end has no say in it.
inline std::vector<InstructionSet> instruction_sets(const Communicator& ranks,
                                                    std::string_view backend,
                                                    const Precision& precision) {
  if (backend == "auto") backend = fastest_backend(precision);
  const bool asks = backend == "onednn" || backend == mixed_onednn;
  return ranks.all_gather_value(asks ? instruction_set() : InstructionSet::none);
}

}  // namespace detail

LAMINA_INLINE std::string agree_on_instruction_set(const Communicator& ranks,
                                                   std::string_view backend,
                                                   const Precision& precision) {
  if (ranks.size() == 1 || ranks.imagined()) return {};
  const auto gather = [&] {
    auto sets = detail::instruction_sets(ranks, backend, precision);
    std::erase(sets, InstructionSet::none);  // other back ends
    return sets;
  };
  const auto alike = [](const auto& all) { return std::ranges::count(all, all[0]) == ssize(all); };
  const auto before = gather();
  if (before.empty() || alike(before)) return {};
  const InstructionSet least = *std::ranges::min_element(before);
  limit_instruction_set(least);
  if (!alike(gather())) return {};  // kernels were there already
  return text("instruction sets differ: all ranks use ", in_words(least), ", the least of theirs");
}

LAMINA_INLINE void follow_instruction_set(const Communicator& ranks, std::string_view backend,
                                          const Precision& precision, bool late) {
  const auto before = detail::instruction_sets(ranks, backend, precision);
  const InstructionSet theirs = before[0];
  if (late && theirs != InstructionSet::none && theirs < instruction_set())
    limit_instruction_set(theirs);
  const auto all = detail::instruction_sets(ranks, backend, precision);
  for (std::size_t r = 1; r < all.size(); ++r)
    check(all[r] == all[0], "rank ", r, " has ", in_words(all[r]), ", but the others compute with ",
          in_words(all[0]));
}

LAMINA_INLINE void expect_one_backend(std::string_view what, const Communicator& ranks,
                                      std::string_view backend, const Precision& precision) {
  const auto all = ranks.all_gather_text(backend_name(backend, precision));
  for (std::size_t r = 1; r < all.size(); ++r)
    check(all[r] == all[0], what, ": expected one back end on all ranks, got ", all[0],
          " on rank 0, but ", all[r], " on rank ", r);
}

}  // namespace lamina
