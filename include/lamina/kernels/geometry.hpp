// The geometry of windowed operations: pure arithmetic, shared by layers, kernels and costs.
#pragma once

#include <lamina/base/error.hpp>
#include <lamina/tensor/shape.hpp>

#include <optional>

namespace lamina {

/// Zero rows and columns around an image; may differ on the four sides.
struct Pad {
  std::int64_t top = 0, left = 0, bottom = 0, right = 0;

  constexpr Pad() = default;
  constexpr Pad(std::int64_t all) : top(all), left(all), bottom(all), right(all) {}
  constexpr Pad(std::int64_t vertical, std::int64_t horizontal)
      : top(vertical), left(horizontal), bottom(vertical), right(horizontal) {}
  constexpr Pad(std::int64_t t, std::int64_t l, std::int64_t b, std::int64_t r)
      : top(t), left(l), bottom(b), right(r) {}
  constexpr bool operator==(const Pad&) const = default;
  std::string text() const { return lamina::text(top, ',', left, ',', bottom, ',', right); }
};

/// A pair of vertical and horizontal extents; one number stands for both.
struct Pair {
  std::int64_t h = 1, w = 1;

  constexpr Pair() = default;
  constexpr Pair(std::int64_t both) : h(both), w(both) {}
  constexpr Pair(std::int64_t h_, std::int64_t w_) : h(h_), w(w_) {}
  constexpr bool operator==(const Pair&) const = default;
  std::string text() const { return lamina::text(h, 'x', w); }
};

/// Positions that a window takes along an axis: floor((padded - window) / stride) + 1, or with
/// `ceil` rounded up, where the last window must start inside the input or its leading padding. At
/// most 0 if the window does not fit.
constexpr std::int64_t window_positions(std::int64_t extent, std::int64_t before,
                                        std::int64_t after, std::int64_t window,
                                        std::int64_t stride, bool ceil = false) {
  const std::int64_t room = extent + before + after - window;
  if (room < 0) return 0;
  std::int64_t positions = (room + (ceil ? stride - 1 : 0)) / stride + 1;
  if (ceil && (positions - 1) * stride >= extent + before) --positions;
  return positions;
}

/// y[n,k,p,q] = b[k] + sum_{c,r,s} w[k,c,r,s] x[n, c, p*stride.h + r*dilation.h - pad.top,
///                                              q*stride.w + s*dilation.w - pad.left]
/// with c running over the channels of k's group.
struct ConvGeometry {
  std::int64_t channels = 1;  ///< of y
  Pair kernel = 1, stride = 1;
  Pad pad = 0;
  Pair dilation = 1;
  std::int64_t groups = 1;
  bool bias = true;

  Shape weight(Shape x) const { return {channels, x.c / groups, kernel.h, kernel.w}; }
  Shape output(Shape x) const {
    return {x.n, channels,
            window_positions(x.h, pad.top, pad.bottom, (kernel.h - 1) * dilation.h + 1, stride.h),
            window_positions(x.w, pad.left, pad.right, (kernel.w - 1) * dilation.w + 1, stride.w)};
  }
  /// Throws Error unless it can be computed of such an x; so for the other geometries.
  void check(Shape x) const;
};

struct PoolGeometry {
  enum class Kind { max, average };
  Kind kind = Kind::max;
  Pair window = 2, stride = 2;
  Pad pad = 0;
  bool ceil = false;           ///< round the number of positions up
  bool count_padding = false;  ///< the average divides by the whole window, padding included

  Shape output(Shape x) const {
    return {x.n, x.c, window_positions(x.h, pad.top, pad.bottom, window.h, stride.h, ceil),
            window_positions(x.w, pad.left, pad.right, window.w, stride.w, ceil)};
  }
  void check(Shape x) const;
};

/// y = x / (k + alpha/size * sum of x^2 over `size` neighbouring channels)^beta
/// (Krizhevsky et al., 2012, with alpha divided by size as Caffe and PyTorch do).
struct LrnGeometry {
  std::int64_t size = 5;
  double alpha = 1e-4, beta = 0.75, k = 2;

  void check() const;
};

/// Of softmax and cross-entropy over classes of which x may have a part only.
struct LossGeometry {
  double label_smoothing = 0;
  std::int64_t classes = 0;  ///< in all; 0 = those of x
  std::int64_t first = 0;    ///< the first one of x
};

struct Activation {
  enum class Kind { relu, leaky_relu, sigmoid, tanh };
  Kind kind = Kind::relu;
  double slope = 0;  ///< of leaky_relu below zero
  bool operator==(const Activation&) const = default;
};

/// What a kernel does with its result before it writes it: y = activation(scale * result + shift +
/// added), with a scale and a shift for each channel.
struct Epilogue {
  bool add = false;  ///< there is one more operand, like y
  std::optional<Activation> activation = {};
  /// In inference. Layers multiply it into what they give their kernel as weights and bias: no
  /// kernel is asked for it.
  bool scale = false;

  explicit operator bool() const { return add || activation || scale; }
  /// What is left of it for the kernel.
  Epilogue unscaled() const { return {add, activation}; }
  bool operator==(const Epilogue&) const = default;
  /// Whether there is no activation but ReLU, or a leaky one.
  bool rectifies() const {
    using Kind = Activation::Kind;
    return !activation || activation->kind == Kind::relu || activation->kind == Kind::leaky_relu;
  }
  /// Of that below zero; 1 without one. Throws Error for other activations.
  double slope() const {
    check(rectifies(), "an epilogue has no activation but relu and leaky_relu");
    if (!activation) return 1;
    return activation->kind == Activation::Kind::relu ? 0 : activation->slope;
  }
};

}  // namespace lamina
