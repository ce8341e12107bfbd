// CudnnGraph: operations that cuDNN computes as one, and the ways that it has of doing so.
#pragma once

#include "cuda/libraries/cudnn.hpp"
#include "cuda/libraries/problem.hpp"

#include <lamina/kernels/choice.hpp>
#include <lamina/kernels/geometry.hpp>
#include <lamina/tensor/layout.hpp>

#include <span>
#include <string>
#include <vector>

namespace lamina::cuda {

/// A GPU as cuDNN has to know it. It need not be there to plan for it.
class Gpu {
 public:
  /// One that is there.
  explicit Gpu(int device);
  /// One by its properties, as JSON.
  explicit Gpu(const std::string& properties);
  const Descriptor& properties() const { return properties_; }

 private:
  Descriptor properties_;
};

/// An engine of cuDNN's, set up: a way of running a graph.
struct Engine {
  Descriptor config;
  std::string name;  ///< "cudnn:62", its number
  std::size_t workspace = 0;
  bool compiled = false;  ///< at run time, which takes seconds
};

/// Operands are numbered as they are made: where run() finds their addresses.
class CudnnGraph final : public Problem {
 public:
  /// Of elements of type `t`, whose products are added up in wide(t).
  explicit CudnnGraph(DType t) : elements_(t), sums_(wide(t)) {}

  /// In memory, n-h-w-c or k-r-s-c, at multiples of 16 bytes.
  int operand(const Shape& shape, DType t);
  /// What one operation hands to the next, of the type in which products are added up.
  int inner(const Shape& shape) { return tensor(shape, sums_, true); }

  /// One pass of a convolution: of x, w and y the last is computed in forward, x in input_grad, and
  /// w in weight_grad.
  void convolve(Pass pass, const ConvGeometry& g, int x, int w, int y);
  /// y = a + b, which may be of one row, for all rows of y.
  void add(int a, int b, int y);
  /// y = x above zero, 0 below, NaN where x is.
  void rectify(int x, int y);
  /// After the last operation.
  void finish();

  /// Those that do what is demanded, in the order in which cuDNN would try them.
  std::vector<Engine> engines(const Gpu& gpu, const Demands& demands = {}) const;
  /// Of engines that need not be compiled.
  std::vector<Way> ways(const LibrariesOnGpu& on) const override;
  /// Of operands, in order.
  std::span<const std::int64_t> numbers() const { return numbers_; }

 private:
  int tensor(const Shape& shape, DType t, bool inside);
  /// What both have; whoever calls it finalizes that.
  Descriptor& point_by_point(cudnnPointwiseMode_t mode, int x, int y);

  DType elements_, sums_;
  std::vector<Descriptor> tensors_, parts_, operations_;
  std::vector<std::int64_t> numbers_;
  Descriptor graph_;
};

class CudnnPlan final : public Plan {
 public:
  /// Throws Error where cuDNN cannot make it.
  CudnnPlan(const CudnnGraph& graph, const Engine& engine, const Gpu& gpu);

  std::size_t workspace() const override { return workspace_; }
  /// `operands`: as they are numbered.
  void run(Queue& queue, void* workspace, Addresses operands) override;

 private:
  struct Pack {
    std::vector<void*> addresses;  // the operands', and the workspace's
    Descriptor descriptor;
  };
  Pack& pack_of(void* workspace, Addresses operands);

  std::string name_;
  std::size_t workspace_;
  std::vector<std::int64_t> numbers_;
  Descriptor plan_;
  std::vector<Pack> packs_;
};

}  // namespace lamina::cuda
