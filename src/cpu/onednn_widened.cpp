// bf16 by kernels for f32: what they read is widened before, and what they write is rounded once.
// For what oneDNN has not in bf16, or only slowly: it saves memory, not time.
#include "cpu/onednn_widened.hpp"

#include "cpu/onednn_weighted.hpp"

namespace lamina::detail {
namespace {

Form narrow(Form form) {
  form.dtype = DType::bf16;
  return form;
}

class WidenedWeights final : public WeightedKernel {
 public:
  WidenedWeights(const RuntimePtr& runtime, std::unique_ptr<WeightedKernel> kernel,
                 const Epilogue& e, bool forward_only)
      : kernel_(std::move(kernel)), epilogue_(e), wide_weights_(forward_only) {
    inputs = {narrow(kernel_->inputs[0])};
    output = narrow(kernel_->output);
    if (e.add) inputs.push_back(output);
    w = kernel_->w, b = kernel_->b;
    std::vector<Form> copies{kernel_->inputs[0], kernel_->output};
    if (!wide_weights_) {
      copies.insert(copies.end(), {w, b});
      w = narrow(w);
      if (b.shape.size() > 0) b = narrow(b);
    }
    room_ = Room(runtime, kernel_->scratch, copies);
    algorithm = text("f32:", kernel_->algorithm), remark = kernel_->remark;
    workspace = kernel_->workspace, dx_workspace = kernel_->dx_workspace;
    scratch = room_.end();
  }

  void forward(Stream& stream, const View& x, const View& w_, const View& b_, const View& y,
               const View& added) override {
    check_operand(x, inputs[0], "x"), check_operand(w_, w, "w"), check_operand(y, output, "y");
    if (epilogue_.add) check_operand(added, output, "added");
    stream.run(Pass::forward, "widen", [&] {
      widen(x, room_[0]);
      if (wide_weights_) return;
      widen(w_, room_[2]);
      if (b_) widen(b_, room_[3]);
    });
    if (wide_weights_)
      kernel_->forward(stream, room_[0], w_, b_, room_[1]);
    else
      kernel_->forward(stream, room_[0], room_[2], b_ ? room_[3] : View(), room_[1]);
    stream.run(Pass::forward, "round", [&] { round(room_[1], y); });
    if (epilogue_) run_epilogue(stream, epilogue_, y, added);
  }

  void input_grad(Stream& stream, const View& w_, const View& dy, const View& dx) override {
    check_operand(w_, w, "w"), check_operand(dy, output, "dy"), check_operand(dx, inputs[0], "dx");
    stream.run(Pass::input_grad, "widen", [&] { widen(w_, room_[2]), widen(dy, room_[1]); });
    kernel_->input_grad(stream, room_[2], room_[1], room_[0]);
    stream.run(Pass::input_grad, "round", [&] { round(room_[0], dx); });
  }

  void weight_grad(Stream& stream, const View& x, const View& dy, const View& dw,
                   const View& db) override {
    check_operand(x, inputs[0], "x"), check_operand(dy, output, "dy");
    stream.run(Pass::weight_grad, "widen", [&] { widen(x, room_[0]), widen(dy, room_[1]); });
    kernel_->weight_grad(stream, room_[0], room_[1], dw, db);
  }

 private:
  std::unique_ptr<WeightedKernel> kernel_;
  Epilogue epilogue_;
  bool wide_weights_;
  Room room_;
};

class WidenedUnary final : public UnaryKernel {
 public:
  WidenedUnary(const RuntimePtr& runtime, std::unique_ptr<UnaryKernel> kernel)
      : kernel_(std::move(kernel)),
        room_(runtime, kernel_->scratch,
              {kernel_->inputs[0], kernel_->output, kernel_->output, kernel_->inputs[0]}) {
    inputs = {narrow(kernel_->inputs[0])};
    output = narrow(kernel_->output);
    algorithm = text("f32:", kernel_->algorithm), remark = kernel_->remark;
    workspace = kernel_->workspace, scratch = room_.end();
    reads_x = kernel_->reads_x, reads_y = kernel_->reads_y;
    in_place = inputs[0] == output;  // of copies
  }

  void forward(Stream& stream, const View& x, const View& y) override {
    check_operand(x, inputs[0], "x"), check_operand(y, output, "y");
    stream.run(Pass::forward, "widen", [&] { widen(x, room_[0]); });
    kernel_->forward(stream, room_[0], room_[1]);
    stream.run(Pass::forward, "round", [&] { round(room_[1], y); });
  }

  void input_grad(Stream& stream, const View& x, const View& y, const View& dy,
                  const View& dx) override {
    check_operand(dy, output, "dy"), check_operand(dx, inputs[0], "dx");
    stream.run(Pass::input_grad, "widen", [&] {
      if (reads_x) widen(x, room_[0]);
      if (reads_y) widen(y, room_[1]);
      widen(dy, room_[2]);
    });
    kernel_->input_grad(stream, reads_x ? room_[0] : View(), reads_y ? room_[1] : View(), room_[2],
                        room_[3]);
    stream.run(Pass::input_grad, "round", [&] { round(room_[3], dx); });
  }

 private:
  std::unique_ptr<UnaryKernel> kernel_;
  Room room_;
};

}  // namespace

std::unique_ptr<WeightedKernel> make_widened(RuntimePtr runtime,
                                             std::unique_ptr<WeightedKernel> kernel,
                                             const Epilogue& e, bool forward_only) {
  return std::make_unique<WidenedWeights>(runtime, std::move(kernel), e, forward_only);
}
std::unique_ptr<UnaryKernel> make_widened(RuntimePtr runtime, std::unique_ptr<UnaryKernel> kernel) {
  return std::make_unique<WidenedUnary>(runtime, std::move(kernel));
}

}  // namespace lamina::detail
