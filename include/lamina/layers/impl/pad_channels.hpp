// How channels are padded, and what that costs.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/layers/pad_channels.hpp>

#include <algorithm>
#include <array>
#include <vector>

namespace lamina {

LAMINA_INLINE PadChannels::PadChannels(Options o) : o_(o) {
  check(o_.channels > 0, "channels must be positive, got ", o_.channels);
}

LAMINA_INLINE Shape PadChannels::output(std::span<const Shape> xs) const {
  const Shape& x = only(xs);
  check(x.c < o_.channels, "expected less than ", o_.channels, " channels, got input ", x);
  return {x.n, o_.channels, x.h, x.w};
}

LAMINA_INLINE Cost PadChannels::cost(std::span<const Shape> xs, const Split& split, DType t) const {
  const Shape y = split.of_output(output(xs));
  Shape x = y;
  x.c = std::min(y.c, only(xs).c);
  const double read = double(size_of(t)) * double(x.size());
  return {.forward = {.bytes = read + double(size_of(t)) * double(y.size())},
          .input_grad = {.bytes = 2 * read}};
}

LAMINA_INLINE Placement PadChannels::place(std::span<const Spec> xs, const Site& site) const {
  const std::array whole{xs[0].whole};
  const auto me = std::size_t(site.ranks().rank());
  Form zeros{
      output_blocks(whole, site.split(), site.ranks().size()).box[me].shape(), xs[0].dtype, {}};
  zeros.shape.c -= xs[0].shape.c;
  auto placed = std::make_unique<Placed>();
  std::vector<Form> forms;
  placed->has_x = xs[0].shape.size() > 0;
  if (placed->has_x) forms.push_back(xs[0]);
  if (zeros.shape.c > 0) forms.push_back(zeros);
  placed->kernel = site.backend().concat(forms);
  Placement p = placement_of(*placed->kernel);
  if (zeros.shape.c > 0)  // zero in any layout
    placed->zeros = Tensor(p.inputs.back(), site.backend().memory());
  p.inputs = {placed->has_x ? p.inputs[0] : xs[0].form()};
  p.reads_x = false, p.workspace += placed->zeros.bytes();
  p.layer = std::move(placed);
  return p;
}

}  // namespace lamina
