// GlobalAvgPool: the mean of each channel of each sample.
#pragma once

#include <lamina/layers/pool.hpp>

namespace lamina {

/// y[n,c] = mean_{h,w} x[n,c,h,w]. Sends nothing under a split of samples or channels.
class GlobalAvgPool final : public PoolLayer {
 public:
  struct Options {};
  explicit GlobalAvgPool(Options) {}

  std::string_view type() const override { return "GlobalAvgPool"; }

 protected:
  PoolGeometry geometry(const Shape& x) const override {
    return {PoolGeometry::Kind::average, {x.h, x.w}, {x.h, x.w}};
  }
};

}  // namespace lamina
