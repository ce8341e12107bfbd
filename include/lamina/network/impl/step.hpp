// What a layer costs where it is placed.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/network/step.hpp>

namespace lamina {

LAMINA_INLINE Cost Step::cost(const Precision& precision) const {
  Cost cost = layer->cost(input_shapes, split(), precision.compute);
  cost.parameters *= trained;
  // The layer counts sums of gradients as if they were of the type in which it computes.
  const double wider = double(size_of(precision.gradients)) / double(size_of(precision.compute));
  for (Message& m : cost.messages)
    if (m.pass == Pass::weight_grad) m.bytes *= trained * wider;
  if (trained == 0 && layer->multiplies()) cost.weight_grad = {};
  if (absorbed()) cost.forward = cost.recompute = {};
  if (absorbed() && placement.alias) cost.input_grad = {};
  if (epilogue) {
    const Cost more =
        layer->epilogue_cost(epilogue, split().of_output(output.whole), precision.compute);
    cost.forward += more.forward, cost.recompute += more.recompute;
    cost.input_grad += more.input_grad, cost.weight_grad += more.weight_grad;
  }
  return cost;
}

}  // namespace lamina
