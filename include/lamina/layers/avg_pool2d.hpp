// AvgPool2D: the mean of each window, by window or by number of outputs.
#pragma once

#include <lamina/layers/pool.hpp>

namespace lamina {

/// y[n,c,p,q] = mean_{r,s} x[n, c, p*stride + r - pad, q*stride + s - pad]
///
/// pool.hpp says what each split sends.
class AvgPool2D final : public PoolLayer {
 public:
  struct Options {
    Pair window = 2;
    Pair stride = 0;  ///< 0: the window
    Pad pad = 0;
    bool ceil = false;  ///< round the number of positions up
    /// Divide by the whole window also where it covers padding. It must not reach beyond that, as
    /// the last one may with `ceil`: output() throws Error then.
    bool count_padding = true;
    /// If set, y has this height and width; the window and the stride follow from the input, which
    /// must be a multiple.
    Pair outputs = 0;
  };

  /// Throws Error for `outputs` with options that follow from it.
  explicit AvgPool2D(Options o) : o_(o) {
    check(o.outputs == Pair(0) || (o.window == Options().window && o.stride == Pair(0) &&
                                   o.pad == Pad(0) && !o.ceil && o.count_padding),
          "AvgPool2D: window, stride and padding follow from `outputs`: expected one of the two");
    if (o_.stride == Pair(0)) o_.stride = o_.window;
  }

  std::string_view type() const override { return "AvgPool2D"; }
  std::string describe() const override {
    if (o_.outputs != Pair(0)) return text("to ", o_.outputs.h, 'x', o_.outputs.w);
    return PoolLayer::describe(o_.window, o_.stride, o_.pad);
  }
  std::string options() const override {
    return text(o_.window, " stride ", o_.stride, " pad ", o_.pad, " to ", o_.outputs,
                o_.ceil ? " ceil" : "", o_.count_padding ? " count padding" : "");
  }

 protected:
  PoolGeometry geometry(const Shape& x) const override {
    if (o_.outputs == Pair(0))
      return {PoolGeometry::Kind::average, o_.window, o_.stride, o_.pad, o_.ceil, o_.count_padding};
    const auto [h, w] = o_.outputs;
    check(h > 0 && w > 0 && x.h % h == 0 && x.w % w == 0, "to average to ", h, 'x', w,
          " the input must be a multiple of that in height and width, got ", x.h, 'x', x.w);
    const Pair window(x.h / h, x.w / w);
    return {PoolGeometry::Kind::average, window, window};
  }

 private:
  Options o_;
};

}  // namespace lamina
