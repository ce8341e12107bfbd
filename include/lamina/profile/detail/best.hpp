// Two measurements of one machine.
#pragma once

#include <lamina/profile/machine.hpp>

namespace lamina::detail {

/// Two measurements of the same machine, as the better of each ceiling that is plausible.
/// Disturbance takes away and adds nothing, so that the higher one counts, with two exceptions
/// where it is more than a quarter higher than one that was not disturbed: it is not believed if it
/// was disturbed itself, nor if it is the older one, since then the machine has changed. Which
/// ceilings there are, `newer` says.
Machine best_of(const Machine& older, const Machine& newer);

}  // namespace lamina::detail
