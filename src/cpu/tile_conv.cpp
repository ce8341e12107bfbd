#include "cpu/tile_conv.hpp"

#include "cpu/tiles.hpp"

#include <lamina/base/threads.hpp>

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <limits>

namespace lamina::detail {
namespace {

constexpr std::int64_t sixteen = 16, channels = 32;  // positions and channels of a tile
constexpr std::int64_t tile = sixteen * channels;    // its elements
constexpr std::int32_t nowhere = INT32_MIN / 2;
/// Of the second cache: for a band, and for weights.
constexpr std::int64_t band_bytes = 512 << 10, weights_bytes = 1 << 20;

std::int64_t parts(std::int64_t all, std::int64_t of) { return (all + of - 1) / of; }

std::size_t bytes(std::int64_t elements) { return std::size_t(elements) * sizeof(BF16); }

}  // namespace

bool TileConv::takes(const ConvGeometry& g, const Shape& x) {
  const std::int64_t down = (g.kernel.h - 1) * g.dilation.h;
  const std::int64_t right = (g.kernel.w - 1) * g.dilation.w;
  return g.groups == 1 && x.c % channels == 0 && g.channels % channels == 0 &&
         std::max(g.pad.top, g.pad.bottom) <= down && std::max(g.pad.left, g.pad.right) <= right;
}

TileConv::TileConv(const ConvGeometry& g, const Shape& from, const Shape& to, const TileWeights& w)
    : from_(from),
      to_(to),
      w_(w),
      direct_(g.kernel == Pair(1) && g.stride == Pair(1) && g.pad == Pad(0)),
      halo_((g.kernel.h - 1) * g.dilation.h / g.stride.h,
            (g.kernel.w - 1) * g.dilation.w / g.stride.w),
      threads_(threads()) {
  if (!direct_) return;
  const std::int64_t all = to.n * to.h * to.w;
  from_ = {1, from.c, all, 1}, to_ = {1, to.c, all, 1};
}

TileConv TileConv::forward(const ConvGeometry& g, const Shape& x, const TileWeights& w,
                           const TileEpilogue& e) {
  const Shape y = g.output(x);
  TileConv c(g, x, y, w);
  c.epilogue_ = e;
  c.read_ = g.stride, c.grid_ = {c.to_.h, c.to_.w}, c.lead_ = {g.pad.top, g.pad.left};
  c.divide(g.kernel.h * g.kernel.w);
  std::vector<Step> taps;
  c.planes_.assign(std::size_t(g.stride.h * g.stride.w), false);
  for (std::int64_t i = 0; i < g.kernel.h; ++i)
    for (std::int64_t j = 0; j < g.kernel.w; ++j) {
      const std::int64_t r = i * g.dilation.h, s = j * g.dilation.w;
      const std::int64_t plane = r % g.stride.h * g.stride.w + s % g.stride.w;
      const std::int64_t at = r / g.stride.h * c.pitch_ + s / g.stride.w;
      c.planes_[std::size_t(plane)] = true;
      taps.push_back({plane * c.plane() + at * x.c, i * w.row + j * w.column});
    }
  c.add_phase(taps, 0);
  c.pays_ = y.h * y.w <= 64 && y.n * y.h * y.w >= 256;
  return c;
}

// dx(h) takes those taps i for which h + pad - i * dilation is a multiple of the stride: that of y.
TileConv TileConv::gradient(const ConvGeometry& g, const Shape& x, const TileWeights& w) {
  TileConv c(g, g.output(x), x, w);
  c.write_ = g.stride;
  const Pair first{g.pad.top / g.stride.h, g.pad.left / g.stride.w};  // of y that dx takes
  c.grid_ = {(c.to_.h - 1 + g.pad.top) / g.stride.h - first.h + 1,
             (c.to_.w - 1 + g.pad.left) / g.stride.w - first.w + 1};
  c.lead_ = {c.halo_.h - first.h, c.halo_.w - first.w};
  c.divide(g.kernel.h * g.kernel.w);
  for (std::int64_t a = 0; a < g.stride.h; ++a)
    for (std::int64_t b = 0; b < g.stride.w; ++b) {
      std::vector<Step> taps;
      for (std::int64_t i = 0; i < g.kernel.h; ++i)
        for (std::int64_t j = 0; j < g.kernel.w; ++j) {
          const std::int64_t r = i * g.dilation.h - a, s = j * g.dilation.w - b;
          if (r % g.stride.h != 0 || s % g.stride.w != 0) continue;
          const std::int64_t row = c.halo_.h - r / g.stride.h, at = c.halo_.w - s / g.stride.w;
          taps.push_back({(row * c.pitch_ + at) * c.from_.c, i * w.row + j * w.column});
        }
      c.add_phase(taps,
                  {first.h * g.stride.h + a - g.pad.top, first.w * g.stride.w + b - g.pad.left});
    }
  c.pays_ = g.kernel == Pair(1) || g.stride != Pair(1) || x.h * x.w <= 200;
  return c;
}

void TileConv::divide(std::int64_t taps) {
  const std::int64_t all = to_.c / channels, block = taps * from_.c * channels;
  chunk_ = std::clamp<std::int64_t>(weights_bytes / std::int64_t(bytes(block)), 1, all);
  blocks_ = all;
  const auto tasks = [&] { return bands() * parts(all, blocks_); };
  if (direct_) {
    rows_ = std::clamp<std::int64_t>(band_bytes / std::int64_t(bytes(from_.c)), 16, 512) / 16 * 16;
    pitch_ = 1, blocks_ = chunk_;
    while (rows_ > 64 && tasks() < 4 * threads_) rows_ = parts(rows_ / 2, 16) * 16;
  } else {
    const std::int64_t behind = grid_.w + halo_.w - lead_.w - from_.w;
    if (read_ == Pair(1)) shared_ = std::max<std::int64_t>(0, std::min(lead_.w, behind));
    pitch_ = grid_.w + halo_.w - shared_;
    rows_ = grid_.h;
    const auto copied = [&] { return std::int64_t(bytes(read_.h * read_.w * plane())); };
    while (rows_ > 1 && copied() > band_bytes) rows_ = parts(rows_, 2);
    if (rows_ == grid_.h) {
      const std::int64_t most = std::max<std::int64_t>(1, band_bytes / copied());
      images_ = std::min(most, from_.n);
    }
    while (images_ > 1 && tasks() < 4 * threads_) images_ = parts(images_, 2);
    while (rows_ * pitch_ > 64 && rows_ > 1 && tasks() < 2 * threads_) rows_ = parts(rows_, 2);
  }
  while (blocks_ > 2 && tasks() < 2 * threads_) blocks_ = parts(blocks_, 2);
}

void TileConv::add_phase(const std::vector<Step>& taps, Pair at) {
  Phase phase;
  for (std::int64_t d = 0; d < from_.c / channels; ++d)
    for (const Step& tap : taps)
      phase.steps.push_back({tap.from + d * channels, tap.w + d * w_.depth});
  const std::int64_t end = (rows_ - 1) * pitch_ + grid_.w;
  tiles_ = tiles_of(rows_);
  for (std::int64_t q = 0; q < tiles_ * sixteen; ++q) {
    const std::int64_t column = q % pitch_ * write_.w + at.w, row = q / pitch_ * write_.h + at.h;
    const bool is = q < end && column >= 0 && column < to_.w;
    phase.positions.push_back(is ? std::int32_t(row * to_.w + column) : nowhere);
  }
  phases_.push_back(std::move(phase));
}

std::int64_t TileConv::bands() const { return parts(from_.n, images_) * parts(grid_.h, rows_); }

TileConv::Band TileConv::band(std::int64_t i) const {
  const std::int64_t across = parts(grid_.h, rows_);
  const std::int64_t image = i / across * images_, row = i % across * rows_;
  return {image, std::min(images_, from_.n - image), row, std::min(rows_, grid_.h - row)};
}

std::int64_t TileConv::tiles_of(std::int64_t rows) const {
  return parts((rows - 1) * pitch_ + grid_.w, sixteen);
}

std::int64_t TileConv::plane() const { return images_ * copied_rows() * pitch_ * from_.c; }

std::size_t TileConv::room() const {
  if (direct_) return std::size_t(tile / channels * from_.c);
  // Behind the last row tiles read what is not stored.
  return std::size_t(read_.h * read_.w * plane() + (halo_.w + 2 * sixteen) * from_.c);
}

std::size_t TileConv::scratch() const { return std::size_t(threads_) * room() * sizeof(BF16); }

#if defined(LAMINA_HAS_TILES)

struct TileConv::Worker {
  const TileConv& of;
  const BF16 *from, *w, *bias;
  BF16 *to, *room;
  alignas(64) float sums[4][tile / 2] = {};

  void run(const Band& b, std::int64_t first, std::int64_t blocks) {
    if (of.direct_) {
      copy_last(b);
    } else {
      copy(b);
    }
    for (std::int64_t k = first; k < first + blocks; k += of.chunk_)
      for (const Phase& phase : of.phases_)
        multiply_all(b, phase, k, std::min(k + of.chunk_, first + blocks));
  }

  /// A tile that is not whole.
  void copy_last(const Band& b) {
    const std::int64_t some = b.rows % sixteen, c = of.from_.c;
    if (some)
      std::memcpy(static_cast<void*>(room), from + (b.row + b.rows - some) * c, bytes(some * c));
  }
  void copy(const Band& b) {
    const std::int64_t c = of.from_.c, copied = of.copied_rows() * of.pitch_ * c;
    for (std::int64_t i = 0; i < of.read_.h; ++i)
      for (std::int64_t j = 0; j < of.read_.w; ++j)
        for (std::int64_t image = 0; image < b.images; ++image) {
          if (!of.planes_[std::size_t(i * of.read_.w + j)]) continue;
          BF16* row = room + (i * of.read_.w + j) * of.plane() + image * copied;
          for (std::int64_t r = b.row; r < b.row + b.rows + of.halo_.h; ++r, row += of.pitch_ * c)
            copy_row(b.image + image, r * of.read_.h + i - of.lead_.h, j, row);
          std::memset(static_cast<void*>(row), 0, bytes(of.shared_ * c));
        }
  }
  void copy_row(std::int64_t image, std::int64_t row, std::int64_t j, BF16* copied) {
    const std::int64_t c = of.from_.c, step = of.read_.w, lead = of.lead_.w - j;
    if (row < 0 || row >= of.from_.h) return clear(copied, 0, of.pitch_);
    const auto column = [&](std::int64_t at) {  // the first one from there on
      return std::clamp<std::int64_t>(at > 0 ? parts(at, step) : 0, 0, of.pitch_);
    };
    const std::int64_t begin = column(lead), end = column(of.from_.w + lead);
    const BF16* at = from + ((image * of.from_.h + row) * of.from_.w + begin * step - lead) * c;
    clear(copied, 0, begin);
    if (step == 1) {
      std::memcpy(static_cast<void*>(copied + begin * c), at, bytes((end - begin) * c));
    } else {
      for (std::int64_t u = begin; u < end; ++u, at += step * c)
        std::memcpy(static_cast<void*>(copied + u * c), at, bytes(c));
    }
    clear(copied, end, of.pitch_);
  }
  void clear(BF16* row, std::int64_t begin, std::int64_t end) {
    std::memset(static_cast<void*>(row + begin * of.from_.c), 0, bytes((end - begin) * of.from_.c));
  }

  /// Where the t-th tile of a band begins.
  const BF16* begin_of(const Band& b, std::int64_t t) const {
    const std::int64_t c = of.from_.c;
    if (of.direct_) return (t + 1) * sixteen > b.rows ? room : from + (b.row + t * sixteen) * c;
    return room + (t / of.tiles_ * of.copied_rows() * of.pitch_ + t % of.tiles_ * sixteen) * c;
  }

  void multiply_all(const Band& b, const Phase& phase, std::int64_t first, std::int64_t end) {
    const std::int64_t tiles =
        of.tiles_of(b.rows) * b.images;  // of part of an image, or of whole ones
    for (std::int64_t t = 0; t < tiles; t += 2) {
      const std::int64_t last = std::min(t + 1, tiles - 1);
      for (std::int64_t k = first; k < end; ++k) {
        multiply(phase.steps, begin_of(b, t), begin_of(b, last), of_block(2 * k),
                 of_block(2 * k + 1));
        for (std::int64_t i = t; i <= last; ++i) finish(b, phase, i, sums + (i - t) * 2, k);
      }
    }
  }

  /// The weights for the i-th sixteen channels that are written.
  const BF16* of_block(std::int64_t i) const {
    return w + i / of.w_.together * of.w_.group + i % of.w_.together * channels;
  }

  LAMINA_TILES void multiply(const std::vector<Step>& steps, const BF16* a, const BF16* b,
                             const BF16* left, const BF16* right) {
    const auto pitch = std::ptrdiff_t(bytes(of.from_.c));
    const auto row = std::ptrdiff_t(bytes(of.w_.pitch));
    asm volatile("" ::: "memory");  // the compiler does not know that tiles are read from memory
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (const Step& step : steps) {
      _tile_loadd(6, left + step.w, row);
      _tile_loadd(4, a + step.from, pitch);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, right + step.w, row);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, b + step.from, pitch);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
    _tile_stored(2, sums[2], 64);
    _tile_stored(3, sums[3], 64);
    asm volatile("" ::: "memory");
  }

  void finish(const Band& b, const Phase& phase, std::int64_t t, const float (*of_tile)[tile / 2],
              std::int64_t k) {
    const std::int64_t image = b.image + t / of.tiles_, size = of.to_.h * of.to_.w;
    const Rows rows{phase.positions.data() + t % of.tiles_ * sixteen,
                    b.row * of.write_.h * of.to_.w, size};
    BF16* const y = to + image * size * of.to_.c + k * channels;
    const BF16* const added = bias ? bias + k * channels : nullptr;
    const bool scales = of.epilogue_.slope != 1;
    if (of.epilogue_.add) {
      scales ? store<true, true>(of_tile, rows, added, y)
             : store<true, false>(of_tile, rows, added, y);
    } else {
      scales ? store<false, true>(of_tile, rows, added, y)
             : store<false, false>(of_tile, rows, added, y);
    }
  }

  /// Where the rows of a tile go: to `first` + position, where that is in an image of `size`.
  struct Rows {
    const std::int32_t* position;
    std::int64_t first, size;
  };
  LAMINA_TILES static __m512 widened(__m256i v) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
  }
  LAMINA_TILES static __m512 widened(const BF16* p) {
    return p ? widened(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))
             : _mm512_setzero_ps();
  }
  template <bool adds, bool scales>
  LAMINA_TILES void store(const float (*of_tile)[tile / 2], const Rows& rows, const BF16* of_bias,
                          BF16* y) const {
    const __m512 slope = _mm512_set1_ps(of.epilogue_.slope), zero = _mm512_setzero_ps();
    // Lest infinity times zero makes NaN.
    constexpr auto infinity = std::numeric_limits<float>::infinity();
    const bool cuts = of.epilogue_.slope == 0;
    const __m512 least = _mm512_set1_ps(cuts ? std::numeric_limits<float>::lowest() : -infinity);
    const auto bent = [&](__m512 v) LAMINA_TILES {
      const __mmask16 below = _mm512_cmp_ps_mask(v, zero, _CMP_LT_OQ);
      return _mm512_mask_fmadd_ps(_mm512_max_ps(least, v), below, slope, zero);  // and no -0
    };
    const __m512 left = widened(of_bias), right = widened(of_bias ? of_bias + sixteen : nullptr);
    for (std::int64_t r = 0; r < sixteen; ++r) {
      const std::int64_t at = rows.first + rows.position[r];
      if (rows.position[r] == nowhere || at < 0 || at >= rows.size) continue;
      BF16* const p = y + at * of.to_.c;
      // Two tiles on, it is stored soon.
      if (of.write_ == Pair(1)) __builtin_prefetch(p + 2 * sixteen * of.to_.c, 1);
      __m512 a = _mm512_add_ps(_mm512_load_ps(of_tile[0] + sixteen * r), left);
      __m512 b = _mm512_add_ps(_mm512_load_ps(of_tile[1] + sixteen * r), right);
      if constexpr (adds) {
        const __m512i there = _mm512_loadu_si512(p);
        a = _mm512_add_ps(a, widened(_mm512_castsi512_si256(there)));
        b = _mm512_add_ps(b, widened(_mm512_extracti64x4_epi64(there, 1)));
      }
      if constexpr (scales) {
        a = bent(a), b = bent(b);
      }
      _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(b, a));
    }
  }
};

void TileConv::operator()(const BF16* from, const BF16* w, const BF16* bias, BF16* to,
                          void* scratch) const {
  const std::int64_t across = bands(), all = to_.c / channels, tasks = across * parts(all, blocks_);
#pragma omp parallel num_threads(std::min(threads_, threads())) if (tasks > 1)
  {
    Worker worker{*this, from,
                  w,     bias,
                  to,    static_cast<BF16*>(scratch) + std::size_t(omp_get_thread_num()) * room()};
    const Tiles tiles;
#pragma omp for schedule(dynamic)
    for (std::int64_t t = 0; t < tasks; ++t) {
      const std::int64_t first = t / across * blocks_;
      worker.run(band(t % across), first, std::min(blocks_, all - first));
    }
  }
}

#else

void TileConv::operator()(const BF16*, const BF16*, const BF16*, BF16*, void*) const {
  throw Error("tiles: this program was compiled without them");
}

#endif

}  // namespace lamina::detail
