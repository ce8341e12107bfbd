// How a kernel gets its weights out of plain ones.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/kernels/plain_weights.hpp>

#include <algorithm>
#include <utility>

namespace lamina {

namespace detail {

class PlainWeights final : public WeightedKernel {
 public:
  PlainWeights(const Backend& backend, std::unique_ptr<WeightedKernel> kernel, DType gradients)
      : WeightedKernel(*kernel), kernel_(std::move(kernel)), dw_(w) {
    dw_.dtype = gradients, w.layout = {};
    Form dw = w;
    dw.dtype = gradients;
    const Form& wanted = kernel_->w;
    room_ = Tensor(wanted.bytes() > dw_.bytes() ? wanted : dw_, backend.memory());
    from_plain_ = backend.reorder(w, wanted), to_plain_ = backend.reorder(dw_, dw);
    workspace += room_.bytes();
    scratch = std::max({scratch, from_plain_->scratch, to_plain_->scratch});
  }

  void forward(Stream& stream, const View& x, const View& weights, const View& bias, const View& y,
               const View& added) override {
    kernel_->forward(stream, x, wanted(stream, Pass::forward, weights), bias, y, added);
  }
  void input_grad(Stream& stream, const View& weights, const View& dy, const View& dx) override {
    kernel_->input_grad(stream, wanted(stream, Pass::input_grad, weights), dy, dx);
  }
  void weight_grad(Stream& stream, const View& x, const View& dy, const View& dw,
                   const View& db) override {
    const View made = room_.view().at(0, dw_);
    kernel_->weight_grad(stream, x, dy, made, db);
    stream.under(Pass::weight_grad, [&] { to_plain_->forward(stream, made, dw); });
  }

 private:
  View wanted(Stream& stream, Pass pass, const View& weights) const {
    const View to = room_.view().at(0, kernel_->w);
    stream.under(pass, [&] { from_plain_->forward(stream, weights, to); });
    return to;
  }

  std::unique_ptr<WeightedKernel> kernel_;
  Form dw_;  // as it makes it
  std::unique_ptr<UnaryKernel> from_plain_, to_plain_;
  Tensor room_;  // for either
};

}  // namespace detail

LAMINA_INLINE std::unique_ptr<WeightedKernel> with_plain_weights(
    const Backend& backend, std::unique_ptr<WeightedKernel> kernel, DType gradients) {
  if (kernel->w.layout.plain()) return kernel;
  return std::make_unique<detail::PlainWeights>(backend, std::move(kernel), gradients);
}

}  // namespace lamina
