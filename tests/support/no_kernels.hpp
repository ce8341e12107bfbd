// A back end that has no kernels: for tests that ask for few of them, or only what it would do.
#pragma once

#include <lamina/kernels/backend.hpp>

namespace lamina::test {

class NoKernels : public Backend {
 public:
  std::string name() const override { return "none"; }
  std::string description() const override { return name(); }
  bool supports(const Precision&) const override { return true; }

  std::unique_ptr<WeightedKernel> conv(const ConvGeometry&, const Form&,
                                       const Epilogue&) const override {
    return nullptr;
  }
  std::unique_ptr<WeightedKernel> linear(std::int64_t, bool, const Form&,
                                         const Epilogue&) const override {
    return nullptr;
  }
  std::unique_ptr<NormKernel> batch_norm(const Form&, const Epilogue&) const override {
    return nullptr;
  }
  std::unique_ptr<UnaryKernel> activation(const Activation&, const Form&) const override {
    return nullptr;
  }
  std::unique_ptr<UnaryKernel> pool(const PoolGeometry&, const Form&) const override {
    return nullptr;
  }
  std::unique_ptr<UnaryKernel> lrn(const LrnGeometry&, const Form&) const override {
    return nullptr;
  }
  std::unique_ptr<UnaryKernel> softmax(const Form&) const override { return nullptr; }
  std::unique_ptr<UnaryKernel> reorder(const Form&, const Form&) const override { return nullptr; }
  std::unique_ptr<NaryKernel> sum(std::span<const Form>) const override { return nullptr; }
  std::unique_ptr<NaryKernel> concat(std::span<const Form>) const override { return nullptr; }
  std::unique_ptr<DropoutKernel> dropout(double, const Form&, const Shape&,
                                         const Box&) const override {
    return nullptr;
  }
  std::unique_ptr<LossKernel> softmax_cross_entropy(const LossGeometry&,
                                                    const Form&) const override {
    return nullptr;
  }
  std::unique_ptr<UpdateKernel> update(const UpdateRule&, std::vector<UpdatePart>) const override {
    return nullptr;
  }
  std::unique_ptr<SquaresKernel> squares(std::vector<SquaresPart>) const override {
    return nullptr;
  }
  void copy(const View&, const View&) const override {}
};

}  // namespace lamina::test
