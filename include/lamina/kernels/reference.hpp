// Reference: the back end that others are compared with. Plain n-c-h-w, all floating point numbers,
// one thread, Eigen for the matrix products and loops for the rest. Slow, complete and
// deterministic. With bf16 and f16 it computes in f32 and rounds once, when it writes.
#pragma once

#include <lamina/kernels/backend.hpp>

namespace lamina {

class Reference : public Backend {
 public:
  /// Kernels have their workspace in `memory`. They run on the host: in that of another device, or
  /// of none, they can be made and asked what they take, but not run.
  explicit Reference(MemorySpace& memory = host_memory()) : memory_(&memory) {}

  std::string name() const override { return "reference"; }
  std::string description() const override;
  bool supports(const Precision&) const override;
  MemorySpace& memory() const override { return *memory_; }

  bool fuses(Fusible, const Epilogue& e) const override { return e.rectifies(); }

  std::unique_ptr<WeightedKernel> conv(const ConvGeometry&, const Form& x,
                                       const Epilogue&) const override;
  std::unique_ptr<WeightedKernel> linear(std::int64_t features, bool bias, const Form& x,
                                         const Epilogue&) const override;
  /// The slope of leaky_relu must not be negative: its gradient is found from y.
  std::unique_ptr<UnaryKernel> activation(const Activation&, const Form& x) const override;
  std::unique_ptr<UnaryKernel> pool(const PoolGeometry&, const Form& x) const override;
  std::unique_ptr<UnaryKernel> lrn(const LrnGeometry&, const Form& x) const override;
  std::unique_ptr<UnaryKernel> softmax(const Form& x) const override;
  std::unique_ptr<UnaryKernel> reorder(const Form& x, const Form& y) const override;
  std::unique_ptr<UnaryKernel> reorder_rows(const Form& x, std::int64_t first, const Form& y,
                                            std::int64_t to, std::int64_t count) const override;
  std::unique_ptr<NaryKernel> sum(std::span<const Form> xs) const override;
  std::unique_ptr<NaryKernel> concat(std::span<const Form> xs) const override;
  std::unique_ptr<NormKernel> batch_norm(const Form& x, const Epilogue&) const override;
  std::unique_ptr<DropoutKernel> dropout(double rate, const Form& x, const Shape& whole,
                                         const Box& box) const override;
  std::unique_ptr<LossKernel> softmax_cross_entropy(const LossGeometry&,
                                                    const Form& x) const override;
  /// Between plain views of the same shape; converts between floating point numbers.
  void copy(const View& from, const View& to) const override;
  std::unique_ptr<UpdateKernel> update(const UpdateRule&, std::vector<UpdatePart>) const override;
  std::unique_ptr<SquaresKernel> squares(std::vector<SquaresPart>) const override;

 private:
  MemorySpace* memory_;
};

}  // namespace lamina
