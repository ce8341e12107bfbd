// Reference softmax and cross-entropy.
#pragma once

#include <lamina/kernels/reference/common.hpp>

#include <cmath>

namespace lamina::detail {

/// With K classes the target of a row is 1 - smoothing at its label plus smoothing/K everywhere;
/// loss = - sum of target * log p. A hit is a label that fewer than 1 (or 5) classes precede: those
/// of greater logit, of equal logit and smaller index, and those whose logit is NaN.
template <class T>
class ReferenceLoss final : public LossKernel {
 public:
  ReferenceLoss(double smoothing, const Form& x) : smoothing_(smoothing) {
    inputs = {x};
    output = x;
    algorithm = "loops";
    labels_ = {{x.shape.n, 1, 1, 1}, DType::i32, {}};
  }

  void forward(Stream& stream, const View& x, const View& labels, const View& p,
               const View& totals) override {
    expect(x, inputs[0], "loss x"), expect(labels, labels_, "loss labels");
    expect(p, output, "loss p"), expect(totals, f64_vector(3), "loss totals");
    stream.run(Pass::forward, "softmax_cross_entropy", [&] {
      const Index classes = x.shape.c;
      double loss = 0, top1 = 0, top5 = 0;
      for (Index n = 0; n < x.shape.n; ++n) {
        const T* row = x.as<T>() + n * classes;
        T* out = p.as<T>() + n * classes;
        const double log_sum = log_sum_exp(row, classes);
        double sum = 0;  // of all logits, for the smoothed part of the target
        for (Index k = 0; k < classes; ++k) {
          out[k] = T(std::exp(row[k] - log_sum));
          sum += row[k];
        }
        const Index label = label_of(labels, n, classes);
        if (label < 0) continue;
        loss += log_sum - (1 - smoothing_) * row[label] - smoothing_ * sum / double(classes);
        const Index ahead = preceding(row, classes, label);
        top1 += ahead < 1;
        top5 += ahead < 5;
      }
      totals.as<double>()[0] = loss;
      totals.as<double>()[1] = top1;
      totals.as<double>()[2] = top5;
    });
  }

  void input_grad(Stream& stream, const View& p, const View& labels, double scale,
                  const View& dx) override {
    expect(p, output, "loss p"), expect(labels, labels_, "loss labels");
    expect(dx, inputs[0], "loss dx");
    stream.run(Pass::input_grad, "softmax_cross_entropy", [&] {
      const Index classes = p.shape.c;
      for (Index n = 0; n < p.shape.n; ++n) {
        const Index label = label_of(labels, n, classes);
        for (Index k = 0; k < classes; ++k) {
          const Index i = n * classes + k;
          const double target = (k == label ? 1 - smoothing_ : 0) + smoothing_ / double(classes);
          dx.as<T>()[i] = label < 0 ? T(0) : T(scale * (p.as<T>()[i] - target));
        }
      }
    });
  }

 private:
  static double log_sum_exp(const T* row, Index classes) {
    const double top = *std::max_element(row, row + classes);
    double sum = 0;
    for (Index k = 0; k < classes; ++k) sum += std::exp(row[k] - top);
    return top + std::log(sum);
  }

  static Index label_of(const View& labels, Index n, Index classes) {
    const Index label = labels.as<std::int32_t>()[n];
    check(label < classes, "loss: label ", label, " of row ", n,
          " is out of range: expected less than ", classes);
    return label;
  }

  static Index preceding(const T* row, Index classes, Index label) {
    if (std::isnan(row[label])) return classes + 5;
    Index count = 0;
    for (Index k = 0; k < classes; ++k) {
      count += row[k] > row[label] || std::isnan(row[k]) || (row[k] == row[label] && k < label);
    }
    return count;
  }

  double smoothing_;
  Form labels_;
};

}  // namespace lamina::detail
