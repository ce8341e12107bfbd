// Convolution of an image that is made of x beforehand, in the common scratchpad.
#pragma once

#include "cpu/onednn_widened.hpp"

#include <memory>
#include <string>
#include <utility>

namespace lamina::detail {

class CopiedConv : public WeightedKernel {
 public:
  void forward(Stream& stream, const View& x, const View& weights, const View& bias, const View& y,
               const View& added) final {
    check_operand(x, inputs[0], "conv");
    copy_in(stream, Pass::forward, x);
    inner_->forward(stream, image(), weights, bias, y, added);
  }
  void input_grad(Stream& stream, const View& weights, const View& dy, const View& dx) final {
    check_operand(dx, inputs[0], "conv");
    inner_->input_grad(stream, weights, dy, image());
    copy_out(stream, dx);
  }
  void weight_grad(Stream& stream, const View& x, const View& dy, const View& dw,
                   const View& db) final {
    check_operand(x, inputs[0], "conv");
    copy_in(stream, Pass::weight_grad, x);
    inner_->weight_grad(stream, image(), dy, dw, db);
  }

 protected:
  /// `inner` is that of the image that is made, `how` what is done to x for it, in a word.
  CopiedConv(const RuntimePtr& runtime, std::unique_ptr<WeightedKernel> inner, const Form& x,
             const std::string& how)
      : WeightedKernel(*inner), inner_(std::move(inner)) {
    room_ = Room(runtime, inner_->scratch, {inner_->inputs[0]});
    scratch = room_.end();
    inputs[0] = x;
    algorithm = how + ' ' + inner_->algorithm;
  }

  virtual void copy_in(Stream&, Pass, const View& x) = 0;  ///< makes image() of x
  virtual void copy_out(Stream&, const View& dx) = 0;      ///< and dx of its gradient
  View image() const { return room_[0]; }

 private:
  std::unique_ptr<WeightedKernel> inner_;
  Room room_;
};

}  // namespace lamina::detail
