// Add: the sum of tensors of one shape, where branches of a network meet.
#pragma once

#include <lamina/layers/layer.hpp>

namespace lamina {

/// y = x1 + x2 + ...;  every dx is dy itself, so backward does nothing. Sends nothing under any
/// split of samples, channels, rows or columns.
class Add final : public Layer {
 public:
  struct Options {};
  explicit Add(Options) {}

  std::string_view type() const override { return "Add"; }

  Shape output(std::span<const Shape> xs) const override;

  Axis splits() const override { return all_but_input; }
  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override;
  Placement place(std::span<const Spec> xs, const Site& site) const override;
  std::optional<Epilogue> as_epilogue() const override { return Epilogue{.add = true}; }

 private:
  struct Placed;
};

struct Add::Placed final : PlacedLayer {
  void forward(Context& context, std::span<const View> xs, const View& y) override {
    kernel->forward(context.stream, xs, y);
  }
  void backward(Context&, std::span<const View>, const View&, const View&,
                std::span<const View>) override {}

  std::unique_ptr<NaryKernel> kernel;
};

}  // namespace lamina
