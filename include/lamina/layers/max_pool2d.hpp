// MaxPool2D: the largest value in each window.
#pragma once

#include <lamina/layers/pool.hpp>

namespace lamina {

/// y[n,c,p,q] = max_{r,s} x[n, c, p*stride + r - pad, q*stride + s - pad]   inside the image
///
/// dx is dy at the first of the largest values, summed over the windows that chose it. pool.hpp
/// says what each split sends.
class MaxPool2D final : public PoolLayer {
 public:
  struct Options {
    Pair window = 2;
    Pair stride = 0;    ///< 0: the window
    Pad pad = 0;        ///< never chosen
    bool ceil = false;  ///< round the number of positions up
  };

  explicit MaxPool2D(Options o) : o_(o) {
    if (o_.stride == Pair(0)) o_.stride = o_.window;
  }

  std::string_view type() const override { return "MaxPool2D"; }
  std::string describe() const override {
    return PoolLayer::describe(o_.window, o_.stride, o_.pad);
  }
  std::string options() const override {
    return text(o_.window, " stride ", o_.stride, " pad ", o_.pad, o_.ceil ? " ceil" : "");
  }

 protected:
  PoolGeometry geometry(const Shape&) const override {
    return {PoolGeometry::Kind::max, o_.window, o_.stride, o_.pad, o_.ceil};
  }

 private:
  Options o_;
};

}  // namespace lamina
