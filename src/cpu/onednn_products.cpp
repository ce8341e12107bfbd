#include "cpu/onednn_products.hpp"

#include "cpu/onednn_weighted.hpp"

namespace lamina::detail {
namespace {

bool beside(const Desc& image, const Shape& shape) {
  return image == Desc(dims(shape), Type::bf16, dnnl::memory::format_tag::nhwc);
}

/// Of weights whose channels `read`, an axis, lie in sixteen pairs.
std::optional<TileWeights> weights_of(const Desc& w, std::size_t read) {
  const Blocking b = blocking(w);
  const std::size_t written = 1 - read;
  const auto r = std::int64_t(read), k = std::int64_t(written);
  if (!b.blocked || b.offset != 0 || b.dims.size() != 4 || b.dims[read] != b.padded[read] ||
      data_type(w) != Type::bf16 || b.inner_blocks.empty() || b.inner_blocks.back() != 2)
    return std::nullopt;
  TileWeights to{.group = b.strides[written], .row = b.strides[2], .column = b.strides[3]};
  std::int64_t beside = 0;  // channels that are written
  if (b.inner_dims == Dims{r, k, r} && b.inner_blocks[0] == 16) {
    beside = b.inner_blocks[1], to.pitch = 2 * beside, to.depth = b.strides[read];
  } else if (b.inner_dims == Dims{k, r} && b.dims[read] == 32) {  // pairs are no block of their own
    beside = b.inner_blocks[0], to.pitch = b.strides[read], to.depth = 16 * to.pitch;
  }
  if (beside == 0 || beside % 16 != 0) return std::nullopt;
  to.together = beside / 16;
  return to;
}

}  // namespace

std::optional<TileConv> tile_conv(const ConvGeometry& g, const Shape& x,
                                  const dnnl::convolution_forward::primitive_desc& theirs,
                                  const Epilogue& e) {
  const auto w = weights_of(theirs.weights_desc(), 1);
  if (!w || !DwProducts::tiles_available() || !TileConv::takes(g, x) || !e.rectifies() ||
      !beside(theirs.src_desc(), x) || !beside(theirs.dst_desc(), g.output(x)))
    return std::nullopt;
  return TileConv::forward(g, x, *w, {e.add, float(e.slope())});
}

std::optional<TileConv> tile_conv(const ConvGeometry& g, const Shape& x,
                                  const dnnl::convolution_backward_data::primitive_desc& theirs) {
  const auto w = weights_of(theirs.weights_desc(), 0);
  if (!w || !DwProducts::tiles_available() || !TileConv::takes(g, x) ||
      !beside(theirs.diff_src_desc(), x) || !beside(theirs.diff_dst_desc(), g.output(x)))
    return std::nullopt;
  return TileConv::gradient(g, x, *w);
}

bool may_be_products(const dnnl::primitive_desc_base& theirs) {
  return is(theirs, "amx") ? DwProducts::tiles_available() : DwProducts::available();
}

std::optional<OwnDw> own_dw(const ConvGeometry& g, const Shape& x,
                            const dnnl::convolution_forward::primitive_desc& forward,
                            const dnnl::convolution_backward_weights::primitive_desc& theirs) {
  using Tag = dnnl::memory::format_tag;
  const Desc w = forward.weights_desc();
  if (data_type(w) != Type::bf16 || g.groups > 1 || !may_be_products(theirs)) return std::nullopt;
  const bool tiles = is(theirs, "amx");
  const Tag tag = tiles ? Tag::nhwc : Tag::nChw16c;
  const Dims image = tiles ? dims(x) : blocking(forward.src_desc()).dims;
  const DwProducts kernel(g, x, tiles);
  const Desc made(blocking(w).dims, f32, kernel.plain() ? Tag::ohwi : Tag::OIhw8i16o2i);
  const Desc kept = retyped(w, f32);
  const bool fits = forward.src_desc() == Desc(image, Type::bf16, tag) &&
                    forward.dst_desc() == Desc(dims(g.output(x)), Type::bf16, tag) &&
                    (tiles || kept == made);
  if (!fits) return std::nullopt;
  return OwnDw{kernel, made, kept};
}

}  // namespace lamina::detail
