// What a layer costs where it is placed.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/network/step.hpp>

namespace lamina {

LAMINA_INLINE Cost Step::cost(const Precision& precision, std::int64_t samples) const {
  std::vector<Shape> xs = input_shapes;
  Shape y = output.whole;
  Split alike = this->split();  // with as many samples on all
  alike.shares.batch = {};
  for (Shape& x : xs) x.n = samples * alike.batch;
  y.n = samples * alike.batch;
  Cost cost = layer->cost(xs, alike, precision.compute);
  cost.parameters *= trained;
  // The layer counts gradients of weights as if they were of the type in which it computes.
  const double from = double(size_of(precision.compute)), to = double(size_of(precision.gradients));
  for (Message& m : cost.messages)
    if (m.pass == Pass::weight_grad) m.bytes *= trained * to / from;
  if (layer->multiplies()) cost.weight_grad.bytes += cost.parameters * (to - from);
  if (trained == 0 && layer->multiplies()) cost.weight_grad = {};
  if (absorbed()) cost.forward = cost.recompute = {};
  if (absorbed() && placement.alias) cost.input_grad = {};
  if (epilogue) {
    const Cost more = layer->epilogue_cost(epilogue, alike.of_output(y), precision.compute);
    cost.forward += more.forward, cost.recompute += more.recompute;
    cost.input_grad += more.input_grad, cost.weight_grad += more.weight_grad;
  }
  return cost;
}

}  // namespace lamina
