// PoolLayer: what MaxPool2D, AvgPool2D and GlobalAvgPool share.
#pragma once

#include <lamina/layers/unary.hpp>

namespace lamina {

/// A derived layer gives its geometry for an input. A window that is one element, at every
/// position, is the identity: y is then x itself and nothing runs.
class PoolLayer : public UnaryLayer {
 public:
  Shape output(std::span<const Shape> xs) const override {
    const Shape& x = only(xs);
    const PoolGeometry g = geometry(x);
    check(g.window.h > 0 && g.window.w > 0, "window must be positive");
    check(g.stride.h > 0 && g.stride.w > 0, "stride must be positive");
    check(g.pad.top >= 0 && g.pad.left >= 0 && g.pad.bottom >= 0 && g.pad.right >= 0,
          "pad must not be negative");
    check(g.pad.top < g.window.h && g.pad.bottom < g.window.h && g.pad.left < g.window.w &&
              g.pad.right < g.window.w,
          "pad must be smaller than the window ", g.window.h, 'x', g.window.w);
    const Shape y = g.output(x);
    check(y.h > 0 && y.w > 0, "window ", g.window.h, 'x', g.window.w,
          " does not fit into the padded input ", x);
    return y;
  }

  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override {
    const PoolGeometry g = geometry(only(xs));
    if (identity(g)) return {};
    const Shape whole = output(xs);
    const double x = double(split.of_input(xs[0]).size()), s = double(size_of(t));
    const double y = double(split.of_output(whole).size());
    const double window = double(g.window.h * g.window.w) * y;
    if (g.kind == PoolGeometry::Kind::max)  // backward also reads where the maximum was
      return {.forward = {window, s * (x + y)}, .input_grad = {y, s * (x + 2 * y)}};
    return {.forward = {window, s * (x + y)}, .input_grad = {window, s * (x + y)}};
  }

  Placement place(std::span<const Spec> xs, const Site& site) override {
    alias_ = identity(geometry(xs[0].shape));
    if (!alias_) return UnaryLayer::place(xs, site);
    Placement p;
    p.output = xs[0], p.inputs = {xs[0]};
    p.reads_x = false, p.alias = true;
    return p;
  }

  void forward(Context& context, std::span<const View> xs, const View& y) override {
    if (!alias_) UnaryLayer::forward(context, xs, y);
  }
  void backward(Context& context, std::span<const View> xs, const View& y, const View& dy,
                std::span<const View> dxs) override {
    if (!alias_) UnaryLayer::backward(context, xs, y, dy, dxs);
  }

 protected:
  virtual PoolGeometry geometry(const Shape& x) const = 0;

  std::unique_ptr<UnaryKernel> make(const Backend& backend, const Form& x) const override {
    return backend.pool(geometry(x.shape), x);
  }

  static std::string describe(Pair window, Pair stride, Pad pad) {
    std::string s = text(window.h, 'x', window.w);
    if (stride != Pair(1)) s += text(" s", stride.h);
    if (pad != Pad(0)) s += text(" p", pad.top);
    return s;
  }

 private:
  static bool identity(const PoolGeometry& g) {
    return g.window == Pair(1) && g.stride == Pair(1) && g.pad == Pad(0);
  }

  bool alias_ = false;
};

}  // namespace lamina
