// What processes settle before the first network is placed on them.
#pragma once

#include <lamina/comm/communicator.hpp>
#include <lamina/tensor/precision.hpp>

#include <string>
#include <string_view>

namespace lamina {

/// Where `backend` (see make_backend()) is onednn, and the processes have unlike instruction sets,
/// all take the least of theirs: kernels and layouts are the same then, and so are results. Must
/// come before the first kernel is made: later, layouts that do not fit each other are refused
/// where they meet, or made plain. Returns a line that says what was agreed on; empty where nothing
/// had to be, or could. Collective; a Trainer calls it.
std::string agree_on_instruction_set(const Communicator& ranks, std::string_view backend,
                                     const Precision& precision);

/// The same where some ranks are `late`, and the others have made kernels: these take rank 0's set.
/// Throws Error, on all of them, where a rank cannot. Collective.
void follow_instruction_set(const Communicator& ranks, std::string_view backend,
                            const Precision& precision, bool late);

/// Throws Error, on all ranks the same, where their back ends are unlike: `what` is for one that
/// all have, since it goes by the times or the needs of kernels. Collective.
void expect_one_backend(std::string_view what, const Communicator& ranks, std::string_view backend,
                        const Precision& precision);

}  // namespace lamina
