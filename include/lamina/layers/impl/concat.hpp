// How concatenations are placed, and what they cost.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/layers/concat.hpp>

namespace lamina {

LAMINA_INLINE Shape Concat::output(std::span<const Shape> xs) const {
  check(xs.size() >= 2, "expected at least two inputs, got ", xs.size());
  Shape y = xs[0];
  for (const Shape& x : xs.subspan(1)) {
    check(x.n == y.n && x.h == y.h && x.w == y.w,
          "expected inputs that differ in channels only, got ", xs[0], " and ", x);
    y.c += x.c;
  }
  return y;
}

LAMINA_INLINE Blocks Concat::input_blocks(std::size_t i, std::span<const Shape> xs,
                                          const Split& split, int ranks) const {
  std::int64_t first = 0;  // of x in y
  for (const Shape& x : xs.first(i)) first += x.c;
  return output_blocks(xs, split, ranks).of_channels({first, xs[i].c});
}

LAMINA_INLINE Cost Concat::cost(std::span<const Shape> xs, const Split& split, DType t) const {
  const double y = double(split.of_output(output(xs)).size());
  const Work copy{.bytes = 2 * double(size_of(t)) * y};
  return {.forward = copy, .input_grad = copy};
}

LAMINA_INLINE Placement Concat::place(std::span<const Spec> xs, const Site& site) const {
  auto placed = std::make_unique<Placed>();
  std::vector<std::size_t>& mine = placed->numbers;
  std::vector<Form> forms;
  for (std::size_t i = 0; i < xs.size(); ++i)
    if (xs[i].shape.size() > 0) forms.push_back(xs[i]), mine.push_back(i);
  placed->kernel = site.backend().concat(forms);
  placed->given.resize(mine.size());
  Placement p = placement_of(*placed->kernel);
  p.inputs.assign(xs.begin(), xs.end());
  for (std::size_t i = 0; i < mine.size(); ++i) p.inputs[mine[i]] = placed->kernel->inputs[i];
  p.reads_x = false;
  p.layer = std::move(placed);
  return p;
}

}  // namespace lamina
