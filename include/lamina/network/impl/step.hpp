// What a layer costs where it is placed.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/network/step.hpp>

namespace lamina {

LAMINA_INLINE Cost Step::cost(DType t) const {
  Cost cost = layer->cost(input_shapes, split(), t);
  cost.parameters *= trained;
  for (Message& m : cost.messages)
    if (m.pass == Pass::weight_grad) m.bytes *= trained;
  if (trained == 0 && layer->multiplies()) cost.weight_grad = {};
  if (absorbed()) cost.forward = cost.recompute = {};
  if (absorbed() && placement.alias) cost.input_grad = {};
  if (epilogue) {
    const Cost more = layer->epilogue_cost(epilogue, split().of_output(output.whole), t);
    cost.forward += more.forward, cost.recompute += more.recompute;
    cost.input_grad += more.input_grad, cost.weight_grad += more.weight_grad;
  }
  return cost;
}

}  // namespace lamina
