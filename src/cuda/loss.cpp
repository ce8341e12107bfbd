// Softmax and cross-entropy by kernels/loss.
#include "kernels/loss.hpp"

#include "cuda/own_kernels.hpp"

namespace lamina::cuda {

namespace {

class OwnLoss final : public OnGpu<LossKernel> {
 public:
  OwnLoss(MemoryPointer memory, const LossGeometry& g, const Form& x) : OnGpu(std::move(memory)) {
    const Shape s = x.shape;
    loss_ = {x.dtype, s.n * s.h * s.w,  s.c, g.classes ? g.classes : s.c,
             g.first, g.label_smoothing};
    inputs = {nhwc(x)};
    output = nhwc(s, wide(x.dtype));
    algorithm = "own";
    labels_ = {{s.n, 1, s.h, s.w}, DType::i32, {}};
    largest_ = vector_of(2 * loss_.rows + 1), sums_ = {{3, loss_.rows, 1, 1}, DType::f64, {}};
  }

  void largest(Stream& stream, const View& x, const View& labels, const View& now,
               const View& largest) override {
    put(stream, Pass::forward, "loss_largest", [&](cudaStream_t s) {
      return loss_largest(s, loss_, logits(x), these(labels),
                          at<StepValues>(now, Passed<StepValues>::form(), "loss now"),
                          at<double>(largest, largest_, "loss largest"));
    });
  }
  void sums(Stream& stream, const View& x, const View& labels, const View& largest, const View& p,
            const View& sums) override {
    put(stream, Pass::forward, "loss_sums", [&](cudaStream_t s) {
      return loss_sums(s, loss_, logits(x), these(labels),
                       at<double>(largest, largest_, "loss largest"), at(p, output, "loss p"),
                       at<double>(sums, sums_, "loss sums"));
    });
  }
  void finish(Stream& stream, const View& labels, const View& largest, const View& sums,
              const View& p, const View& totals) override {
    put(stream, Pass::forward, "loss_finish", [&](cudaStream_t s) {
      return loss_finish(s, loss_, these(labels), at<double>(largest, largest_, "loss largest"),
                         at<double>(sums, sums_, "loss sums"), at(p, output, "loss p"),
                         at<double>(totals, vector_of(5), "loss totals"));
    });
  }
  void mean(Stream& stream, const View& totals, const View& rows) override {
    put(stream, Pass::forward, "loss_mean", [&](cudaStream_t s) {
      return loss_mean(s, at<double>(totals, vector_of(5), "loss totals"),
                       at<double>(rows, vector_of(1), "loss rows"));
    });
  }
  void input_grad(Stream& stream, const View& p, const View& labels, const View& rows,
                  double samples, const View& dx, const View& scale) override {
    put(stream, Pass::input_grad, "softmax_cross_entropy", [&](cudaStream_t s) {
      return loss_input_grad(s, loss_, at(p, output, "loss p"), these(labels),
                             at<double>(rows, vector_of(1), "loss rows"), samples,
                             at(dx, inputs[0], "loss dx"),
                             any<const double>(scale, vector_of(1), "loss scale"));
    });
  }

 private:
  const void* logits(const View& x) const { return at(x, inputs[0], "loss x"); }
  const std::int32_t* these(const View& labels) const {
    return at<std::int32_t>(labels, labels_, "loss labels");
  }

  Loss loss_;
  Form labels_, largest_, sums_;
};

}  // namespace

std::unique_ptr<LossKernel> make_loss(const MemoryPointer& memory, const LossGeometry& g,
                                      const Form& x) {
  check(g.label_smoothing >= 0 && g.label_smoothing <= 1,
        "softmax_cross_entropy: expected label smoothing from 0 to 1, got ", g.label_smoothing);
  return std::make_unique<OwnLoss>(memory, g, x);
}

}  // namespace lamina::cuda
