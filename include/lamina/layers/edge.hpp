// Edge: rows of y that wait for the halo of x, while all others are computed.
#pragma once

#include <lamina/cost/split.hpp>
#include <lamina/kernels/backend.hpp>

namespace lamina {

/// The kernel of a block runs while the halo of x travels, on zeros in its place. The few rows of y
/// whose windows see the halo are then wrong; when it has come, an Edge computes them anew, from
/// just the rows of x that they need, and writes them over. The same zeros are there in each step,
/// so that results depend on nothing else.
class Edge {
 public:
  /// For rows `x` of the plain `whole`, with the geometry of these rows alone; its y goes to the
  /// rows of block.output from `to` on. False where the back end has no way to do so with the
  /// weights as the kernel of the block wants them.
  bool place(const Backend& backend, const ConvGeometry& g, const Epilogue& e, const Form& whole,
             Part x, const WeightedKernel& block, std::int64_t to);

  std::size_t workspace() const { return kernel_->workspace + x_.bytes() + y_.bytes(); }
  std::size_t scratch() const;

  void forward(Stream& stream, const View& whole, const View& w, const View& b, const View& y) {
    take_->forward(stream, whole, x_);
    kernel_->forward(stream, x_, w, b, y_);
    give_->forward(stream, y_, y);
  }

 private:
  std::unique_ptr<WeightedKernel> kernel_;
  std::unique_ptr<UnaryKernel> take_, give_;
  Tensor x_, y_;
};

}  // namespace lamina
