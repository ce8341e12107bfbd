// add_predicted: what a plan predicted, beside what was measured.
#pragma once

#include <lamina/plan/plan.hpp>
#include <lamina/profile/profile.hpp>

namespace lamina {

/// Fills in Profile::plan and the `predicted` of rows, where the plan has a prediction of this very
/// step: for as many ranks and samples, in this dtype, of the layers of this network, as large and
/// split as here. Does nothing otherwise. What was predicted of a pass of a layer goes to the rows
/// of that pass: its own, and those of the reorders before it, in proportion to what they took;
/// redistribution to those of the layer's reshards; the forward of a layer that was fused to the
/// layer that did it. All rows together have the predicted step.
void add_predicted(Profile& profile, const PlacedNetwork& network, const Plan& plan);

}  // namespace lamina
