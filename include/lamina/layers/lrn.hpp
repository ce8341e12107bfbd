// LRN: local response normalisation across channels (Krizhevsky et al., 2012).
#pragma once

#include <lamina/layers/unary.hpp>

namespace lamina {

/// y = x / (k + alpha/size * sum of x^2 over the `size` channels around it)^beta
///
/// split                   forward        backward
/// batch, height, width
/// channel                 halo of x      halo of dx
///
/// With channels cut, the kernel runs over the neighbours' channels, too: their y is dropped and
/// their dy is zero, so that each rank adds up what its own y says of dx.
class LRN final : public UnaryLayer {
 public:
  struct Options {
    std::int64_t size = 5;
    double alpha = 1e-4, beta = 0.75, k = 2;
  };
  explicit LRN(Options o);

  std::string_view type() const override { return "LRN"; }
  std::string describe() const override { return text("size ", o_.size); }
  std::string options() const override {
    return text(describe(), ", alpha ", exact(o_.alpha), ", beta ", exact(o_.beta), ", k ",
                exact(o_.k));
  }

  Axis halo_axes() const override { return Axis::channel; }
  Blocks halo_blocks(std::span<const Shape> xs, const Split& split) const override;
  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override;
  Placement place(std::span<const Spec> xs, const Site& site) const override;

 protected:
  std::unique_ptr<UnaryKernel> make(const Backend& backend, const Form& x) const override {
    return backend.lrn({o_.size, o_.alpha, o_.beta, o_.k}, x);
  }

 private:
  struct Placed;
  Options o_;
};

struct LRN::Placed final : PlacedUnary {
  void forward(Context& context, std::span<const View> xs, const View& y) override {
    PlacedUnary::forward(context, xs, wide.view() ? kernel_wide() : y);
    if (reorder) reorder->input_grad(context.stream, {}, {}, kernel_wide(), wide);
    if (wide.view()) cut.run(context.stream, Pass::forward, wide, y);
  }
  void backward(Context& context, std::span<const View> xs, const View& y, const View& dy,
                std::span<const View> dxs) override {
    if (wide.view()) widen.run(context.stream, Pass::input_grad, dy, wide);
    if (reorder) reorder->forward(context.stream, wide, kernel_wide());
    PlacedUnary::backward(context, xs, y, wide.view() ? kernel_wide() : dy, dxs);
  }
  const View& kernel_wide() const { return reorder ? reordered.view() : wide.view(); }

  Exchange cut, widen;  ///< on this rank alone: between its own channels and those it reads
  Tensor wide;          ///< y, or dy, of the channels it reads, plain
  std::unique_ptr<UnaryKernel> reorder;  ///< of that to how the kernel wants it, if otherwise
  Tensor reordered;
};

}  // namespace lamina
