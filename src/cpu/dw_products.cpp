// Products of bf16 come in pairs: an instruction adds two of them to each of 16 sums. So dy and x
// are copied, a chunk of positions at a time, such that a channel's values at two positions lie
// side by side, and a tile of dw stays in registers while a chunk passes by. Tiles (AMX) want those
// of x turned: a channel's pairs side by side.
#include "cpu/dw_products.hpp"

#include "cpu/dw_steps.hpp"

#include <lamina/base/threads.hpp>
#include <lamina/kernels/instruction_set.hpp>

#include <omp.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

namespace lamina::detail {
namespace {

constexpr int most_rows = 32, most_blocks = 1024;  // of a task
constexpr std::size_t tile_bytes = block * block * sizeof(float);

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

bool DwProducts::tiles_available() { return available() && may_use_tiles(); }

DwProducts::DwProducts(const ConvGeometry& g, const Shape& x, bool tiles)
    : g_(g),
      x_(x),
      y_(g.output(x)),
      rows_(blocks_of(g.channels)),
      tiles_(tiles),
      threads_(threads()) {
  constexpr std::int64_t bits = 64;  // of a mask
  const bool few = x.c < block && g.kernel.w > 1 && x.c * g.kernel.w <= bits;
  if (tiles_ && few && g.dilation.w == 1) run_ = x.c * g.kernel.w;
  x_blocks_ = blocks_of(run_ > 0 ? run_ : x.c);
  columns_ = x_blocks_ * int(g.kernel.h * (run_ > 0 ? 1 : g.kernel.w));
  const auto blocked = [&](const Shape& s, int blocks) {
    if (tiles_) return Planes{s.sample(), block, s.c, s.c};
    return Planes{blocks * s.h * s.w * block, s.h * s.w * block, block, blocks * block};
  };
  of_x_ = blocked(x_, x_blocks_), of_dy_ = blocked(y_, rows_);
  // Leaving out padding pays where that saves more cycles than copying dy for each tap takes.
  const int taps = columns_ / x_blocks_;
  double in = 0;
  for (int tap = 0; tap < taps && !tiles_; ++tap)
    in += double(inside_rows(tap).size * inside_columns(tap).size);
  tap_by_tap_ = !tiles_ && 8 * x_blocks_ * (1 - in / double(taps * y_.h * y_.w)) > 3;
  // Cycles as in divide(), as if all were one task, so that threads do not matter. Measured, not
  // derived: below a sixth ours was faster in nearly all shapes, and above it slower.
  pays_ = 6 * (3 * rows_ + 4 * columns_) < 8 * rows_ * columns_;
  if (tiles_) {  // where oneDNN's are slow, measured as well: with a stride, and on large images
    const bool strided = g.stride != Pair(1), large = y_.n * y_.h * y_.w >= 200'000;
    pays_ = taps == 1 || plain() || rows_ >= (large ? 4 : strided ? 8 : 16);
  }
  // Memory is read once, and nothing is copied twice, where each thread has positions of its own.
  constexpr std::int64_t least = 3072, most = 16;
  const bool small = rows_ <= most_rows && rows_ * columns_ <= most_blocks;
  const std::int64_t lines = y_.n * y_.h;  // which are not cut
  if (tiles_ && small)
    shares_ = int(std::clamp(lines * y_.w / least, std::int64_t(1), std::min(most, lines)));
  divide();
}

DwProducts::DwProducts(std::int64_t features, std::int64_t out_block, std::int64_t x_block,
                       const Shape& x, bool tiles)
    : g_{.channels = features},
      x_{x.n, x.sample(), 1, 1},
      y_{x.n, features, 1, 1},
      of_x_{x_.c, block, block, x_.c},
      of_dy_{features, block, block, features},
      x_blocks_(parts(blocks_of(x_.c), blocks_of(x_block)) * blocks_of(x_block)),
      columns_(x_blocks_),
      out_blocks_(blocks_of(out_block)),
      tiles_(tiles),
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

int DwProducts::whole(int positions) const {
  const int together = tiles_ ? 2 * block : 2;
  return parts(positions, together) * together;
}

void DwProducts::divide() {
  // Waking the others takes longer than a few microseconds' products.
  if (4.0 * double(y_.n * y_.h * y_.w) * rows_ * columns_ < 5e4) threads_ = 1;
  // Cycles for two positions: a product of two blocks takes 8, or 1 of tiles, and copying a block
  // some 3 or 4, and as many again to turn it. A thread's part of dw stays in its cache: the second
  // one while many positions are added up, and near the first one where it is only passed on.
  const double product = tiles_ ? 1 : 8, copy = tiles_ ? 8 : 4;
  const int most = y_.n * y_.h * y_.w > chunk ? most_blocks : most_blocks / 4;
  const int most_r = tiles_ ? most_rows : 16;
  double least = std::numeric_limits<double>::max();
  for (int some = 4; some <= std::min(parts(rows_, 4) * 4, most_r); some += 4) {
    const int r = std::min(some, rows_);
    for (int c = 1; c <= std::min(columns_, most / std::max(some, 16)); ++c) {
      const double rounds = parts(shares_ * parts(rows_, r) * parts(columns_, c), threads_);
      const int times = tap_by_tap_ ? parts(c, x_blocks_) : 1;  // that dy is copied
      const double cycles = rounds * (product * r * c + 3.0 * r * times + copy * c);
      if (cycles >= 0.999 * least) continue;
      least = cycles, task_rows_ = r, task_columns_ = c;
    }
  }
}

std::size_t DwProducts::room() const {
  const std::size_t r = std::size_t(task_rows_), c = std::size_t(task_columns_);
  return r * c * tile_bytes + (r + c) * packed_bytes;
}

std::size_t DwProducts::size() const {
  if (plain()) return std::size_t(g_.channels * g_.kernel.h * run_);
  return std::size_t(rows_ * columns_) * block * block;
}

std::size_t DwProducts::scratch() const {
  const std::size_t sums = shares_ > 1 ? std::size_t(shares_) * share_size() : 0;
  return std::size_t(threads_) * room() + sums * sizeof(float);
}

#if defined(LAMINA_HAS_BF16)

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
      : Walk(of, rows, columns, {0, of.y_.n * rows.size}) {}
  /// Some of these rows, by their number in all samples.
  Walk(const DwProducts& of, Part rows, Part columns, Part some)
      : of_(of), rows_(rows), columns_(columns), w_(columns.begin), left_(some.size) {
    if (columns.size == 0) left_ = 0;
    if (left_ > 0) n_ = some.begin / rows.size, h_ = rows.begin + some.begin % rows.size;
  }

  /// None behind the last one.
  LAMINA_BF16 void next(Chunk& to) {
    for (to.count = 0; to.count < chunk && left_ > 0;) {
      const int some = int(std::min<std::int64_t>(chunk - to.count, columns_.end() - w_));
      along_row(to, some);
      to.count += some, w_ += some;
      if (w_ < columns_.end()) continue;
      w_ = columns_.begin, --left_;
      if (++h_ == rows_.end()) h_ = rows_.begin, ++n_;
    }
    for (int i = to.count; i < std::min(chunk, of_.whole(to.count)); ++i) {
      to.dy[std::size_t(i)] = nowhere;
    }
  }

 private:
  LAMINA_BF16 void along_row(Chunk& to, int some) const {
    const std::int64_t row = h_ * of_.g_.stride.h - of_.g_.pad.top;
    const std::int64_t column = w_ * of_.g_.stride.w - of_.g_.pad.left;
    const std::int64_t step = of_.g_.stride.w;
    const std::ptrdiff_t dy_step = of_.of_dy_.position, x_step = of_.of_x_.position * step;
    const std::ptrdiff_t dy = n_ * of_.of_dy_.sample + (h_ * of_.y_.w + w_) * dy_step;
    const std::ptrdiff_t x = n_ * of_.of_x_.sample + (row * of_.x_.w + column) * of_.of_x_.position;
    const std::size_t at = std::size_t(to.count);
    for (std::size_t i = 0; i < std::size_t(some); ++i) {
      to.dy[at + i] = dy + std::ptrdiff_t(i) * dy_step;
      to.x[at + i] = x + std::ptrdiff_t(i) * x_step;
      to.row[at + i] = std::int32_t(row);
      to.column[at + i] = std::int32_t(column + std::int64_t(i) * step);
    }
  }

  const DwProducts& of_;
  Part rows_, columns_;
  std::int64_t n_ = 0, h_ = 0, w_, left_;  // left: rows
};

/// Some rows and columns of dw.
struct DwProducts::Task {
  const DwProducts& of;
  const BF16 *x, *dy;
  int share, first_row, first_column, rows, columns;
  Sixteen* sums;
  Pairs *packed_dy, *packed_x;
  std::array<Sixteen, most_rows> bias = {};
  std::array<Chunk, 2> chunks;
  Chunk *now = &chunks[0], *then = &chunks[1];  // this chunk, and the next one
  Offsets x_now, x_then;                        // for one tap
  Masks taken;
  int begin = 0, end = 0;  // of the columns that are computed now
  int pairs = 0;
  bool start = true;

  Task(const DwProducts& products, const BF16* images, const BF16* gradients, int share_, int row,
       int column, void* room)
      : of(products),
        x(images),
        dy(gradients),
        share(share_),
        first_row(row),
        first_column(column),
        rows(std::min(products.task_rows_, products.rows_ - row)),
        columns(std::min(products.task_columns_, products.columns_ - column)),
        sums(static_cast<Sixteen*>(room)),
        packed_dy(reinterpret_cast<Pairs*>(sums + rows * columns * block)),
        packed_x(packed_dy + rows * apart) {}

  int block_of_x(int column) const { return (first_column + column) % of.x_blocks_; }
  const BF16* plane_of_dy(int row) const { return dy + (first_row + row) * of.of_dy_.plane; }
  const BF16* plane_of_x(int column) const { return x + block_of_x(column) * of.of_x_.plane; }
  int tap_of(int column) const { return (first_column + column) / of.x_blocks_; }

  void run(bool has_bias) {
    const Part all_rows{0, of.y_.h}, all_columns{0, of.y_.w};
    const std::int64_t lines = of.y_.n * of.y_.h, first = lines * share / of.shares_;
    const Part some{first, lines * (share + 1) / of.shares_ - first};
    if (!of.tap_by_tap_) return run(0, columns, Walk(of, all_rows, all_columns, some), has_bias);
    if (has_bias) run(0, 0, Walk(of, all_rows, all_columns), true);
    for (int c = 0; c < columns; c = end) {
      const int tap = tap_of(c), behind = (tap + 1) * of.x_blocks_ - first_column;
      run(c, std::min(columns, behind), Walk(of, of.inside_rows(tap), of.inside_columns(tap)),
          false);
    }
  }
  void run(int from, int to, Walk walk, bool has_bias) {
    begin = from, end = to;
    walk.next(*then);
    if (then->count == 0) clear();
    for (start = true; then->count > 0; start = false) {
      std::swap(now, then);
      pairs = of.whole(now->count) / 2;
      walk.next(*then);
      if (begin < end) locate_in_x(*then, tap_of(begin), x_then);
      pack_all(has_bias);
      multiply_all();
    }
  }
  void clear() {
    for (int r = 0; r < rows; ++r)
      std::memset(sums + (r * columns + begin) * block, 0, std::size_t(end - begin) * tile_bytes);
  }

  LAMINA_BF16 void locate_in_x(const Chunk& at, int tap, Offsets& where) const {
    const std::int64_t across = of.plain() ? 1 : of.g_.kernel.w;
    const std::int64_t down = tap / across * of.g_.dilation.h;
    const std::int64_t right = tap % across * of.g_.dilation.w;
    const bool any_column = of.plain();
    const std::ptrdiff_t further = (down * of.x_.w + right) * of.of_x_.position;
    const auto h = std::uint32_t(of.x_.h), w = std::uint32_t(of.x_.w);
    const auto n = std::size_t(at.count);
    for (std::size_t i = 0; i < n; ++i) {
      // What is negative is far beyond as an unsigned number.
      const bool inside = std::uint32_t(at.row[i] + std::int32_t(down)) < h &&
                          (any_column || std::uint32_t(at.column[i] + std::int32_t(right)) < w);
      where[i] = inside ? at.x[i] + further : nowhere;
    }
    for (std::size_t i = n; i < std::size_t(of.whole(at.count)); ++i) where[i] = nowhere;
  }

  Pairs* panel_of_dy(int row) const { return packed_dy + row * apart; }

  void pack_all(bool has_bias) {
    if (of.tiles_) return pack_all_beside(has_bias);
    for (int r = 0; r < rows; r += 4) pack_rows(r, std::min(4, rows - r), has_bias);
    pack_columns();
  }
  void pack_all_beside(bool has_bias) {
    pack_beside(dy, of.of_dy_.channels, now->dy, nullptr, pairs, first_row, rows, packed_dy);
    if (of.plain()) mask_runs();
    for (int r = 0; has_bias && r < rows; ++r)
      add_up(packed_dy + r * apart, 1, pairs, bias[std::size_t(r)]);
    for (int c = begin, next = begin; c < end; c = next) {
      while (next < end && tap_of(next) == tap_of(c)) ++next;
      locate_in_x(*now, tap_of(c), x_now);
      pack_beside(x, of.of_x_.channels, x_now, of.plain() ? &taken : nullptr, pairs, block_of_x(c),
                  next - c, packed_x + c * apart);
      for (int i = c; i < next; ++i)
        for (int p = 0; p < pairs; p += block)
          turn(*reinterpret_cast<Pairs(*)[block]>(packed_x + i * apart + p));
    }
  }
  /// Of each position of this chunk, which elements of a row of its window lie inside of x.
  void mask_runs() {
    const auto first = [&](std::int64_t some) {
      const std::int64_t n = std::clamp<std::int64_t>(some, 0, of.g_.kernel.w) * of.x_.c;
      return n < 64 ? (std::uint64_t(1) << n) - 1 : ~std::uint64_t(0);
    };
    for (auto i = std::size_t(0); i < std::size_t(now->count); ++i)
      taken[i] = first(of.x_.w - now->column[i]) & ~first(-now->column[i]);
  }
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
      pack(plane_of_x(c), channels, x_now, pairs, packed_x + c * apart, 1);
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
    if (of.tiles_) return multiply_all_tiles();
    int call = 0;
    for (int r = 0; r < rows; r += 4) {
      const int some = std::min(4, rows - r);
      if (some == 4) multiply_panel<4, 4>(r, call);
      if (some == 3) multiply_panel<3, 8>(r, call);
      if (some == 2) multiply_panel<2, 8>(r, call);
      if (some == 1) multiply_panel<1, 16>(r, call);
    }
  }
  /// Two rows and two columns at a time, where there are as many; between them a part of what the
  /// next chunk will read is fetched.
  void multiply_all_tiles() {
    const int across = parts(end - begin, 2), calls = parts(rows, 2) * across;
    for (int call = 0; call < calls; ++call) {
      const int r = call / across * 2, c = begin + call % across * 2;
      fetch_beside(then->count * call / calls, then->count * (call + 1) / calls);
      const auto multiply = c + 1 < end ? r + 1 < rows ? multiply_tiles<2, 2> : multiply_tiles<1, 2>
                            : r + 1 < rows ? multiply_tiles<2, 1>
                                           : multiply_tiles<1, 1>;
      multiply(packed_dy + r * apart, apart, packed_x + c * apart, apart, pairs,
               sums + (r * columns + c) * block, columns * block, start);
    }
  }
  void fetch_beside(int from, int to) const {
    const int blocks_of_x = std::min(end - begin, of.x_blocks_ - block_of_x(begin));
    for (auto i = std::size_t(from); i < std::size_t(to); ++i) {
      fetch_position(dy + first_row * block + then->dy[i], rows);
      if (x_then[i] != nowhere) {
        fetch_position(x + block_of_x(begin) * block + x_then[i], blocks_of_x);
      }
    }
  }
  static void fetch_position(const BF16* at, int blocks) {
    const auto* bytes = reinterpret_cast<const char*>(at);
    for (int b = 0; b < blocks; b += 2) _mm_prefetch(bytes + b * 32, _MM_HINT_T1);
  }
  template <int R, int C>
  LAMINA_BF16 void multiply_panel(int row, int& call) {
    const std::ptrdiff_t stride = columns * block;
    for (int c = begin; c < end; ++c) {
      Sixteen* to = sums + row * stride + c * block;
      for (int first = 0; first < block; first += C) {
        multiply<R, C>(panel_of_dy(row), packed_x + c * apart, first, pairs, ahead(call++), to,
                       stride, start);
      }
    }
  }

  /// As k-h-w-c.
  void write_plain(float* dw) const {
    const std::int64_t width = of.run_, taps = of.g_.kernel.h;
    for (int c = 0; c < columns; ++c)
      for (int r = 0; r < rows; ++r) {
        const std::int64_t first = block_of_x(c) * block, k = (first_row + r) * block;
        const std::int64_t some = std::min<std::int64_t>(block, of.g_.channels - k);
        for (std::int64_t i = 0; i < std::min<std::int64_t>(block, width - first); ++i)
          for (std::int64_t row = 0; row < some; ++row)
            dw[((k + row) * taps + tap_of(c)) * width + first + i] =
                sums[(r * columns + c) * block + i].value[row];
      }
  }
  void write_all(float* dw) const {
    if (of.plain()) return write_plain(dw);
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
  const int across = parts(columns_, task_columns_), down = parts(rows_, task_rows_);
  const int tasks = shares_ * down * across;
  float* const sums =
      reinterpret_cast<float*>(static_cast<char*>(scratch) + std::size_t(threads_) * this->room());
#pragma omp parallel num_threads(std::min(threads_, threads())) if (tasks > 1)
  {
    void* room = static_cast<char*>(scratch) + std::size_t(omp_get_thread_num()) * this->room();
    const Tiles tiles(tiles_);
#pragma omp for schedule(dynamic)
    for (int t = 0; t < tasks; ++t) {
      const int share = t / across / down;
      const int row = t / across % down * task_rows_, column = t % across * task_columns_;
      const bool has_bias = db && column == 0;
      Task task(*this, x, dy, share, row, column, room);
      task.run(has_bias);
      float* of_share = sums + std::size_t(share) * share_size();
      task.write_all(shares_ > 1 ? of_share : dw);
      if (has_bias) task.write_bias(shares_ > 1 ? of_share + size() : db);
    }
    if (shares_ > 1) {
#pragma omp for schedule(static)
      for (std::size_t i = 0; i < size(); i += block)
        add_shares(sums + i, std::min<std::size_t>(block, size() - i), dw + i);
#pragma omp single
      if (db) add_shares(sums + size(), std::size_t(g_.channels), db);
    }
  }
}

void DwProducts::add_shares(const float* from, std::size_t n, float* to) const {
  for (std::size_t i = 0; i < n; ++i) to[i] = from[i];
  for (int share = 1; share < shares_; ++share) {
    from += share_size();
    for (std::size_t i = 0; i < n; ++i) to[i] += from[i];
  }
}

#else

void DwProducts::operator()(const BF16*, const BF16*, float*, float*, void*) const {}

#endif

}  // namespace lamina::detail
