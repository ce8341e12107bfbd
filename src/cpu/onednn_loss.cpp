// Dropout, and softmax with cross-entropy: on plain f32, by loops of our own.
#include "cpu/onednn_core.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

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
  Loss(const LossGeometry& g, const Form& x)
      : smoothing_(g.label_smoothing),
        classes_(g.classes ? g.classes : x.shape.c),
        first_(g.first) {
    check_input(x, "softmax_cross_entropy");
    check(x.shape.h == 1 && x.shape.w == 1,
          "softmax_cross_entropy: expected logits of height and width 1, got ", x);
    check(smoothing_ >= 0 && smoothing_ <= 1,
          "softmax_cross_entropy: expected label smoothing from 0 to 1, got ", smoothing_);
    inputs = {{x.shape, x.dtype, {}}};
    output = inputs[0];
    labels_ = {{x.shape.n, 1, 1, 1}, DType::i32, {}};
    largest_ = {{2, x.shape.n, 1, 1}, DType::f64, {}};
    sums_ = {{3, x.shape.n, 1, 1}, DType::f64, {}};
    totals_ = {{1, 3, 1, 1}, DType::f64, {}};
    algorithm = "lamina:loops";
  }

  void largest(Stream& stream, const View& x, const View& labels, const View& largest) override {
    check_operand(x, inputs[0], "loss x"), check_operand(labels, labels_, "loss labels");
    check_operand(largest, largest_, "loss largest");
    stream.run(Pass::forward, "loss_largest", [&] {
      double *top = largest.as<double>(), *at_label = top + rows();
      for (std::int64_t n = 0; n < rows(); ++n) {
        const float* row = x.as<float>() + n * part();
        const std::int64_t k = label_of(labels, n) - first_;
        const bool here = 0 <= k && k < part() && !std::isnan(row[k]);
        top[n] = *std::max_element(row, row + part());
        at_label[n] = here ? row[k] : -std::numeric_limits<double>::infinity();
      }
    });
  }

  void sums(Stream& stream, const View& x, const View& labels, const View& largest, const View& p,
            const View& sums) override {
    check_operand(x, inputs[0], "loss x"), check_operand(labels, labels_, "loss labels");
    check_operand(largest, largest_, "loss largest"), check_operand(p, output, "loss p");
    check_operand(sums, sums_, "loss sums");
    stream.run(Pass::forward, "loss_sums", [&] {
      const double *top = largest.as<double>(), *at_label = top + rows();
      double *sum = sums.as<double>(), *logits = sum + rows(), *ahead = logits + rows();
      const std::int64_t classes = part();
      for (std::int64_t n = 0; n < rows(); ++n) {
        const float* row = x.as<float>() + n * part();
        float* to = p.as<float>() + n * part();
        const double most = top[n];
        double exponentials = 0, all = 0;
        for (std::int64_t k = 0; k < classes; ++k) {
          to[k] = float(std::exp(row[k] - most));
          exponentials += to[k];
          all += row[k];
        }
        const std::int64_t label = label_of(labels, n);
        sum[n] = exponentials, logits[n] = all;
        ahead[n] = label < 0 ? 0 : double(preceding(row, label - first_, float(at_label[n])));
      }
    });
  }

  void finish(Stream& stream, const View& labels, const View& largest, const View& sums,
              const View& p, const View& totals) override {
    check_operand(labels, labels_, "loss labels"), check_operand(largest, largest_, "loss largest");
    check_operand(sums, sums_, "loss sums"), check_operand(p, output, "loss p");
    check_operand(totals, totals_, "loss totals");
    stream.run(Pass::forward, "loss_finish", [&] {
      const double *top = largest.as<double>(), *at_label = top + rows();
      const double *sum = sums.as<double>(), *logits = sum + rows(), *ahead = logits + rows();
      double loss = 0, top1 = 0, top5 = 0;
      for (std::int64_t n = 0; n < rows(); ++n) {
        float* to = p.as<float>() + n * part();
        const double all = sum[n];
        for (std::int64_t k = 0; k < part(); ++k) to[k] = float(to[k] / all);
        if (label_of(labels, n) < 0) continue;
        loss += top[n] + std::log(sum[n]) - (1 - smoothing_) * at_label[n] -
                smoothing_ * logits[n] / double(classes_);
        top1 += ahead[n] < 1;
        top5 += ahead[n] < 5;
      }
      double* to = totals.as<double>();
      to[0] = loss, to[1] = top1, to[2] = top5;
    });
  }

  void input_grad(Stream& stream, const View& p, const View& labels, double scale,
                  const View& dx) override {
    check_operand(p, output, "loss p"), check_operand(labels, labels_, "loss labels");
    check_operand(dx, inputs[0], "loss dx");
    stream.run(Pass::input_grad, "softmax_cross_entropy", [&] {
      const double everywhere = smoothing_ / double(classes_);
      for (std::int64_t n = 0; n < rows(); ++n) {
        const std::int64_t label = label_of(labels, n);
        const float* row = p.as<float>() + n * part();
        float* to = dx.as<float>() + n * part();
        for (std::int64_t k = 0; k < part(); ++k) {
          const double target = (first_ + k == label ? 1 - smoothing_ : 0) + everywhere;
          to[k] = label < 0 ? 0 : float(scale * (row[k] - target));
        }
      }
    });
  }

 private:
  std::int64_t rows() const { return output.shape.n; }
  std::int64_t part() const { return output.shape.c; }  // of the classes

  std::int64_t label_of(const View& labels, std::int64_t n) const {
    const std::int64_t label = labels.as<std::int32_t>()[n];
    check(label < classes_, "loss: label ", label, " of row ", n,
          " is out of range: expected less than ", classes_);
    return label;
  }

  // Of this part; `label` counts from its first class and may lie outside.
  std::int64_t preceding(const float* row, std::int64_t label, float at_label) const {
    if (0 <= label && label < part() && std::isnan(row[label])) return classes_ + 5;
    std::int64_t count = 0;
    for (std::int64_t k = 0, classes = part(); k < classes; ++k) {
      count += row[k] > at_label || std::isnan(row[k]) || (row[k] == at_label && k < label);
    }
    return count;
  }

  double smoothing_;
  std::int64_t classes_, first_;
  Form labels_, largest_, sums_, totals_;
};

}  // namespace

std::unique_ptr<DropoutKernel> make_dropout(double rate, const Form& x, const Shape& whole,
                                            const Shape& first) {
  return std::make_unique<Dropout>(rate, x, whole, first);
}
std::unique_ptr<LossKernel> make_loss(const LossGeometry& g, const Form& x) {
  return std::make_unique<Loss>(g, x);
}

}  // namespace lamina::detail
