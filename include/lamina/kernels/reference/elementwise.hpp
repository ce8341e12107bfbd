// Reference operations on single elements: activations, sum, concatenation, copies and dropout.
#pragma once

#include <lamina/kernels/dropout_mask.hpp>
#include <lamina/kernels/reference/common.hpp>

#include <cmath>

namespace lamina::detail {

/// Gradients are functions of y alone, so that y may overwrite x.
template <Floating T>
class ReferenceActivation final : public UnaryKernel {
 public:
  ReferenceActivation(const Activation& a, const Form& x) : a_(a) {
    constexpr const char* names[] = {"relu", "leaky_relu", "sigmoid", "tanh"};
    what_ = names[int(a.kind)];
    inputs = {x};
    output = x;
    algorithm = "loops";
    in_place = true;
    reads_x = false;
    reads_y = true;
  }

  void forward(Stream& stream, const View& x, const View& y) override {
    check_operand(x, inputs[0], what_), check_operand(y, output, what_);
    stream.run(Pass::forward, what_, [&] {
      const Index size = x.shape.size();
      for (Index i = 0; i < size; ++i) y.as<T>()[i] = T(value(x.as<T>()[i]));
    });
  }

  void input_grad(Stream& stream, const View&, const View& y, const View& dy,
                  const View& dx) override {
    check_operand(y, output, what_), check_operand(dy, output, what_);
    check_operand(dx, inputs[0], what_);
    stream.run(Pass::input_grad, what_, [&] {
      const Index size = y.shape.size();
      for (Index i = 0; i < size; ++i) dx.as<T>()[i] = T(dy.as<T>()[i] * slope(y.as<T>()[i]));
    });
  }

 private:
  using Number = Wide<T>;

  Number value(Number x) const {
    switch (a_.kind) {
      case Activation::Kind::relu:
        return x <= 0 ? 0 : x;  // NaN stays NaN
      case Activation::Kind::leaky_relu:
        return x <= 0 ? Number(a_.slope) * x : x;
      case Activation::Kind::sigmoid:
        return 1 / (1 + std::exp(-x));
      case Activation::Kind::tanh:
        return std::tanh(x);
    }
    return x;
  }

  /// dy/dx where the value is y.
  Number slope(Number y) const {
    switch (a_.kind) {
      case Activation::Kind::relu:
        return y <= 0 ? 0 : 1;
      case Activation::Kind::leaky_relu:
        return y <= 0 ? Number(a_.slope) : 1;
      case Activation::Kind::sigmoid:
        return y * (1 - y);
      case Activation::Kind::tanh:
        return 1 - y * y;
    }
    return 1;
  }

  Activation a_;
  const char* what_;
};

/// A plain copy: all layouts of this back end are the same one. Types of elements may differ.
class ReferenceReorder final : public UnaryKernel {
 public:
  ReferenceReorder(const Form& x, const Form& y) {
    inputs = {x};
    output = y;
    algorithm = "copy";
    in_place = x == y;
    reads_x = false;
  }

  void forward(Stream& stream, const View& x, const View& y) override {
    check_operand(x, inputs[0], "reorder"), check_operand(y, output, "reorder");
    move(stream, Pass::forward, x, y);
  }
  void input_grad(Stream& stream, const View&, const View&, const View& dy,
                  const View& dx) override {
    check_operand(dy, output, "reorder"), check_operand(dx, inputs[0], "reorder");
    move(stream, Pass::input_grad, dy, dx);
  }

 private:
  void move(Stream& stream, Pass pass, const View& from, const View& to) {
    stream.run(pass, "reorder", [&] {
      if (from.dtype != to.dtype) return convert(from, to);
      if (from.data != to.data) std::memcpy(to.data, from.data, to.bytes());
    });
  }
};

/// Some rows of plain tensors.
class ReferenceRows final : public UnaryKernel {
 public:
  ReferenceRows(const Form& x, std::int64_t first, const Form& y, std::int64_t to,
                std::int64_t count)
      : first_(first), to_(to), count_(count) {
    inputs = {x};
    output = y;
    algorithm = "copy";
    reads_x = false;
  }

  void forward(Stream& stream, const View& x, const View& y) override {
    check_operand(x, inputs[0], "reorder"), check_operand(y, output, "reorder");
    stream.run(Pass::forward, "reorder", [&] { copy(x, first_, y, to_); });
  }
  void input_grad(Stream& stream, const View&, const View&, const View& dy,
                  const View& dx) override {
    check_operand(dy, output, "reorder"), check_operand(dx, inputs[0], "reorder");
    stream.run(Pass::input_grad, "reorder", [&] { copy(dy, to_, dx, first_); });
  }

 private:
  void copy(const View& from, std::int64_t a, const View& to, std::int64_t b) const {
    const std::size_t row = std::size_t(from.shape.w) * size_of(from.dtype);
    for (std::int64_t i = 0; i < from.shape.n * from.shape.c; ++i)
      std::memcpy(to.as<char>() + std::size_t(i * to.shape.h + b) * row,
                  from.as<char>() + std::size_t(i * from.shape.h + a) * row,
                  std::size_t(count_) * row);
  }

  std::int64_t first_, to_, count_;
};

/// y may be the same buffer as the first x, and each dx the same as dy.
template <Floating T>
class ReferenceSum final : public NaryKernel {
 public:
  explicit ReferenceSum(std::span<const Form> xs) {
    inputs.assign(xs.begin(), xs.end());
    output = xs[0];
    algorithm = "loops";
  }

  void forward(Stream& stream, std::span<const View> xs, const View& y) override {
    check(xs.size() == inputs.size(), "sum: expected ", inputs.size(), " inputs, got ", xs.size());
    for (const View& x : xs) check_operand(x, output, "sum x");
    check_operand(y, output, "sum y");
    stream.run(Pass::forward, "sum", [&] {
      const Index size = y.shape.size();
      for (Index i = 0; i < size; ++i) {
        Wide<T> sum = 0;
        for (const View& x : xs) sum += x.as<T>()[i];
        y.as<T>()[i] = T(sum);
      }
    });
  }

  void input_grad(Stream& stream, const View& dy, std::span<const View> dxs) override {
    check(dxs.size() == inputs.size(), "sum: expected ", inputs.size(), " gradients, got ",
          dxs.size());
    check_operand(dy, output, "sum dy");
    stream.run(Pass::input_grad, "sum", [&] {
      for (const View& dx : dxs) {
        if (!dx || dx.data == dy.data) continue;
        check_operand(dx, output, "sum dx");
        std::memcpy(dx.data, dy.data, dy.bytes());
      }
    });
  }
};

template <Floating T>
class ReferenceConcat final : public NaryKernel {
 public:
  explicit ReferenceConcat(std::span<const Form> xs) {
    inputs.assign(xs.begin(), xs.end());
    output = xs[0];
    for (const Form& x : xs.subspan(1)) output.shape.c += x.shape.c;
    algorithm = "copy";
  }

  void forward(Stream& stream, std::span<const View> xs, const View& y) override {
    check_operand(y, output, "concat y");
    stream.run(Pass::forward, "concat", [&] {
      each_part(xs, [&](const View& x, Index from, Index to, Index size) {
        std::copy_n(x.as<T>() + from, size, y.as<T>() + to);
      });
    });
  }

  void input_grad(Stream& stream, const View& dy, std::span<const View> dxs) override {
    check_operand(dy, output, "concat dy");
    stream.run(Pass::input_grad, "concat", [&] {
      each_part(dxs, [&](const View& dx, Index to, Index from, Index size) {
        std::copy_n(dy.as<T>() + from, size, dx.as<T>() + to);
      });
    });
  }

 private:
  /// Calls f(input, offset in it, offset in the output, elements) for every sample of every input
  /// that is there.
  template <class F>
  void each_part(std::span<const View> parts, F&& f) const {
    check(parts.size() == inputs.size(), "concat: expected ", inputs.size(), " operands, got ",
          parts.size());
    Index before = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const Index size = inputs[i].shape.sample();
      if (parts[i]) {
        check_operand(parts[i], inputs[i], "concat");
        for (Index n = 0; n < output.shape.n; ++n) {
          f(parts[i], n * size, n * output.shape.sample() + before, size);
        }
      }
      before += size;
    }
  }
};

template <Floating T>
class ReferenceDropout final : public DropoutKernel {
 public:
  ReferenceDropout(double rate, const Form& x, const Shape& whole, const Box& box)
      : rate_(rate), whole_(Box::of(whole)), box_(box) {
    inputs = {x};
    output = x;
    algorithm = "loops";
  }

  void apply(Stream& stream, Pass pass, const View& now, std::int32_t layer, const View& x,
             const View& y) override {
    check_operand(x, inputs[0], "dropout x"), check_operand(y, output, "dropout y");
    check_operand(now, Passed<StepValues>::form(), "dropout now");
    stream.run(pass, "dropout", [&] {
      const DropoutMask mask(rate_, Passed<StepValues>::in(now), layer, whole_.size());
      const auto scale = Wide<T>(1 / (1 - rate_));
      for_runs(box_, whole_, box_, [&](Index at, Index first, Index length) {
        mask.each(std::uint64_t(at), length, [&](Index i, bool keep) {
          y.as<T>()[first + i] = T(keep ? scale * x.as<T>()[first + i] : 0);
        });
      });
    });
  }

 private:
  double rate_;
  Box whole_, box_;
};

}  // namespace lamina::detail
