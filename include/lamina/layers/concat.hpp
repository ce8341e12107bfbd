// Concat: tensors one after the other along the channels.
#pragma once

#include <lamina/layers/layer.hpp>

namespace lamina {

/// y = [x1, x2, ...] along c;  each dx is its channels of dy. Sends nothing under any split: where
/// the channels of y are cut, a rank takes those of each x that are among its own, maybe none; the
/// network reshards the inputs accordingly.
class Concat final : public Layer {
 public:
  struct Options {};
  explicit Concat(Options) {}

  std::string_view type() const override { return "Concat"; }

  Shape output(std::span<const Shape> xs) const override {
    check(xs.size() >= 2, "expected at least two inputs, got ", xs.size());
    Shape y = xs[0];
    for (const Shape& x : xs.subspan(1)) {
      check(x.n == y.n && x.h == y.h && x.w == y.w,
            "expected inputs that differ in channels only, got ", xs[0], " and ", x);
      y.c += x.c;
    }
    return y;
  }

  Axis splits() const override { return all_but_input; }
  Blocks input_blocks(std::size_t i, std::span<const Shape> xs, const Split& split,
                      int ranks) const override {
    Blocks blocks = output_blocks(xs, split, ranks);
    blocks.whole = xs[i];
    std::int64_t first = 0;  // of x in y
    for (const Shape& x : xs.first(i)) first += x.c;
    for (std::size_t r = 0; r < blocks.box.size(); ++r) {
      Box& b = blocks.box[r];
      b.c = common(b.c, {first, xs[i].c});
      b.c.begin -= first;
      if (b.empty()) b = {}, blocks.number[r] = -1;
    }
    return blocks;
  }

  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override {
    const double y = double(split.of_output(output(xs)).size());
    const Work copy{.bytes = 2 * double(size_of(t)) * y};
    return {.forward = copy, .input_grad = copy};
  }

  Placement place(std::span<const Spec> xs, const Site& site) override {
    std::vector<Form> forms;
    for (std::size_t i = 0; i < xs.size(); ++i)
      if (xs[i].shape.size() > 0) forms.push_back(xs[i]), mine_.push_back(i);
    kernel_ = site.backend().concat(forms);
    given_.resize(mine_.size());
    Placement p = placed(*kernel_);
    p.inputs.assign(xs.begin(), xs.end());
    for (std::size_t i = 0; i < mine_.size(); ++i) p.inputs[mine_[i]] = kernel_->inputs[i];
    p.reads_x = false;
    return p;
  }

  void forward(Context& context, std::span<const View> xs, const View& y) override {
    kernel_->forward(context.stream, mine(xs), y);
  }
  void backward(Context& context, std::span<const View>, const View&, const View& dy,
                std::span<const View> dxs) override {
    kernel_->input_grad(context.stream, dy, mine(dxs));
  }

 private:
  /// Of all inputs, those of which this rank has something.
  std::span<const View> mine(std::span<const View> all) {
    for (std::size_t i = 0; i < mine_.size(); ++i) given_[i] = all[mine_[i]];
    return given_;
  }

  std::unique_ptr<NaryKernel> kernel_;
  std::vector<std::size_t> mine_;  // numbers of those inputs
  std::vector<View> given_;
};

}  // namespace lamina
