// Reference pooling: maximum and average over windows.
#pragma once

#include <lamina/kernels/reference/common.hpp>

#include <cmath>

namespace lamina::detail {

/// Maximum: the first of equal elements wins and gets the whole gradient, NaN wins over numbers,
/// and padding never wins. Average: divides by the elements inside the image, or by the whole
/// window.
template <Floating T>
class ReferencePool final : public UnaryKernel {
 public:
  ReferencePool(const PoolGeometry& g, const Form& x, MemorySpace& memory)
      : g_(g),
        x_(x.shape),
        y_(g.output(x.shape)),
        what_(g.kind == PoolGeometry::Kind::max ? "max_pool" : "avg_pool") {
    inputs = {x};
    output = {y_, x.dtype, {}};
    algorithm = "loops";
    reads_x = g.kind == PoolGeometry::Kind::max;
    if (!std::same_as<T, Number>) sums_ = Tensor({1, 1, x_.h, x_.w}, dtype_of<Number>, memory);
    workspace = sums_.bytes();
  }

  void forward(Stream& stream, const View& x, const View& y) override {
    check_operand(x, inputs[0], what_), check_operand(y, output, what_);
    stream.run(Pass::forward, what_, [&] {
      for (Index plane = 0; plane < x_.n * x_.c; ++plane) {
        const T* image = x.as<T>() + plane * x_.h * x_.w;
        each_window(plane, [&](Index at, const Window& window) {
          if (g_.kind == PoolGeometry::Kind::max) {
            y.as<T>()[at] = image[largest(image, window)];
          } else {
            double sum = 0;
            each_element(window, [&](Index i) { sum += image[i]; });
            y.as<T>()[at] = T(sum / divisor(window));
          }
        });
      }
    });
  }

  void input_grad(Stream& stream, const View& x, const View&, const View& dy,
                  const View& dx) override {
    if (reads_x) check_operand(x, inputs[0], what_);
    check_operand(dy, output, what_), check_operand(dx, inputs[0], what_);
    stream.run(Pass::input_grad, what_, [&] {
      for (Index plane = 0; plane < x_.n * x_.c; ++plane) {
        const Index first = plane * x_.h * x_.w;
        Number* const sums = sums_of(dx.as<T>() + first);
        std::fill_n(sums, x_.h * x_.w, Number(0));
        each_window(plane, [&](Index at, const Window& window) {
          const Number gradient = dy.as<T>()[at];
          if (g_.kind == PoolGeometry::Kind::max) {
            sums[largest(x.as<T>() + first, window)] += gradient;
          } else {
            const auto part = Number(gradient / divisor(window));
            each_element(window, [&](Index i) { sums[i] += part; });
          }
        });
        if (sums_.view()) convert(sums_, {dx.as<T>() + first, {sums_.shape(), dx.dtype, {}}});
      }
    });
  }

 private:
  using Number = Wide<T>;

  struct Window {  // the part inside the image, never empty since padding is less than a window
    Index top, left, bottom, right;
  };

  Number* sums_of(T* plane) const {
    if constexpr (std::same_as<T, Number>) return plane;
    return sums_.as<Number>();
  }

  /// Calls f(index of the element of y, window) for those of a plane.
  template <class F>
  void each_window(Index plane, F&& f) const {
    Index at = plane * y_.h * y_.w;
    for (Index p = 0; p < y_.h; ++p) {
      const Index h = p * g_.stride.h - g_.pad.top;
      for (Index q = 0; q < y_.w; ++q, ++at) {
        const Index w = q * g_.stride.w - g_.pad.left;
        f(at, Window{std::max<Index>(h, 0), std::max<Index>(w, 0), std::min(h + g_.window.h, x_.h),
                     std::min(w + g_.window.w, x_.w)});
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
  Tensor sums_;  // of a plane of dx, until they are complete; only where T is too narrow for them
};

}  // namespace lamina::detail
