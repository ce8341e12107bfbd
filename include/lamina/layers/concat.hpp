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

  Shape output(std::span<const Shape> xs) const override;

  Axis splits() const override { return all_but_input; }
  Blocks input_blocks(std::size_t i, std::span<const Shape> xs, const Split& split,
                      int ranks) const override;
  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override;
  Placement place(std::span<const Spec> xs, const Site& site) const override;

 private:
  struct Placed;
};

struct Concat::Placed final : PlacedLayer {
  void forward(Context& context, std::span<const View> xs, const View& y) override {
    kernel->forward(context.stream, mine(xs), y);
  }
  void backward(Context& context, std::span<const View>, const View&, const View& dy,
                std::span<const View> dxs) override {
    kernel->input_grad(context.stream, dy, mine(dxs));
  }

  /// Of all inputs, those of which this rank has something.
  std::span<const View> mine(std::span<const View> all) {
    for (std::size_t i = 0; i < numbers.size(); ++i) given[i] = all[numbers[i]];
    return given;
  }

  std::unique_ptr<NaryKernel> kernel;
  std::vector<std::size_t> numbers;  ///< of those inputs
  std::vector<View> given;
};

}  // namespace lamina
