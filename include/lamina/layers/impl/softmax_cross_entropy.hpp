// How the loss is placed, and what it costs.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/layers/softmax_cross_entropy.hpp>

namespace lamina {

LAMINA_INLINE SoftmaxCrossEntropy::SoftmaxCrossEntropy(Options o) : o_(o) {
  check(o_.label_smoothing >= 0 && o_.label_smoothing < 1,
        "label_smoothing must be in [0, 1), got ", o_.label_smoothing);
}

LAMINA_INLINE Shape SoftmaxCrossEntropy::output(std::span<const Shape> xs) const {
  only(xs);
  return {1, 5, 1, 1};
}

LAMINA_INLINE Cost SoftmaxCrossEntropy::cost(std::span<const Shape> xs, const Split& split,
                                             DType t) const {
  const Shape x = split.of_output(only(xs));
  const double n = double(x.size()), pass = double(size_of(t)) * n, rows = double(x.n * x.h * x.w);
  Cost cost{.forward = {5 * n, 2 * pass},  // reads x, writes p
            .input_grad = {2 * n, 2 * pass},
            .messages = {{Collective::all_reduce, Pass::forward, 5 * 8, Axis::batch}}};
  if (split.channel > 1)
    for (const double values : {2 * rows + 1, 3 * rows})
      cost.messages.push_back({Collective::all_reduce, Pass::forward, 8 * values, Axis::channel});
  return cost;
}

LAMINA_INLINE Placement SoftmaxCrossEntropy::place(std::span<const Spec> xs,
                                                   const Site& site) const {
  const std::int64_t classes = xs[0].whole.c, rows = xs[0].shape.n * xs[0].shape.h * xs[0].shape.w;
  const Part mine = site.part(Axis::channel, classes);
  auto placed = std::make_unique<Placed>();
  placed->kernel =
      site.backend().softmax_cross_entropy({o_.label_smoothing, classes, mine.begin}, xs[0]);
  placed->samples = xs[0].whole.n;
  placed->ranks = site.along(Axis::batch), placed->parts = site.along(Axis::channel);
  MemorySpace& memory = site.backend().memory();
  placed->p = Tensor(placed->kernel->output, memory);
  placed->maxima = Tensor({1, 2 * rows + 1, 1, 1}, DType::f64, memory);
  placed->sums = Tensor({3, rows, 1, 1}, DType::f64, memory);
  placed->rows = Tensor({1, 1, 1, 1}, DType::f64, memory);
  Placement p = placement_of(*placed->kernel);
  p.output = {{1, 5, 1, 1}, DType::f64, {}};
  p.reads_x = false;
  p.workspace += placed->p.bytes() + placed->maxima.bytes() + placed->sums.bytes();
  p.layer = std::move(placed);
  return p;
}

}  // namespace lamina
