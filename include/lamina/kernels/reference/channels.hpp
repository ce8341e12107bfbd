// Reference operations that run along the channel axis at every position: local response
// normalisation and softmax.
#pragma once

#include <lamina/kernels/reference/common.hpp>

#include <cmath>
#include <vector>

namespace lamina::detail {

/// Calls f(offset of channel 0) for every sample and position.
template <class F>
void each_position(Shape x, F&& f) {
  for (Index n = 0; n < x.n; ++n) {
    for (Index i = 0; i < x.h * x.w; ++i) f(n * x.sample() + i);
  }
}

/// With d_c = k + alpha/size * sum of x^2 around c: y = x d^-beta and
/// dx_c = dy_c d_c^-beta - 2 alpha beta / size * x_c * sum around c of dy x d^(-beta-1).
template <Floating T>
class ReferenceLrn final : public UnaryKernel {
 public:
  ReferenceLrn(const LrnGeometry& g, const Form& x)
      : g_(g), x_(x.shape), d_(std::size_t(x.shape.c)), t_(std::size_t(x.shape.c)) {
    inputs = {x};
    output = x;
    algorithm = "loops";
    workspace = 2 * d_.size() * sizeof(double);
  }

  void forward(Stream& stream, const View& x, const View& y) override {
    check_operand(x, inputs[0], "lrn x"), check_operand(y, output, "lrn y");
    stream.run(Pass::forward, "lrn", [&] {
      each_position(x_, [&](Index at) {
        scales(x.as<T>() + at);
        for (Index c = 0; c < x_.c; ++c) {
          const Index i = at + c * step();
          y.as<T>()[i] = T(x.as<T>()[i] * std::pow(d_[c], -g_.beta));
        }
      });
    });
  }

  void input_grad(Stream& stream, const View& x, const View&, const View& dy,
                  const View& dx) override {
    check_operand(x, inputs[0], "lrn x"), check_operand(dy, output, "lrn dy");
    check_operand(dx, inputs[0], "lrn dx");
    stream.run(Pass::input_grad, "lrn", [&] {
      each_position(x_, [&](Index at) {
        scales(x.as<T>() + at);
        for (Index c = 0; c < x_.c; ++c) {
          const Index i = at + c * step();
          t_[c] = double(dy.as<T>()[i]) * x.as<T>()[i] * std::pow(d_[c], -g_.beta - 1);
        }
        for (Index c = 0; c < x_.c; ++c) {
          const Index i = at + c * step();
          const double around = sum_around(c, [&](Index j) { return t_[j]; });
          dx.as<T>()[i] = T(dy.as<T>()[i] * std::pow(d_[c], -g_.beta) -
                            2 * g_.alpha * g_.beta / double(g_.size) * x.as<T>()[i] * around);
        }
      });
    });
  }

 private:
  Index step() const { return x_.h * x_.w; }

  template <class F>
  double sum_around(Index c, F&& value) const {
    double sum = 0;
    const Index half = g_.size / 2;
    for (Index j = std::max<Index>(c - half, 0); j <= std::min(c + half, x_.c - 1); ++j) {
      sum += value(j);
    }
    return sum;
  }

  void scales(const T* x) {
    const auto square = [&](Index j) { return double(x[j * step()]) * x[j * step()]; };
    for (Index c = 0; c < x_.c; ++c) {
      d_[c] = g_.k + g_.alpha / double(g_.size) * sum_around(c, square);
    }
  }

  LrnGeometry g_;
  Shape x_;
  std::vector<double> d_, t_;
};

/// y_c = exp(x_c - max x) / sum,  dx_c = y_c (dy_c - sum of y dy).
template <Floating T>
class ReferenceSoftmax final : public UnaryKernel {
 public:
  explicit ReferenceSoftmax(const Form& x) : x_(x.shape) {
    inputs = {x};
    output = x;
    algorithm = "loops";
    in_place = true;
    reads_x = false;
    reads_y = true;
  }

  void forward(Stream& stream, const View& x, const View& y) override {
    check_operand(x, inputs[0], "softmax x"), check_operand(y, output, "softmax y");
    stream.run(Pass::forward, "softmax", [&] {
      const Index step = x_.h * x_.w;
      each_position(x_, [&](Index at) {
        const T* in = x.as<T>() + at;
        T* out = y.as<T>() + at;
        T top = in[0];
        for (Index c = 1; c < x_.c; ++c) top = std::max(top, in[c * step]);
        double sum = 0;
        for (Index c = 0; c < x_.c; ++c) sum += std::exp(double(in[c * step]) - top);
        for (Index c = 0; c < x_.c; ++c) {
          out[c * step] = T(std::exp(double(in[c * step]) - top) / sum);
        }
      });
    });
  }

  void input_grad(Stream& stream, const View&, const View& y, const View& dy,
                  const View& dx) override {
    check_operand(y, output, "softmax y"), check_operand(dy, output, "softmax dy");
    check_operand(dx, inputs[0], "softmax dx");
    stream.run(Pass::input_grad, "softmax", [&] {
      const Index step = x_.h * x_.w;
      each_position(x_, [&](Index at) {
        const T *p = y.as<T>() + at, *g = dy.as<T>() + at;
        double dot = 0;
        for (Index c = 0; c < x_.c; ++c) dot += double(p[c * step]) * g[c * step];
        for (Index c = 0; c < x_.c; ++c) {
          dx.as<T>()[at + c * step] = T(p[c * step] * (g[c * step] - dot));
        }
      });
    });
  }

 private:
  Shape x_;
};

}  // namespace lamina::detail
