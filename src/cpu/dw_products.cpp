// Products of bf16 come in pairs: an instruction adds two of them to each of 16 sums. So dy and x
// are copied, a chunk of positions at a time, such that a channel's values at two positions lie
// side by side, and a tile of dw stays in registers while a chunk passes by.
#include "cpu/dw_products.hpp"

#include "cpu/simd.hpp"

#include <lamina/kernels/instruction_set.hpp>
#include <lamina/kernels/threads.hpp>

#include <omp.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define LAMINA_HAS_BF16
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC bug 105593
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#define LAMINA_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")))
#define LAMINA_BF16_STEP LAMINA_BF16 __attribute__((always_inline)) inline
#endif

namespace lamina::detail {
namespace {

constexpr int block = 16;   // channels
constexpr int chunk = 256;  // positions, so that what a tile reads of dy stays in the first cache
constexpr std::size_t tile_bytes = block * block * sizeof(float);
constexpr std::size_t packed_bytes = chunk * block * sizeof(BF16);  // of a block of channels

int blocks_of(std::int64_t channels) { return int((channels + block - 1) / block); }
int parts(int all, int of) { return (all + of - 1) / of; }

/// Of `y` windows those whose element `at` is inside of x, of that size.
Part inside(std::int64_t y, std::int64_t x, std::int64_t stride, std::int64_t pad,
            std::int64_t at) {
  const std::int64_t before = std::max<std::int64_t>(0, pad - at), behind = x - 1 + pad - at;
  const std::int64_t begin = (before + stride - 1) / stride;
  const std::int64_t end = behind < 0 ? 0 : std::min(y, behind / stride + 1);
  return {begin, std::max<std::int64_t>(0, end - begin)};
}

}  // namespace

bool DwProducts::available() {
#if defined(LAMINA_HAS_BF16)
  return instruction_set() >= InstructionSet::avx512_core_bf16;
#else
  return false;
#endif
}

DwProducts::DwProducts(const ConvGeometry& g, const Shape& x)
    : g_(g),
      x_(x),
      y_(g.output(x)),
      x_blocks_(blocks_of(x.c)),
      rows_(blocks_of(g.channels)),
      columns_(x_blocks_ * int(g.kernel.h * g.kernel.w)),
      threads_(threads()) {
  const auto blocked = [](const Shape& s, int blocks) {
    return Planes{blocks * s.h * s.w * block, s.h * s.w * block, blocks * block};
  };
  of_x_ = blocked(x_, x_blocks_), of_dy_ = blocked(y_, rows_);
  // Leaving out padding pays where that saves more cycles than copying dy for each tap takes.
  const int taps = columns_ / x_blocks_;
  double in = 0;
  for (int tap = 0; tap < taps; ++tap)
    in += double(inside_rows(tap).size * inside_columns(tap).size);
  tap_by_tap_ = 8 * x_blocks_ * (1 - in / double(taps * y_.h * y_.w)) > 3;
  // Cycles as in divide(), as if all were one task, so that threads do not matter. Measured, not
  // derived: below a sixth ours was faster in nearly all shapes, and above it slower.
  pays_ = 6 * (3 * rows_ + 4 * columns_) < 8 * rows_ * columns_;
  divide();
}

DwProducts::DwProducts(std::int64_t features, std::int64_t out_block, const Shape& x)
    : g_{.channels = features},
      x_{x.n, x.sample(), 1, 1},
      y_{x.n, features, 1, 1},
      of_x_{x_.c, block, x_.c},
      of_dy_{features, block, features},
      x_blocks_(blocks_of(x_.c)),
      columns_(x_blocks_),
      out_blocks_(blocks_of(out_block)),
      threads_(threads()) {
  rows_ = parts(blocks_of(features), out_blocks_) * out_blocks_;
  divide();
}

Part DwProducts::inside_rows(int tap) const {
  const std::int64_t at = tap / g_.kernel.w * g_.dilation.h;
  return inside(y_.h, x_.h, g_.stride.h, g_.pad.top, at);
}
Part DwProducts::inside_columns(int tap) const {
  const std::int64_t at = tap % g_.kernel.w * g_.dilation.w;
  return inside(y_.w, x_.w, g_.stride.w, g_.pad.left, at);
}

void DwProducts::divide() {
  // Waking the others takes longer than a few microseconds' products.
  if (4.0 * double(y_.n * y_.h * y_.w) * rows_ * columns_ < 5e4) threads_ = 1;
  // Cycles for two positions: a product of two blocks takes 8, and copying a block some 3 or 4. A
  // thread's part of dw stays in its cache: the second one while many positions are added up, and
  // near the first one where it is only passed on.
  const int most = y_.n * y_.h * y_.w > chunk ? 64 : 16;
  double least = std::numeric_limits<double>::max();
  for (int some = 4; some <= std::min(parts(rows_, 4) * 4, 16); some += 4) {
    const int r = std::min(some, rows_);
    for (int c = 1; c <= std::min(columns_, most); ++c) {
      const double rounds = parts(parts(rows_, r) * parts(columns_, c), threads_);
      const int times = tap_by_tap_ ? parts(c, x_blocks_) : 1;  // that dy is copied
      const double cycles = rounds * (8.0 * r * c + 3.0 * r * times + 4.0 * c);
      if (cycles >= 0.999 * least) continue;
      least = cycles, task_rows_ = r, task_columns_ = c;
    }
  }
}

std::size_t DwProducts::room() const {
  const std::size_t r = std::size_t(task_rows_), c = std::size_t(task_columns_);
  return r * c * tile_bytes + (r + c) * packed_bytes;
}

#if defined(LAMINA_HAS_BF16)

namespace {

/// Where positions lie in a plane, in elements; nowhere: padding.
using Offsets = std::array<std::ptrdiff_t, chunk>;
constexpr std::ptrdiff_t nowhere = -1;

/// The values of 16 channels at two positions: those of a channel side by side.
struct alignas(64) Pairs {
  std::uint32_t of_channel[block];
};
struct alignas(64) Sixteen {
  float value[block];
};

LAMINA_BF16_STEP __m512bh vector(const Pairs& p) {
  return (__m512bh)_mm512_load_si512(p.of_channel);
}

/// Copies the positions of a plane, zeros behind its first `channels`; the pairs are `step` apart.
LAMINA_BF16 void pack(const BF16* plane, std::int64_t channels, const Offsets& where, int pairs,
                      Pairs* to, int step) {
  alignas(64) static constexpr BF16 zeros[block] = {};
  const auto there = __mmask16((1u << std::clamp<std::int64_t>(channels, 0, block)) - 1);
  alignas(64) std::uint16_t order[2 * block];
  for (int i = 0; i < block; ++i) {
    order[2 * i] = std::uint16_t(i), order[2 * i + 1] = std::uint16_t(block + i);
  }
  const __m512i side_by_side = _mm512_load_si512(order);
  const auto half = [&](int i) __attribute__((target("avx512f,avx512bw,avx512vl"))) {
    const std::ptrdiff_t at = where[std::size_t(i)];
    const BF16* from = at == nowhere ? zeros : plane + at;
    return _mm256_maskz_loadu_epi16(there, from);
  };
  for (int p = 0; p < pairs; ++p) {
    const __m512i both =
        _mm512_inserti64x4(_mm512_castsi256_si512(half(2 * p)), half(2 * p + 1), 1);
    _mm512_store_si512(to[p * step].of_channel, _mm512_permutexvar_epi16(side_by_side, both));
  }
}

/// What the next chunk will read of a plane, fetched while this one is computed.
struct Ahead {
  const BF16* plane = nullptr;
  const Offsets* where = nullptr;

  LAMINA_BF16_STEP void fetch(int pair) const {
    if (plane)
      _mm_prefetch(reinterpret_cast<const char*>(plane + (*where)[2 * std::size_t(pair)]),
                   _MM_HINT_T1);
  }
};

/// R blocks of dy by C channels of x: `dy` has R blocks for each pair of positions, x one, and
/// blocks of rows lie `row` apart in `sums`. Added to what is there unless this is the `start`.
template <int R, int C>
LAMINA_BF16_STEP void multiply(const Pairs* dy, const Pairs* x, int first, int pairs, Ahead ahead,
                               Sixteen* sums, std::ptrdiff_t row, bool start) {
  __m512 tile[R][C];
  for (auto& r : tile)
    for (auto& c : r) c = _mm512_setzero_ps();
  for (int p = 0; p < pairs; ++p) {
    ahead.fetch(p);
    __m512bh of_dy[R];
    for (int r = 0; r < R; ++r) of_dy[r] = vector(dy[p * R + r]);
    for (int c = 0; c < C; ++c) {
      const auto of_x = (__m512bh)_mm512_set1_epi32(int(x[p].of_channel[first + c]));
      for (int r = 0; r < R; ++r) tile[r][c] = _mm512_dpbf16_ps(tile[r][c], of_dy[r], of_x);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) {
      float* to = sums[r * row + first + c].value;
      const __m512 before = start ? _mm512_setzero_ps() : _mm512_load_ps(to);
      _mm512_store_ps(to, _mm512_add_ps(before, tile[r][c]));
    }
}

/// Adds the sums of a block of dy over positions, of which there is one pair each `step`.
LAMINA_BF16 void add_up(const Pairs* dy, int step, int pairs, Sixteen& sums) {
  const auto ones = (__m512bh)_mm512_set1_epi32(0x3F803F80);
  __m512 some = _mm512_setzero_ps();
  for (int p = 0; p < pairs; ++p) some = _mm512_dpbf16_ps(some, vector(dy[p * step]), ones);
  _mm512_store_ps(sums.value, _mm512_add_ps(_mm512_load_ps(sums.value), some));
}

/// Puts sixteen channels of x, rows of `from`, as pairs of those, which lie `step` apart; past the
/// caches if wanted.
LAMINA_BF16 void write(const Sixteen* from, float* to, std::ptrdiff_t step, bool past) {
  alignas(64) std::int32_t low[block], high[block];
  for (int i = 0; i < block / 2; ++i) {
    low[2 * i] = i, low[2 * i + 1] = block + i;
    high[2 * i] = block / 2 + i, high[2 * i + 1] = block + block / 2 + i;
  }
  const __m512i first = _mm512_load_si512(low), second = _mm512_load_si512(high);
  for (int c = 0; c < block; c += 2, to += step) {
    const __m512 a = _mm512_load_ps(from[c].value), b = _mm512_load_ps(from[c + 1].value);
    const __m512 left = _mm512_permutex2var_ps(a, first, b);
    const __m512 right = _mm512_permutex2var_ps(a, second, b);
    if (past) {
      _mm512_stream_ps(to, left), _mm512_stream_ps(to + block, right);
    } else {
      _mm512_storeu_ps(to, left), _mm512_storeu_ps(to + block, right);
    }
  }
}

}  // namespace

/// Positions of y: where they lie in a plane of dy, and, of each one's window, the first row and
/// column and where that is in a plane of x, both of which may be padding.
struct DwProducts::Chunk {
  int count = 0;
  Offsets dy, x;
  std::array<std::int32_t, chunk> row, column;
};

/// The positions of y in these rows and columns of all samples, a chunk at a time.
class DwProducts::Walk {
 public:
  Walk(const DwProducts& of, Part rows, Part columns)
      : of_(of), rows_(rows), columns_(columns), h_(rows.begin), w_(columns.begin) {
    if (rows.size == 0 || columns.size == 0) n_ = of.y_.n;
  }

  /// None behind the last one.
  LAMINA_BF16 void next(Chunk& to) {
    for (to.count = 0; to.count < chunk && n_ < of_.y_.n;) {
      const int some = int(std::min<std::int64_t>(chunk - to.count, columns_.end() - w_));
      along_row(to, some);
      to.count += some, w_ += some;
      if (w_ < columns_.end()) continue;
      w_ = columns_.begin;
      if (++h_ == rows_.end()) h_ = rows_.begin, ++n_;
    }
    if (to.count < chunk) to.dy[std::size_t(to.count)] = nowhere;
  }

 private:
  LAMINA_BF16 void along_row(Chunk& to, int some) const {
    const std::int64_t row = h_ * of_.g_.stride.h - of_.g_.pad.top;
    const std::int64_t column = w_ * of_.g_.stride.w - of_.g_.pad.left;
    const std::ptrdiff_t dy = n_ * of_.of_dy_.sample + (h_ * of_.y_.w + w_) * block;
    const std::ptrdiff_t x = n_ * of_.of_x_.sample + (row * of_.x_.w + column) * block;
    const std::int64_t step = of_.g_.stride.w;
    const std::size_t at = std::size_t(to.count);
    for (std::size_t i = 0; i < std::size_t(some); ++i) {
      to.dy[at + i] = dy + std::ptrdiff_t(i) * block;
      to.x[at + i] = x + std::ptrdiff_t(i) * step * block;
      to.row[at + i] = std::int32_t(row);
      to.column[at + i] = std::int32_t(column + std::int64_t(i) * step);
    }
  }

  const DwProducts& of_;
  Part rows_, columns_;
  std::int64_t n_ = 0, h_, w_;
};

/// Some rows and columns of dw.
struct DwProducts::Task {
  const DwProducts& of;
  const BF16 *x, *dy;
  int first_row, first_column, rows, columns;
  Sixteen* sums;
  Pairs *packed_dy, *packed_x;
  std::array<Sixteen, 16> bias = {};
  std::array<Chunk, 2> chunks;
  Chunk *now = &chunks[0], *then = &chunks[1];  // this chunk, and the next one
  Offsets x_now, x_then;                        // for one tap
  int begin = 0, end = 0;                       // of the columns that are computed now
  int pairs = 0;
  bool start = true;

  Task(const DwProducts& products, const BF16* images, const BF16* gradients, int row, int column,
       void* room)
      : of(products),
        x(images),
        dy(gradients),
        first_row(row),
        first_column(column),
        rows(std::min(products.task_rows_, products.rows_ - row)),
        columns(std::min(products.task_columns_, products.columns_ - column)),
        sums(static_cast<Sixteen*>(room)),
        packed_dy(reinterpret_cast<Pairs*>(sums + rows * columns * block)),
        packed_x(packed_dy + rows * (chunk / 2)) {}

  int block_of_x(int column) const { return (first_column + column) % of.x_blocks_; }
  const BF16* plane_of_dy(int row) const { return dy + (first_row + row) * of.of_dy_.plane; }
  const BF16* plane_of_x(int column) const { return x + block_of_x(column) * of.of_x_.plane; }
  int tap_of(int column) const { return (first_column + column) / of.x_blocks_; }

  void run(bool has_bias) {
    const Part all_rows{0, of.y_.h}, all_columns{0, of.y_.w};
    if (!of.tap_by_tap_) return run(0, columns, Walk(of, all_rows, all_columns), has_bias);
    if (has_bias) run(0, 0, Walk(of, all_rows, all_columns), true);
    for (int first = 0; first < columns; first = end) {
      const int tap = tap_of(first), behind = (tap + 1) * of.x_blocks_ - first_column;
      run(first, std::min(columns, behind), Walk(of, of.inside_rows(tap), of.inside_columns(tap)),
          false);
    }
  }
  void run(int from, int to, Walk walk, bool has_bias) {
    begin = from, end = to;
    walk.next(*then);
    if (then->count == 0) clear();
    for (start = true; then->count > 0; start = false) {
      std::swap(now, then);
      pairs = (now->count + 1) / 2;
      walk.next(*then);
      if (begin < end) locate_in_x(*then, tap_of(begin), x_then);
      for (int r = 0; r < rows; r += 4) pack_rows(r, std::min(4, rows - r), has_bias);
      pack_columns();
      multiply_all();
    }
  }
  void clear() {
    for (int r = 0; r < rows; ++r)
      std::memset(sums + (r * columns + begin) * block, 0, std::size_t(end - begin) * tile_bytes);
  }

  LAMINA_BF16 void locate_in_x(const Chunk& at, int tap, Offsets& where) const {
    const std::int64_t down = tap / of.g_.kernel.w * of.g_.dilation.h;
    const std::int64_t right = tap % of.g_.kernel.w * of.g_.dilation.w;
    const std::ptrdiff_t further = (down * of.x_.w + right) * block;
    const auto h = std::uint32_t(of.x_.h), w = std::uint32_t(of.x_.w);
    const auto n = std::size_t(at.count);
    for (std::size_t i = 0; i < n; ++i) {
      // What is negative is far beyond as an unsigned number.
      const bool inside = std::uint32_t(at.row[i] + std::int32_t(down)) < h &&
                          std::uint32_t(at.column[i] + std::int32_t(right)) < w;
      where[i] = inside ? at.x[i] + further : nowhere;
    }
    if (n < chunk) where[n] = nowhere;
  }

  Pairs* panel_of_dy(int row) const { return packed_dy + row * (chunk / 2); }

  /// Four rows at most, beside each other.
  void pack_rows(int row, int some, bool has_bias) {
    for (int r = 0; r < some; ++r) {
      Pairs* to = panel_of_dy(row) + r;
      const std::int64_t channels = of.of_dy_.channels - (first_row + row + r) * block;
      pack(plane_of_dy(row + r), channels, now->dy, pairs, to, some);
      if (has_bias) add_up(to, some, pairs, bias[std::size_t(row + r)]);
    }
  }
  void pack_columns() {
    for (int c = begin; c < end; ++c) {
      if (c == begin || tap_of(c) != tap_of(c - 1)) locate_in_x(*now, tap_of(c), x_now);
      const std::int64_t channels = of.of_x_.channels - block_of_x(c) * block;
      pack(plane_of_x(c), channels, x_now, pairs, packed_x + c * pairs, 1);
    }
  }

  /// The i-th plane that the next chunk reads, if it is a whole one: those of dy, and those of x
  /// for the first tap, whose neighbours read the same.
  Ahead ahead(int i) const {
    if (then->count < chunk) return {};
    if (i < rows) return {plane_of_dy(i), &then->dy};
    const int column = begin + i - rows;
    if (column < end && tap_of(column) == tap_of(begin)) return {plane_of_x(column), &x_then};
    return {};
  }

  /// 16 to 24 sums in registers, which covers the time that an addition takes.
  void multiply_all() {
    int call = 0;
    for (int r = 0; r < rows; r += 4) {
      const int some = std::min(4, rows - r);
      if (some == 4) multiply_panel<4, 4>(r, call);
      if (some == 3) multiply_panel<3, 8>(r, call);
      if (some == 2) multiply_panel<2, 8>(r, call);
      if (some == 1) multiply_panel<1, 16>(r, call);
    }
  }
  template <int R, int C>
  LAMINA_BF16 void multiply_panel(int row, int& call) {
    const std::ptrdiff_t stride = columns * block;
    for (int c = begin; c < end; ++c) {
      Sixteen* to = sums + row * stride + c * block;
      for (int first = 0; first < block; first += C) {
        multiply<R, C>(panel_of_dy(row), packed_x + c * pairs, first, pairs, ahead(call++), to,
                       stride, start);
      }
    }
  }

  void write_all(float* dw) const {
    const int taps = of.columns_ / of.x_blocks_, together = of.out_blocks_;
    const std::ptrdiff_t size = block * block * together;
    const std::size_t bytes = std::size_t(of.rows_ * of.columns_) * tile_bytes;
    const bool past = past_caches(bytes, dw) && reinterpret_cast<std::uintptr_t>(dw) % 64 == 0;
    for (int c = 0; c < columns; ++c) {
      for (int r = 0; r < rows; ++r) {
        const int row = first_row + r;
        const std::ptrdiff_t of_x = std::ptrdiff_t(row / together) * of.x_blocks_ + block_of_x(c);
        float* to = dw + (of_x * taps + tap_of(c)) * size + row % together * 2 * block;
        write(sums + (r * columns + c) * block, to, 2 * block * together, past);
      }
    }
    if (past) finish_puts();
  }
  void write_bias(float* db) const {
    for (int r = 0; r < rows; ++r) {
      const std::int64_t k = (first_row + r) * block, n = of.g_.channels - k;
      const float* from = bias[std::size_t(r)].value;
      std::copy_n(from, std::clamp<std::int64_t>(n, 0, block), db + std::min(k, of.g_.channels));
    }
  }
};

void DwProducts::operator()(const BF16* x, const BF16* dy, float* dw, float* db,
                            void* scratch) const {
  const int across = parts(columns_, task_columns_);
  const int tasks = parts(rows_, task_rows_) * across;
#pragma omp parallel num_threads(std::min(threads_, threads())) if (tasks > 1)
  {
    void* room = static_cast<char*>(scratch) + std::size_t(omp_get_thread_num()) * this->room();
#pragma omp for schedule(dynamic)
    for (int t = 0; t < tasks; ++t) {
      const int row = t / across * task_rows_, column = t % across * task_columns_;
      const bool has_bias = db && column == 0;
      Task task(*this, x, dy, row, column, room);
      task.run(has_bias);
      task.write_all(dw);
      if (has_bias) task.write_bias(db);
    }
  }
}

#else

void DwProducts::operator()(const BF16*, const BF16*, float*, float*, void*) const {}

#endif

}  // namespace lamina::detail
