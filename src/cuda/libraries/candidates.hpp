// What libraries are asked for the passes of a convolution: graphs of cuDNN's and, where it is a
// product of matrices, that of cuBLAS.
#pragma once

#include "cuda/libraries/kernel.hpp"

namespace lamina::cuda {

/// A convolution of values of one type, in the form in which libraries are to see it.
struct Convolution {
  ConvGeometry geometry;
  Shape x;
  DType dtype = DType::f32;
  Epilogue epilogue = {};

  Shape w() const { return geometry.weight(x); }
  Shape y() const { return geometry.output(x); }
  /// All that the time of a pass depends on.
  std::string text(Pass pass) const;
};

/// A linear layer: a convolution of images of one position, all values of a sample being its
/// channels. They lie in the same order in x and in w.
Convolution as_convolution(std::int64_t features, bool bias, const Form& x, const Epilogue&);

/// Of operands x, w, b, added, y: with the epilogue in the graph where that can be, and behind it.
std::vector<Candidate> forward_candidates(const Convolution&);
/// Of w, dy, dx.
std::vector<Candidate> input_grad_candidates(const Convolution&);
/// Of x, dy, and dw in the type of x or in f32: the other one is null.
std::vector<Candidate> weight_grad_candidates(const Convolution&);

}  // namespace lamina::cuda
