// Dropout: in training, zeroes elements at random and scales up the others; else the identity.
#pragma once

#include <lamina/base/random.hpp>
#include <lamina/layers/layer.hpp>

namespace lamina {

/// y = mask x, dx = mask dy;  mask = 0 with probability `rate`, else 1/(1 - rate)
///
/// The mask is a function of the seed, the step, the layer and the element's index in the whole
/// tensor, across all ranks: it does not depend on their number. Sends nothing under any split.
class Dropout final : public Layer {
 public:
  struct Options {
    double rate = 0.5;
  };
  explicit Dropout(Options o) : o_(o) {
    check(o_.rate >= 0 && o_.rate < 1, "rate must be in [0, 1), got ", o_.rate);
  }

  std::string_view type() const override { return "Dropout"; }
  std::string describe() const override { return text(o_.rate); }
  Shape output(std::span<const Shape> xs) const override { return only(xs); }
  Axis splits() const override { return all_but_input; }

  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override {
    const double n = double(split.of_output(only(xs)).size());
    const Work once{n, 2 * double(size_of(t)) * n};
    return {.forward = once, .input_grad = once};
  }

  Placement place(std::span<const Spec> xs, const Site& site) override {
    const Box& box = xs[0].box;
    kernel_ = site.backend().dropout(o_.rate, xs[0], xs[0].whole,
                                     {box.n.begin, box.c.begin, box.h.begin, box.w.begin});
    copy_ = site.backend().reorder(kernel_->inputs[0], kernel_->output);
    Placement p = placed(*kernel_);
    p.reads_x = false, p.in_place = true;
    return p;
  }

  void forward(Context& context, std::span<const View> xs, const View& y) override {
    if (context.training)
      apply(context, Pass::forward, xs[0], y);
    else if (y.data != xs[0].data)
      copy_->forward(context.stream, xs[0], y);
  }

  void backward(Context& context, std::span<const View>, const View&, const View& dy,
                std::span<const View> dxs) override {
    if (dxs[0]) apply(context, Pass::input_grad, dy, dxs[0]);
  }

 private:
  void apply(Context& context, Pass pass, const View& from, const View& to) {
    const Random random(context.seed, std::uint64_t(context.step), std::uint64_t(context.layer));
    const std::uint64_t key = std::uint64_t(random.bits(0)) << 32 | random.bits(1);
    kernel_->apply(context.stream, pass, key, from, to);
  }

  Options o_;
  std::unique_ptr<DropoutKernel> kernel_;
  std::unique_ptr<UnaryKernel> copy_;  // for inference, where y does not lie in place
};

}  // namespace lamina
