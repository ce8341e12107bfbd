// Maximum pooling on nChw8c and nChw16c, and which of our loops is taken. What oneDNN has for it
// makes of a NaN -3.4e38, or another element. Below AVX-512 it also stores the places of maxima,
// and channels that are padding, lane by lane: at a tenth of the speed of memory, and less; and on
// plain images it has nothing but loops. Where ours does not reach, the reference's are taken.
#include "cpu/blocked.hpp"
#include "cpu/onednn_core.hpp"
#include "cpu/simd.hpp"

#include <lamina/kernels/instruction_set.hpp>

namespace lamina::detail {
namespace {

constexpr int lanes = 8;  // channels that are taken at a time
typedef float Floats __attribute__((vector_size(4 * lanes)));
typedef std::int32_t Places __attribute__((vector_size(4 * lanes)));
typedef std::uint8_t Kept __attribute__((vector_size(lanes)));

/// Where a window begins along an axis, which may be before the image, and which of its places, by
/// their number in it, lie within.
struct Inside {
  std::int64_t begin, first, end;
};
Inside along(std::int64_t begin, std::int64_t window, std::int64_t extent) {
  return {begin, std::max<std::int64_t>(0, -begin), std::min(window, extent - begin)};
}
Inside rows_of(const PoolGeometry& g, const Shape& x, std::int64_t p) {
  return along(p * g.stride.h - g.pad.top, g.window.h, x.h);
}
Inside columns_of(const PoolGeometry& g, const Shape& x, std::int64_t q) {
  return along(q * g.stride.w - g.pad.left, g.window.w, x.w);
}

/// Row p of y, and of each maximum the place within its window: the first of equal ones, or the
/// first NaN. Of channels of which `block` lie together.
template <int block>
LAMINA_SIMD void max_row(const PoolGeometry& g, const Shape& x, const Shape& y, std::int64_t p,
                         const float* image, float* to, std::uint8_t* kept) {
  const Inside rows = rows_of(g, x, p);
  for (std::int64_t q = 0; q < y.w; ++q) {
    const Inside columns = columns_of(g, x, q);
    const std::int64_t origin = rows.begin * x.w + columns.begin;
    for (int c = 0; c < block; c += lanes) {
      const float* const from = image + origin * block + c;
      Floats best;
      std::memcpy(&best, from + (rows.first * x.w + columns.first) * block, sizeof best);
      Places place = Places() + std::int32_t(rows.first * g.window.w + columns.first);
      for (std::int64_t r = rows.first; r < rows.end; ++r)
        for (std::int64_t s = columns.first; s < columns.end; ++s) {
          Floats v;
          std::memcpy(&v, from + (r * x.w + s) * block, sizeof v);
          const Places better = (v > best) | ((v != v) & (best == best));
          best = better ? v : best;
          place = better ? Places() + std::int32_t(r * g.window.w + s) : place;
        }
      std::memcpy(to + q * block + c, &best, sizeof best);
      const Kept narrow = __builtin_convertvector(place, Kept);
      std::memcpy(kept + q * block + c, &narrow, sizeof narrow);
    }
  }
}

/// dx of a plane. Its rows are cleared just before the first window that lies on them.
template <int block>
LAMINA_SIMD void spread_plane(const PoolGeometry& g, const Shape& x, const Shape& y,
                              const float* dy, const std::uint8_t* kept, float* dx) {
  std::int64_t cleared = 0;
  const auto clear = [&](std::int64_t end) __attribute__((always_inline)) {
    if (end <= cleared) return;
    std::memset(dx + cleared * x.w * block, 0, std::size_t((end - cleared) * x.w) * 4 * block);
    cleared = end;
  };
  for (std::int64_t p = 0; p < y.h; ++p) {
    const Inside rows = rows_of(g, x, p);
    clear(rows.begin + rows.end);
    for (std::int64_t i = 0; i < y.w * block; i += lanes, dy += lanes, kept += lanes) {
      const Inside columns = columns_of(g, x, i / block);
      float* const to = dx + (rows.begin * x.w + columns.begin) * block + i % block;
      Floats gradient;
      Kept narrow;
      std::memcpy(&gradient, dy, sizeof gradient), std::memcpy(&narrow, kept, sizeof narrow);
      const Places place = __builtin_convertvector(narrow, Places);
      for (std::int64_t r = rows.first; r < rows.end; ++r)
        for (std::int64_t s = columns.first; s < columns.end; ++s) {
          float* const at = to + (r * x.w + s) * block;
          Floats sum;
          std::memcpy(&sum, at, sizeof sum);
          sum += place == std::int32_t(r * g.window.w + s) ? gradient : Floats();
          std::memcpy(at, &sum, sizeof sum);
        }
    }
  }
  clear(x.h);
}

template <int block>
class MaxPool final : public UnaryKernel {
 public:
  static constexpr auto tag =
      block == 16 ? dnnl::memory::format_tag::nChw16c : dnnl::memory::format_tag::nChw8c;

  MaxPool(const PoolGeometry& g, const Form& x) : g_(g), x_(x.shape), y_(g.output(x.shape)) {
    const Desc y = Desc(dims(y_), f32, tag);
    planes_ = x_.n * ((x_.c + block - 1) / block);
    kept_ = Runtime::bytes_of(std::size_t(planes_ * y_.h * y_.w * block));
    inputs = {x};
    output = to_form(y_, y);
    algorithm = "lamina:simd";
    reads_x = false;
    workspace = kept_.bytes();
  }

  void forward(Stream& stream, const View& x, const View& y) override {
    check_operand(x, inputs[0], what), check_operand(y, output, what);
    stream.run(Pass::forward, what, [&] {
#pragma omp parallel for schedule(static) if (x.bytes() > 4 * parallel_elements)
      for (std::int64_t row = 0; row < planes_ * y_.h; ++row) {
        const std::int64_t at = row * y_.w * block;
        max_row<block>(g_, x_, y_, row % y_.h,
                       x.as<const float>() + row / y_.h * x_.h * x_.w * block, y.as<float>() + at,
                       kept_.as<std::uint8_t>() + at);
      }
    });
  }

  void input_grad(Stream& stream, const View&, const View&, const View& dy,
                  const View& dx) override {
    check_operand(dy, output, what), check_operand(dx, inputs[0], what);
    stream.run(Pass::input_grad, what, [&] {
#pragma omp parallel for schedule(static) if (dx.bytes() > 4 * parallel_elements)
      for (std::int64_t plane = 0; plane < planes_; ++plane) {
        const std::int64_t at = plane * y_.h * y_.w * block;
        spread_plane<block>(g_, x_, y_, dy.as<const float>() + at,
                            kept_.as<const std::uint8_t>() + at,
                            dx.as<float>() + plane * x_.h * x_.w * block);
      }
    });
  }

 private:
  static constexpr const char* what = "max_pool";

  PoolGeometry g_;
  Shape x_, y_;
  std::int64_t planes_;
  Tensor kept_;
};

}  // namespace

std::unique_ptr<UnaryKernel> make_max_pool(const PoolGeometry& g, const Form& x) {
  constexpr std::int64_t most_places = 256, least_channels = 4;
  if (g.kind != PoolGeometry::Kind::max || g.window.h * g.window.w > most_places) return nullptr;
  g.check(x.shape);
  const bool reorders = x.layout.plain() && x.shape.c >= least_channels;
  if (x.dtype == DType::bf16 && x.order() == AxisOrder{0, 2, 3, 1}) {
    const Shape y = g.output(x.shape);
    const Desc beside(dims(y), Type::bf16, dnnl::memory::format_tag::nhwc);
    return max_pool_beside(g, x, to_form(y, beside));
  }
  if (x.dtype != DType::f32) return nullptr;
  const bool wide = instruction_set() >= InstructionSet::avx512_core;
  const Desc blocked(dims(x.shape), f32, wide ? MaxPool<16>::tag : MaxPool<8>::tag);
  const Form image = reorders ? to_form(x.shape, blocked) : x;
  // Single pixels of whole blocks lie plain, too.
  const int block = reorders ? (wide ? 16 : 8) : channel_block(x);
  if (block == 8) return std::make_unique<MaxPool<8>>(g, image);
  if (block == 16) return std::make_unique<MaxPool<16>>(g, image);
  return nullptr;
}

}  // namespace lamina::detail
