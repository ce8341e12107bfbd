// Reference pooling: maximum and average over windows.
#pragma once

#include <lamina/kernels/reference/common.hpp>

#include <cmath>

namespace lamina::detail {

/// Maximum: the first of equal elements wins and gets the whole gradient, NaN wins over numbers,
/// and padding never wins. Average: divides by the elements inside the image, or by the whole
/// window.
template <class T>
class ReferencePool final : public UnaryKernel {
 public:
  ReferencePool(const PoolGeometry& g, const Form& x)
      : g_(g),
        x_(x.shape),
        y_(g.output(x.shape)),
        what_(g.kind == PoolGeometry::Kind::max ? "max_pool" : "avg_pool") {
    inputs = {x};
    output = {y_, x.dtype, {}};
    algorithm = "loops";
    reads_x = g.kind == PoolGeometry::Kind::max;
  }

  void forward(Stream& stream, const View& x, const View& y) override {
    check_operand(x, inputs[0], what_), check_operand(y, output, what_);
    stream.run(Pass::forward, what_, [&] {
      each_window([&](Index plane, Index at, const Window& window) {
        const T* image = x.as<T>() + plane * x_.h * x_.w;
        if (g_.kind == PoolGeometry::Kind::max) {
          y.as<T>()[at] = image[largest(image, window)];
        } else {
          double sum = 0;
          each_element(window, [&](Index i) { sum += image[i]; });
          y.as<T>()[at] = T(sum / divisor(window));
        }
      });
    });
  }

  void input_grad(Stream& stream, const View& x, const View&, const View& dy,
                  const View& dx) override {
    if (reads_x) check_operand(x, inputs[0], what_);
    check_operand(dy, output, what_), check_operand(dx, inputs[0], what_);
    stream.run(Pass::input_grad, what_, [&] {
      std::fill_n(dx.as<T>(), x_.size(), T(0));
      each_window([&](Index plane, Index at, const Window& window) {
        T* image = dx.as<T>() + plane * x_.h * x_.w;
        const T gradient = dy.as<T>()[at];
        if (g_.kind == PoolGeometry::Kind::max) {
          image[largest(x.as<T>() + plane * x_.h * x_.w, window)] += gradient;
        } else {
          const T part = T(gradient / divisor(window));
          each_element(window, [&](Index i) { image[i] += part; });
        }
      });
    });
  }

 private:
  struct Window {  // the part inside the image, never empty since padding is less than a window
    Index top, left, bottom, right;
  };

  template <class F>
  void each_window(F&& f) const {
    Index at = 0;
    for (Index plane = 0; plane < x_.n * x_.c; ++plane) {
      for (Index p = 0; p < y_.h; ++p) {
        const Index h = p * g_.stride.h - g_.pad.top;
        for (Index q = 0; q < y_.w; ++q, ++at) {
          const Index w = q * g_.stride.w - g_.pad.left;
          f(plane, at,
            Window{std::max<Index>(h, 0), std::max<Index>(w, 0), std::min(h + g_.window.h, x_.h),
                   std::min(w + g_.window.w, x_.w)});
        }
      }
    }
  }

  template <class F>
  void each_element(const Window& window, F&& f) const {
    for (Index h = window.top; h < window.bottom; ++h) {
      for (Index w = window.left; w < window.right; ++w) f(h * x_.w + w);
    }
  }

  Index largest(const T* image, const Window& window) const {
    Index best = window.top * x_.w + window.left;
    each_element(window, [&](Index i) {
      if (image[i] > image[best] || (std::isnan(image[i]) && !std::isnan(image[best]))) best = i;
    });
    return best;
  }

  double divisor(const Window& window) const {
    if (g_.count_padding) return double(g_.window.h * g_.window.w);
    return double((window.bottom - window.top) * (window.right - window.left));
  }

  PoolGeometry g_;
  Shape x_, y_;
  const char* what_;
};

}  // namespace lamina::detail
