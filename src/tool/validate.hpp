// `lamina plan --validate`: whether plans take as long as they are predicted to.
#pragma once

#include "options.hpp"

#include <lamina/train/validate_plans.hpp>

namespace lamina::cli {

/// Calibrates on these ranks, runs plans, prints what was predicted beside what they took, and
/// writes the file of --json. The exit status. Collective.
int validate(RunOptions o, const ValidateOptions& how, World& world);

}  // namespace lamina::cli
