// Reference convolution (im2col and a matrix product per sample and group) and linear.
#pragma once

#include <lamina/kernels/reference/epilogue.hpp>

namespace lamina::detail {

/// With the columns X[(c,r,s), (p,q)] = x[c, p*stride + r*dilation - pad, ...] of one sample and
/// group: y = w X,  dX = w^T dy,  dw = sum over samples of dy X^T.
template <std::floating_point T>
class ReferenceConv final : public WeightedKernel {
 public:
  ReferenceConv(const ConvGeometry& g, const Form& x, const Epilogue& e, MemorySpace& memory)
      : g_(g),
        x_(x.shape),
        y_(g.output(x.shape)),
        rows_(x_.c / g.groups * g.kernel.h * g.kernel.w),
        columns_(y_.h * y_.w),
        epilogue_(e) {
    inputs = {x};
    output = {y_, x.dtype, {}};
    if (e.add) inputs.push_back(output);
    w = {g.weight(x_), x.dtype, {}};
    if (g.bias) b = {{1, g.channels, 1, 1}, x.dtype, {}};
    // The columns of a 1x1 convolution are the image itself.
    direct_ = g.kernel == Pair(1) && g.stride == Pair(1) && g.pad == Pad(0);
    algorithm = direct_ ? "gemm" : "im2col+gemm";
    if (!direct_) buffer_ = Tensor({1, rows_, y_.h, y_.w}, x.dtype, memory);
    workspace = buffer_.bytes();
  }

  void forward(Stream& stream, const View& x, const View& w_, const View& b_, const View& y,
               const View& added) override {
    check_operand(x, inputs[0], "conv x"), check_operand(w_, w, "conv w");
    check_operand(y, output, "conv y");
    if (g_.bias) check_operand(b_, b, "conv b");
    epilogue_.check_added(added, output, "conv added");
    stream.run(Pass::forward, "conv", [&] {
      each_sample_and_group([&](Index n, Index group) {
        auto out = matrix(y.as<T>() + y_at(n, group), channels(), columns_);
        for (Index k = 0; k < channels(); ++k) {
          out.row(k).setConstant(g_.bias ? b_.as<T>()[group * channels() + k] : T(0));
        }
        add_product(weights(w_.as<const T>(), group), gather(x.as<T>() + x_at(n, group)), out);
      });
      epilogue_.apply(y, added);
    });
  }

  void input_grad(Stream& stream, const View& w_, const View& dy, const View& dx) override {
    check_operand(w_, w, "conv w"), check_operand(dy, output, "conv dy");
    check_operand(dx, inputs[0], "conv dx");
    stream.run(Pass::input_grad, "conv", [&] {
      std::fill_n(dx.as<T>(), x_.size(), T(0));
      each_sample_and_group([&](Index n, Index group) {
        T* image = dx.as<T>() + x_at(n, group);
        auto sums = matrix(direct_ ? image : buffer_.as<T>(), rows_, columns_);
        if (!direct_) sums.setZero();
        add_product(weights(w_.as<const T>(), group).transpose(),
                    matrix(dy.as<const T>() + y_at(n, group), channels(), columns_), sums);
        if (!direct_) scatter(image);
      });
    });
  }

  void weight_grad(Stream& stream, const View& x, const View& dy, const View& dw,
                   const View& db) override {
    check_operand(x, inputs[0], "conv x"), check_operand(dy, output, "conv dy");
    check_operand(dw, w, "conv dw");
    if (g_.bias) check_operand(db, b, "conv db");
    stream.run(Pass::weight_grad, "conv", [&] {
      std::fill_n(dw.as<T>(), w.shape.size(), T(0));
      each_sample_and_group([&](Index n, Index group) {
        add_product(matrix(dy.as<const T>() + y_at(n, group), channels(), columns_),
                    gather(x.as<T>() + x_at(n, group)).transpose(), weights(dw.as<T>(), group));
      });
      if (g_.bias) bias_grad(dy.as<T>(), db.as<T>());
    });
  }

 private:
  Index channels() const { return g_.channels / g_.groups; }  // of y, in a group
  Index x_at(Index n, Index group) const {
    return (n * x_.c + group * (x_.c / g_.groups)) * x_.h * x_.w;
  }
  Index y_at(Index n, Index group) const {
    return (n * g_.channels + group * channels()) * columns_;
  }

  template <class U>
  auto weights(U* data, Index group) const {
    return matrix(data + group * channels() * rows_, channels(), rows_);
  }

  template <class F>
  void each_sample_and_group(F&& f) const {
    for (Index n = 0; n < x_.n; ++n) {
      for (Index group = 0; group < g_.groups; ++group) f(n, group);
    }
  }

  /// Calls f(index of the column element, index in the image or -1 in the padding).
  template <class F>
  void each_column_element(F&& f) const {
    Index i = 0;
    for (Index c = 0; c < x_.c / g_.groups; ++c) {
      for (Index r = 0; r < g_.kernel.h; ++r) {
        for (Index s = 0; s < g_.kernel.w; ++s) {
          for (Index p = 0; p < y_.h; ++p) {
            const Index h = p * g_.stride.h + r * g_.dilation.h - g_.pad.top;
            const bool row = h >= 0 && h < x_.h;
            for (Index q = 0; q < y_.w; ++q, ++i) {
              const Index v = q * g_.stride.w + s * g_.dilation.w - g_.pad.left;
              f(i, row && v >= 0 && v < x_.w ? (c * x_.h + h) * x_.w + v : Index(-1));
            }
          }
        }
      }
    }
  }

  auto gather(const T* image) {
    if (!direct_) {
      T* to = buffer_.as<T>();
      each_column_element([&](Index i, Index at) { to[i] = at < 0 ? T(0) : image[at]; });
      image = to;
    }
    return matrix(image, rows_, columns_);
  }

  void scatter(T* image) {
    const T* from = buffer_.as<T>();
    each_column_element([&](Index i, Index at) {
      if (at >= 0) image[at] += from[i];
    });
  }

  void bias_grad(const T* dy, T* db) const {
    for (Index k = 0; k < g_.channels; ++k) {
      double sum = 0;
      for (Index n = 0; n < x_.n; ++n) {
        const T* row = dy + (n * g_.channels + k) * columns_;
        for (Index i = 0; i < columns_; ++i) sum += row[i];
      }
      db[k] = T(sum);
    }
  }

  ConvGeometry g_;
  Shape x_, y_;
  Index rows_, columns_;
  bool direct_ = false;
  Tensor buffer_;
  ReferenceEpilogue<T> epilogue_;
};

/// y = x w^T + b,  dx = dy w,  dw = dy^T x.
template <std::floating_point T>
class ReferenceLinear final : public WeightedKernel {
 public:
  ReferenceLinear(Index features, bool bias, const Form& x, const Epilogue& e)
      : n_(x.shape.n), c_(x.shape.sample()), k_(features), bias_(bias), epilogue_(e) {
    inputs = {x};
    output = {{n_, k_, 1, 1}, x.dtype, {}};
    if (e.add) inputs.push_back(output);
    w = {{k_, x.shape.c, x.shape.h, x.shape.w}, x.dtype, {}};
    if (bias) b = {{1, k_, 1, 1}, x.dtype, {}};
    algorithm = "gemm";
  }

  void forward(Stream& stream, const View& x, const View& w_, const View& b_, const View& y,
               const View& added) override {
    check_operand(x, inputs[0], "linear x"), check_operand(w_, w, "linear w");
    check_operand(y, output, "linear y");
    if (bias_) check_operand(b_, b, "linear b");
    epilogue_.check_added(added, output, "linear added");
    stream.run(Pass::forward, "linear", [&] {
      auto out = matrix(y.as<T>(), n_, k_);
      out.setZero();
      if (bias_) out.rowwise() += matrix(b_.as<const T>(), 1, k_).row(0);
      add_product(matrix(x.as<const T>(), n_, c_), matrix(w_.as<const T>(), k_, c_).transpose(),
                  out);
      epilogue_.apply(y, added);
    });
  }

  void input_grad(Stream& stream, const View& w_, const View& dy, const View& dx) override {
    check_operand(w_, w, "linear w"), check_operand(dy, output, "linear dy");
    check_operand(dx, inputs[0], "linear dx");
    stream.run(Pass::input_grad, "linear", [&] {
      auto out = matrix(dx.as<T>(), n_, c_);
      out.setZero();
      add_product(matrix(dy.as<const T>(), n_, k_), matrix(w_.as<const T>(), k_, c_), out);
    });
  }

  void weight_grad(Stream& stream, const View& x, const View& dy, const View& dw,
                   const View& db) override {
    check_operand(x, inputs[0], "linear x"), check_operand(dy, output, "linear dy");
    check_operand(dw, w, "linear dw");
    if (bias_) check_operand(db, b, "linear db");
    stream.run(Pass::weight_grad, "linear", [&] {
      auto out = matrix(dw.as<T>(), k_, c_);
      out.setZero();
      const auto gradient = matrix(dy.as<const T>(), n_, k_);
      add_product(gradient.transpose(), matrix(x.as<const T>(), n_, c_), out);
      for (Index k = 0; bias_ && k < k_; ++k) {
        double sum = 0;
        for (Index n = 0; n < n_; ++n) sum += gradient(n, k);
        db.as<T>()[k] = T(sum);
      }
    });
  }

 private:
  Index n_, c_, k_;
  bool bias_;
  ReferenceEpilogue<T> epilogue_;
};

/// With bf16 or f16 as hardware has it: operands are read as f32, products and sums are f32, and
/// what is written is rounded once. It is the kernel for f32, on copies. Gradients of weights are
/// f32, too, where they are asked for so.
class ReferenceNarrow final : public WeightedKernel {
 public:
  ReferenceNarrow(std::unique_ptr<WeightedKernel> kernel, DType dtype, MemorySpace& memory)
      : kernel_(std::move(kernel)),
        x_(kernel_->inputs[0], memory),
        w_(kernel_->w, memory),
        b_(kernel_->b, memory),
        y_(kernel_->output, memory) {
    inputs = kernel_->inputs;
    output = kernel_->output, w = kernel_->w, b = kernel_->b;
    if (inputs.size() > 1) added_ = Tensor(inputs[1], memory);
    for (Form& form : inputs) form.dtype = dtype;
    for (Form* form : {&output, &w, &b}) form->dtype = dtype;
    algorithm = kernel_->algorithm;
    workspace = kernel_->workspace;
    for (const Tensor* t : {&x_, &w_, &b_, &y_, &added_}) workspace += t->bytes();
  }

  void forward(Stream& stream, const View& x, const View& weight, const View& bias, const View& y,
               const View& added) override {
    check_operand(x, inputs[0], "x"), check_operand(weight, w, "w"), check_operand(y, output, "y");
    if (bias) check_operand(bias, b, "b");
    if (added_.bytes() > 0) check_operand(added, output, "added");
    stream.run(Pass::forward, "widen", [&] {
      widen(x, x_), widen(weight, w_), widen(bias, b_);
      if (added_.bytes() > 0) widen(added, added_);
    });
    kernel_->forward(stream, x_, w_, bias ? b_.view() : View(), y_, added_);
    stream.run(Pass::forward, "round", [&] { convert(y_, y); });
  }

  void input_grad(Stream& stream, const View& weight, const View& dy, const View& dx) override {
    check_operand(weight, w, "w"), check_operand(dy, output, "dy");
    check_operand(dx, inputs[0], "dx");
    stream.run(Pass::input_grad, "widen", [&] { widen(weight, w_), widen(dy, y_); });
    kernel_->input_grad(stream, w_, y_, x_);
    stream.run(Pass::input_grad, "round", [&] { convert(x_, dx); });
  }

  void weight_grad(Stream& stream, const View& x, const View& dy, const View& dw,
                   const View& db) override {
    check_operand(x, inputs[0], "x"), check_operand(dy, output, "dy");
    check_gradient(dw, w, "dw");
    if (db) check_gradient(db, b, "db");
    stream.run(Pass::weight_grad, "widen", [&] { widen(x, x_), widen(dy, y_); });
    kernel_->weight_grad(stream, x_, y_, w_, db ? b_.view() : View());
    stream.run(Pass::weight_grad, "round", [&] {
      convert(w_, dw);
      if (db) convert(b_, db);
    });
  }

 private:
  static void widen(const View& from, const View& to) {
    if (from) convert(from, to);
  }

  std::unique_ptr<WeightedKernel> kernel_;
  Tensor x_, w_, b_, y_, added_;  // f32: operands, or in their place their gradients
};

}  // namespace lamina::detail
