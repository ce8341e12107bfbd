// Reference softmax and cross-entropy, in the steps between which a layer may communicate.
#pragma once

#include <lamina/kernels/reference/common.hpp>

#include <cmath>
#include <limits>

namespace lamina::detail {

/// With K classes the target of a row is 1 - smoothing at its label plus smoothing/K everywhere;
/// loss = - sum of target * log p. A hit is a label that fewer than 1 (or 5) classes precede: those
/// of greater logit, of equal logit and smaller index, and those whose logit is NaN.
template <Floating T>
class ReferenceLoss final : public LossKernel {
 public:
  ReferenceLoss(const LossGeometry& g, const Form& x)
      : smoothing_(g.label_smoothing),
        pixels_(x.shape.h * x.shape.w),
        rows_(x.shape.n * pixels_),
        part_(x.shape.c),
        classes_(g.classes ? g.classes : part_),
        first_(g.first) {
    inputs = {x};
    output = {x.shape, dtype_of<P>, {}};
    algorithm = "loops";
    labels_ = {{x.shape.n, 1, x.shape.h, x.shape.w}, DType::i32, {}};
    largest_ = f64_vector(2 * rows_ + 1), sums_ = {{3, rows_, 1, 1}, DType::f64, {}};
  }

  void largest(Stream& stream, const View& x, const View& labels, const View& now,
               const View& largest) override {
    check_operand(x, inputs[0], "loss x"), check_operand(labels, labels_, "loss labels");
    check_operand(largest, largest_, "loss largest");
    check_operand(now, Passed<StepValues>::form(), "loss now");
    stream.run(Pass::forward, "loss_largest", [&] {
      double *top = largest.as<double>(), *at_label = top + rows_;
      for (Index n = 0; n < rows_; ++n) {
        const T* row = x.as<T>() + at(n, 0);
        const Index k = label_of(labels, n) - first_;
        const bool here = 0 <= k && k < part_ && !std::isnan(row[k * pixels_]);
        T most = row[0];
        for (Index i = 1; i < part_; ++i)
          if (most < row[i * pixels_]) most = row[i * pixels_];
        top[n] = most;
        at_label[n] = here ? row[k * pixels_] : -std::numeric_limits<double>::infinity();
      }
      at_label[rows_] = Passed<StepValues>::in(now).stop;
    });
  }

  void sums(Stream& stream, const View& x, const View& labels, const View& largest, const View& p,
            const View& sums) override {
    check_operand(x, inputs[0], "loss x"), check_operand(labels, labels_, "loss labels");
    check_operand(largest, largest_, "loss largest"), check_operand(p, output, "loss p");
    check_operand(sums, sums_, "loss sums");
    stream.run(Pass::forward, "loss_sums", [&] {
      const double *top = largest.as<double>(), *at_label = top + rows_;
      double *sum = sums.as<double>(), *logits = sum + rows_, *ahead = logits + rows_;
      for (Index n = 0; n < rows_; ++n) {
        const T* row = x.as<T>() + at(n, 0);
        const Index label = label_of(labels, n);
        sum[n] = logits[n] = 0;
        for (Index k = 0; k < part_; ++k) {
          const double e = std::exp(row[k * pixels_] - top[n]);
          p.as<P>()[at(n, k)] = P(e);
          sum[n] += e;
          logits[n] += row[k * pixels_];
        }
        ahead[n] = label < 0 ? 0 : double(preceding(row, label - first_, at_label[n]));
      }
    });
  }

  void finish(Stream& stream, const View& labels, const View& largest, const View& sums,
              const View& p, const View& totals) override {
    check_operand(labels, labels_, "loss labels"), check_operand(largest, largest_, "loss largest");
    check_operand(sums, sums_, "loss sums"), check_operand(p, output, "loss p");
    check_operand(totals, f64_vector(5), "loss totals");
    stream.run(Pass::forward, "loss_finish", [&] {
      const double *top = largest.as<double>(), *at_label = top + rows_;
      const double *sum = sums.as<double>(), *logits = sum + rows_, *ahead = logits + rows_;
      double loss = 0, top1 = 0, top5 = 0, count = 0;
      for (Index n = 0; n < rows_; ++n) {
        for (Index k = 0; k < part_; ++k) {
          P& value = p.as<P>()[at(n, k)];
          value = P(value / sum[n]);
        }
        if (label_of(labels, n) < 0) continue;
        loss += top[n] + std::log(sum[n]) - (1 - smoothing_) * at_label[n];
        if (smoothing_ > 0) loss -= smoothing_ * logits[n] / double(classes_);  // not 0 * infinity
        top1 += ahead[n] < 1;
        top5 += ahead[n] < 5;
        ++count;
      }
      const double all[] = {loss, top1, top5, count, at_label[rows_]};
      std::copy_n(all, 5, totals.as<double>());
    });
  }

  void mean(Stream& stream, const View& totals, const View& rows) override {
    check_operand(totals, f64_vector(5), "loss totals");
    check_operand(rows, f64_vector(1), "loss rows");
    stream.run(Pass::forward, "loss_mean", [&] {
      *rows.as<double>() = std::max(totals.as<double>()[3], 1.0);
      *totals.as<double>() /= *rows.as<double>();
    });
  }

  void input_grad(Stream& stream, const View& p, const View& labels, const View& rows,
                  double samples, const View& dx, const View& by) override {
    check_operand(p, output, "loss p"), check_operand(labels, labels_, "loss labels");
    check_operand(rows, f64_vector(1), "loss rows"), check_operand(dx, inputs[0], "loss dx");
    if (by) check_operand(by, f64_vector(1), "loss scale");
    stream.run(Pass::input_grad, "softmax_cross_entropy", [&] {
      const double scale =
          (by ? *by.as<double>() : 1) / (samples > 0 ? samples : *rows.as<double>());
      for (Index n = 0; n < rows_; ++n) {
        const Index label = label_of(labels, n);
        for (Index k = 0; k < part_; ++k) {
          const Index i = at(n, k);
          const double target =
              (first_ + k == label ? 1 - smoothing_ : 0) + smoothing_ / double(classes_);
          dx.as<T>()[i] = label < 0 ? T(0) : T(scale * (p.as<P>()[i] - target));
        }
      }
    });
  }

 private:
  using P = Wide<T>;  // of probabilities

  /// Where the logit of a class of x is.
  Index at(Index row, Index k) const {
    return (row / pixels_ * part_ + k) * pixels_ + row % pixels_;
  }

  Index label_of(const View& labels, Index n) const {
    const Index label = labels.as<std::int32_t>()[n];
    check(label < classes_, "loss: label ", label, " of row ", n,
          " is out of range: expected less than ", classes_);
    return label;
  }

  /// Of this part; `label` counts from its first class and may lie outside.
  Index preceding(const T* row, Index label, double at_label) const {
    if (0 <= label && label < part_ && std::isnan(row[label * pixels_])) return classes_ + 5;
    Index count = 0;
    for (Index k = 0; k < part_; ++k) {
      const T logit = row[k * pixels_];
      count += logit > at_label || std::isnan(logit) || (logit == at_label && k < label);
    }
    return count;
  }

  double smoothing_;
  Index pixels_, rows_;           // of a sample; of all
  Index part_, classes_, first_;  // the part of the classes that x has
  Form labels_, largest_, sums_;
};

}  // namespace lamina::detail
