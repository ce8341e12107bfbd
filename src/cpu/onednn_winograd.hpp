// Our own Winograd among oneDNN's kernels: how its weights lie that were transformed once.
#pragma once

#include "cpu/onednn_compare.hpp"
#include "cpu/onednn_core.hpp"
#include "cpu/winograd.hpp"

namespace lamina::detail {

/// Of weights of `shape`, as Winograd::prepare() leaves them. Copies go that way and none back.
Form prepared_form(const Shape& shape, const Winograd&);

/// To weights that are prepared, from others; null where y is none.
std::unique_ptr<UnaryKernel> make_prepare(const RuntimePtr&, const Form& x, const Form& y);

/// A pass, as oneDNN's direct ones are run to compare them.
Run run_of(const Winograd&, Pass);
/// Forward, of weights that the first run prepares.
Run run_of_prepared(const Winograd&);

}  // namespace lamina::detail
