// Dropout, and softmax with cross-entropy: on plain f32, by loops of our own.
#include "cpu/onednn_core.hpp"

#include <algorithm>
#include <cmath>

namespace lamina::detail {
namespace {

class Dropout final : public DropoutKernel {
 public:
  Dropout(double rate, const Form& x, const Shape& whole, const Shape& first)
      : rate_(rate), within_{x.shape, whole, first} {
    check_input(x, "dropout");
    check(rate >= 0 && rate < 1, "dropout: expected a rate from 0 to less than 1, got ", rate);
    // The mask goes by the index in n-c-h-w order.
    inputs = {{x.shape, x.dtype, {}}};
    output = inputs[0];
    algorithm = "lamina:philox";
  }

  void apply(Stream& stream, Pass pass, std::uint64_t key, const View& x, const View& y) override {
    check_operand(x, inputs[0], "dropout x"), check_operand(y, output, "dropout y");
    stream.run(pass, "dropout", [&] {
      dropout(DropoutMask(rate_, key), float(1 / (1 - rate_)), within_, x.as<float>(),
              y.as<float>());
    });
  }

 private:
  double rate_;
  Within within_;
};

/// With K classes the target of a row is 1 - smoothing at its label plus smoothing/K everywhere;
/// loss = - sum of target * log p. A hit is a label that fewer than 1 (or 5) classes precede: those
/// of greater logit, of equal logit and smaller index, and those whose logit is NaN.
class Loss final : public LossKernel {
 public:
  Loss(double smoothing, const Form& x) : smoothing_(smoothing) {
    check_input(x, "softmax_cross_entropy");
    check(x.shape.h == 1 && x.shape.w == 1,
          "softmax_cross_entropy: expected logits of height and width 1, got ", x);
    check(smoothing >= 0 && smoothing <= 1,
          "softmax_cross_entropy: expected label smoothing from 0 to 1, got ", smoothing);
    inputs = {{x.shape, x.dtype, {}}};
    output = inputs[0];
    labels_ = {{x.shape.n, 1, 1, 1}, DType::i32, {}};
    totals_ = {{1, 3, 1, 1}, DType::f64, {}};
    algorithm = "lamina:loops";
  }

  void forward(Stream& stream, const View& x, const View& labels, const View& p,
               const View& totals) override {
    check_operand(x, inputs[0], "loss x"), check_operand(labels, labels_, "loss labels");
    check_operand(p, output, "loss p"), check_operand(totals, totals_, "loss totals");
    stream.run(Pass::forward, "softmax_cross_entropy", [&] {
      const std::int64_t classes = x.shape.c;
      double loss = 0, top1 = 0, top5 = 0;
      for (std::int64_t n = 0; n < x.shape.n; ++n) {
        const float* row = x.as<float>() + n * classes;
        const std::int64_t label = label_of(labels, n, classes);
        const auto [log_sum, mean] = softmax(row, p.as<float>() + n * classes, classes);
        if (label < 0) continue;
        loss += log_sum - (1 - smoothing_) * row[label] - smoothing_ * mean;
        const std::int64_t ahead = preceding(row, classes, label);
        top1 += ahead < 1;
        top5 += ahead < 5;
      }
      double* sums = totals.as<double>();
      sums[0] = loss, sums[1] = top1, sums[2] = top5;
    });
  }

  void input_grad(Stream& stream, const View& p, const View& labels, double scale,
                  const View& dx) override {
    check_operand(p, output, "loss p"), check_operand(labels, labels_, "loss labels");
    check_operand(dx, inputs[0], "loss dx");
    stream.run(Pass::input_grad, "softmax_cross_entropy", [&] {
      const std::int64_t classes = p.shape.c;
      const double everywhere = smoothing_ / double(classes);
      for (std::int64_t n = 0; n < p.shape.n; ++n) {
        const std::int64_t label = label_of(labels, n, classes);
        const float* row = p.as<float>() + n * classes;
        float* to = dx.as<float>() + n * classes;
        for (std::int64_t k = 0; k < classes; ++k) {
          const double target = (k == label ? 1 - smoothing_ : 0) + everywhere;
          to[k] = label < 0 ? 0 : float(scale * (row[k] - target));
        }
      }
    });
  }

 private:
  struct Row {
    double log_sum, mean;  // log of the sum of exponentials; mean logit
  };

  static Row softmax(const float* x, float* p, std::int64_t classes) {
    const double top = *std::max_element(x, x + classes);
    double sum = 0, logits = 0;
    for (std::int64_t k = 0; k < classes; ++k) {
      p[k] = float(std::exp(x[k] - top));
      sum += p[k];
      logits += x[k];
    }
    for (std::int64_t k = 0; k < classes; ++k) p[k] = float(p[k] / sum);
    return {top + std::log(sum), logits / double(classes)};
  }

  static std::int64_t label_of(const View& labels, std::int64_t n, std::int64_t classes) {
    const std::int64_t label = labels.as<std::int32_t>()[n];
    check(label < classes, "loss: label ", label, " of row ", n,
          " is out of range: expected less than ", classes);
    return label;
  }

  static std::int64_t preceding(const float* row, std::int64_t classes, std::int64_t label) {
    if (std::isnan(row[label])) return classes + 5;
    std::int64_t count = 0;
    for (std::int64_t k = 0; k < classes; ++k) {
      count += row[k] > row[label] || std::isnan(row[k]) || (row[k] == row[label] && k < label);
    }
    return count;
  }

  double smoothing_;
  Form labels_, totals_;
};

}  // namespace

std::unique_ptr<DropoutKernel> make_dropout(double rate, const Form& x, const Shape& whole,
                                            const Shape& first) {
  return std::make_unique<Dropout>(rate, x, whole, first);
}
std::unique_ptr<LossKernel> make_loss(double label_smoothing, const Form& x) {
  return std::make_unique<Loss>(label_smoothing, x);
}

}  // namespace lamina::detail
