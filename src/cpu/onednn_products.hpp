// Convolutions of our own in the place of oneDNN's, on the layouts that those chose.
#pragma once

#include "cpu/dw_products.hpp"
#include "cpu/onednn_compat.hpp"
#include "cpu/tile_conv.hpp"

#include <lamina/kernels/geometry.hpp>

#include <optional>

namespace lamina::detail {

/// y in the place of `theirs`, and dx: empty where they are in other types or layouts, or there are
/// no tiles.
std::optional<TileConv> tile_conv(const ConvGeometry&, const Shape& x,
                                  const dnnl::convolution_forward::primitive_desc& theirs,
                                  const Epilogue&);
std::optional<TileConv> tile_conv(const ConvGeometry&, const Shape& x,
                                  const dnnl::convolution_backward_data::primitive_desc& theirs);

/// Whether dw in bf16 may be our own: by tiles (AMX) where oneDNN's is.
bool may_be_products(const dnnl::primitive_desc_base& theirs);

/// dw as our kernel makes it, and as it is kept.
struct OwnDw {
  DwProducts kernel;
  Desc made, kept;
};
/// The same for dw, if images and weights lie in blocks, or images n-h-w-c for tiles.
std::optional<OwnDw> own_dw(const ConvGeometry&, const Shape& x,
                            const dnnl::convolution_forward::primitive_desc& forward,
                            const dnnl::convolution_backward_weights::primitive_desc& theirs);

}  // namespace lamina::detail
