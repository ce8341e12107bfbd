// PlacedAlias: what is left of a layer whose y is x itself, under another shape or the same.
#pragma once

#include <lamina/layers/layer.hpp>

namespace lamina {

struct PlacedAlias final : PlacedLayer {
  void forward(Context&, std::span<const View>, const View&) override {}
  void backward(Context&, std::span<const View>, const View&, const View&,
                std::span<const View>) override {}
};

/// The placement of such a layer.
inline Placement place_alias(const Form& x, const Form& y) {
  Placement p;
  p.layer = std::make_unique<PlacedAlias>();
  p.output = y, p.inputs = {x};
  p.reads_x = false, p.alias = true;
  return p;
}

}  // namespace lamina
