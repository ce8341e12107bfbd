// How channels are padded, and what that costs.
#include <lamina/layers/pad_channels.hpp>

#include <vector>

namespace lamina {

PadChannels::PadChannels(Options o) : o_(o) {
  check(o_.channels > 0, "channels must be positive, got ", o_.channels);
}

Shape PadChannels::output(std::span<const Shape> xs) const {
  const Shape& x = only(xs);
  check(x.c < o_.channels, "expected less than ", o_.channels, " channels, got input ", x);
  return {x.n, o_.channels, x.h, x.w};
}

Cost PadChannels::cost(std::span<const Shape> xs, const Split& split, DType t) const {
  const double x = double(split.of_output(only(xs)).size()), s = double(size_of(t));
  const double y = double(split.of_output(output(xs)).size());
  return {.forward = {.bytes = s * (x + y)}, .input_grad = {.bytes = 2 * s * x}};
}

Placement PadChannels::place(std::span<const Spec> xs, const Site& site) {
  Form zeros = xs[0];
  zeros.shape.c = o_.channels - zeros.shape.c, zeros.layout = {};
  kernel_ = site.backend().concat(std::vector<Form>{xs[0], zeros});
  zeros_ = Tensor(kernel_->inputs[1]);  // zero in any layout
  Placement p = placed(*kernel_);
  p.inputs.resize(1), p.reads_x = false, p.workspace += zeros_.bytes();
  return p;
}

}  // namespace lamina
