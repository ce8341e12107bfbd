// What processes settle before the first network is placed on them.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/base/text.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/kernels/instruction_set.hpp>
#include <lamina/network/agree.hpp>

#include <algorithm>

namespace lamina {

LAMINA_INLINE std::string agree_on_instruction_set(const Communicator& ranks,
                                                   std::string_view backend,
                                                   const Precision& precision) {
  if (ranks.size() == 1 || ranks.imagined()) return {};
  if (backend == "auto") backend = fastest_backend(precision);
  const auto gather = [&] {
    return ranks.all_gather_value(backend == "onednn" ? instruction_set() : InstructionSet::none);
  };
  const auto alike = [](const auto& all) { return std::ranges::count(all, all[0]) == ssize(all); };
  const auto before = gather();
  const InstructionSet least = *std::ranges::min_element(before);
  if (alike(before) || least == InstructionSet::none) return {};
  limit_instruction_set(least);
  if (!alike(gather())) return {};  // kernels were there already
  return text("instruction sets differ: all ranks use ", in_words(least), ", the least of theirs");
}

}  // namespace lamina
