// Winograd's convolution. With the 6x6 transforms U of w, V of a tile of x and Z of the tile of dy
// that belongs to it, in each of their 36 elements
//   y = A^T (sum over c of U V) A,   dw = G^T (sum over tiles of Z V) G,
// and dx is the filter with w turned around: 36 matrix products where a direct convolution has 144
// products for each 4x4 tile. With tiles of 2x2 it is 4x4 transforms, and 16 products for 36. Tiles
// go through in chunks, so that what lies between the steps stays in the caches.
#include "cpu/winograd.hpp"

#include <algorithm>

#if defined(__x86_64__)
#include "cpu/winograd_tiles.hpp"
#endif

namespace lamina::detail {

#if defined(__x86_64__)

namespace {

using Index = std::int64_t;

// Weights lie in blocks of 3x3, eight channels of x and eight of y.
constexpr Index window = 9, block_size = window * 64;

/// For each of the points a matrix of rows and blocks of eight columns; distances in floats.
struct Matrices {
  float* data;
  Index row, block, plane;

  float* at(int point, Index r, Index b) const {
    return data + point * plane + r * row + b * block;
  }
};

/// Cuts scratch memory into matrices. No distance is a power of two: what is written one after the
/// other would compete for the same lines of the caches.
struct Room {
  float* start;
  int points;
  Index used = 0;

  /// The blocks of a row lie together: tiles by channels.
  Matrices by_rows(Index rows, Index blocks) {
    const Index row = 8 * blocks + 16;
    return take(row, 8, rows * row + 16);
  }
  /// The rows of a block do: channels of x by channels of y.
  Matrices by_blocks(Index rows, Index blocks) { return take(8, 8 * rows, 8 * rows * blocks + 16); }

 private:
  Matrices take(Index row, Index block, Index plane) {
    float* data = start ? start + used : nullptr;
    used += points * plane;
    return {data, row, block, plane};
  }
};

template <class F>
LAMINA_AVX2 void store_points(const Lanes* from, const Matrices& to, Index row, Index block) {
  for (int p = 0; p < F::points; ++p) _mm256_storeu_ps(to.at(p, row, block), from[p]);
}
template <class F>
LAMINA_AVX2 void load_points(const Matrices& from, Index row, Index block, Lanes* to) {
  for (int p = 0; p < F::points; ++p) to[p] = _mm256_loadu_ps(from.at(p, row, block));
}

/// Rows are x's channels, columns y's.
template <class F>
LAMINA_AVX2 void transform_weights(const float* w, Index x_block, Index y_block,
                                   const Matrices& to) {
  for (int i = 0; i < 8; ++i) {
    Lanes in[window], out[F::points];
    for (int k = 0; k < window; ++k) in[k] = _mm256_loadu_ps(w + k * 64 + i * 8);
    transform<typename F::OfFilter>(in, out);
    store_points<F>(out, to, x_block * 8 + i, y_block);
  }
}

/// The same for the input gradient: turned around, and rows are y's channels, columns x's.
template <class F>
LAMINA_AVX2 void transform_turned(const float* w, Index x_block, Index y_block,
                                  const Matrices& to) {
  float turned[block_size];
  for (int k = 0; k < window; ++k)
    for (int o = 0; o < 8; ++o)
      for (int i = 0; i < 8; ++i) turned[k * 64 + o * 8 + i] = w[(8 - k) * 64 + i * 8 + o];
  transform_weights<F>(turned, y_block, x_block, to);
}

template <class F>
LAMINA_AVX2 void finish_weights(const Matrices& sums, Index x_block, Index y_block, float* dw) {
  for (int i = 0; i < 8; ++i) {
    Lanes in[F::points], out[window];
    load_points<F>(sums, x_block * 8 + i, y_block, in);
    transform<typename F::ToFilter>(in, out);
    for (int k = 0; k < window; ++k) _mm256_storeu_ps(dw + k * 64 + i * 8, out[k]);
  }
}

/// Of all blocks of channels of x and y.
template <class F>
void transform_all(const float* w, Index x_blocks, Index y_blocks, bool turned,
                   const Matrices& to) {
#pragma omp parallel for collapse(2) schedule(static)
  for (Index k = 0; k < y_blocks; ++k)
    for (Index c = 0; c < x_blocks; ++c)
      (turned ? transform_turned<F> : transform_weights<F>)(w + (k * x_blocks + c) * block_size, c,
                                                            k, to);
}

template <class F, class T>
LAMINA_AVX2 void transform_tile(const Plane& from, Index row, Index column, const Matrices& to,
                                Index tile, Index block) {
  Lanes in[T::in * T::in], out[F::points];
  load<T::in>(from, row, column, in);
  transform<T>(in, out);
  store_points<F>(out, to, tile, block);
}

/// `e.b`: the eight biases of the block, or none.
template <class F>
LAMINA_AVX2 void finish_tile(const Matrices& from, Index tile, Index block,
                             const Winograd::Ending& e, const Plane& to, Index row, Index column) {
  constexpr int tile_size = F::tile * F::tile;
  Lanes in[F::points], out[tile_size];
  load_points<F>(from, tile, block, in);
  transform<typename F::ToResult>(in, out);
  if (e.b) {
    const Lanes bias = _mm256_loadu_ps(e.b);
    for (Lanes& v : out) v += bias;
  }
  if (e.add) {
    Lanes added[tile_size];
    load<F::tile>(to, row, column, added);
    for (int i = 0; i < tile_size; ++i) out[i] += added[i];
  }
  if (e.slope != 1) {
    const Lanes zero = _mm256_setzero_ps(), slope = _mm256_set1_ps(e.slope);
    // What is not a number is not less than zero, and stays.
    for (Lanes& v : out)
      v = _mm256_blendv_ps(v, e.slope == 0 ? zero : v * slope, _mm256_cmp_ps(v, zero, _CMP_LT_OQ));
  }
  store<F::tile>(out, to, row, column);
}

/// The sum of a plane in each of its eight channels. Rows are summed in f32.
LAMINA_AVX2 void add_up(const Plane& from, double* sums) {
  for (Index i = 0; i < from.h; ++i) {
    Lanes row = _mm256_setzero_ps();
    for (Index j = 0; j < from.w; ++j) row += _mm256_loadu_ps(from.at(i, j));
    for (int l = 0; l < 8; ++l) sums[l] += double(row[l]);
  }
}

using Product = void (*)(const float*, Strides, const float*, Strides, float*, Strides, Index,
                         bool);
// By vectors of eight columns and by rows: twelve sums are as many as the registers hold.
constexpr int most_rows = 6;
constexpr Product products[2][most_rows] = {
    {product<1, 1>, product<2, 1>, product<3, 1>, product<4, 1>, product<5, 1>, product<6, 1>},
    {product<1, 2>, product<2, 2>, product<3, 2>, product<4, 2>, product<5, 2>, product<6, 2>}};

/// c += a b, or c = a b, of one or two blocks of columns.
void multiply(const float* a, Strides as, const float* b, Strides bs, float* c, Strides cs,
              Index rows, Index blocks, Index steps, bool add) {
  for (Index i = 0; i < rows; i += most_rows) {
    const Index some = std::min<Index>(most_rows, rows - i);
    products[blocks - 1][some - 1](a + i * as.row, as, b, bs, c + i * cs.row, cs, steps, add);
  }
}

// Channels of x whose weights, for sixteen channels of y, the first cache holds.
constexpr Index depth = 256;

}  // namespace

int Winograd::points() const { return tile_ == F2::tile ? F2::points : F4::points; }

/// The tiles of an image, and how many go through the products together.
struct Winograd::Tiles {
  Index size, down, across, all, chunk;

  Tiles(Index n, const Image& y, Index s)
      : size(s), down((y.h + s - 1) / s), across((y.w + s - 1) / s), all(n * down * across) {
    // The weights are read once for each chunk, and its transforms lie in a cache until then.
    constexpr Index most = 24 * most_rows;
    const Index chunks = (all + most - 1) / most, even = (all + chunks - 1) / chunks;
    chunk = std::min(all, (even + most_rows - 1) / most_rows * most_rows);
  }

  struct Tile {
    Index n, row, column;
  };
  Tile operator[](Index i) const {
    return {i / (down * across), i / across % down * size, i % across * size};
  }
};

namespace {

template <class Image>
Plane plane(const float* data, const Image& image, Index n, Index block) {
  return {const_cast<float*>(data) + (n * image.blocks + block) * image.h * image.w * 8, image.h,
          image.w};
}

}  // namespace

bool Winograd::available() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

bool Winograd::possible(const ConvGeometry& g) {
  const bool plain = g.stride == Pair(1) && g.dilation == Pair(1) && g.groups == 1;
  return available() && g.kernel == Pair(3) && plain;
}

bool Winograd::pays(const ConvGeometry& g, const Shape& x) {
  if (!possible(g)) return false;
  // For each pair of channels, in the time of a multiplication of a direct convolution: a tile
  // takes 36 of them and its share of the transforms, the weights take as long as 20 tiles.
  const Shape y = g.output(x);
  const Tiles tiles(x.n, {1, y.h, y.w}, F4::tile);
  return 9 * y.n * y.h * y.w > 60 * (tiles.all + 20);
}

Winograd::Winograd(const ConvGeometry& g, const Shape& x, int tile)
    : n_(x.n), top_(g.pad.top), left_(g.pad.left), channels_(g.bias ? g.channels : 0), tile_(tile) {
  const Shape y = g.output(x);
  x_ = {(x.c + 7) / 8, x.h, x.w};
  y_ = {(y.c + 7) / 8, y.h, y.w};
}

std::size_t Winograd::scratch(bool weights) const {
  const Index chunk = std::max(Tiles(n_, x_, tile_).chunk, Tiles(n_, y_, tile_).chunk);
  // The input gradient has them the other way round, which takes as much.
  Room room{nullptr, points()};
  if (weights) room.by_blocks(x_.channels(), y_.blocks);
  room.by_rows(chunk, x_.blocks), room.by_rows(chunk, y_.blocks);
  return std::size_t(room.used) * sizeof(float);
}

std::int64_t Winograd::prepared_size() const {
  Room room{nullptr, points()};
  room.by_blocks(x_.channels(), y_.blocks);
  return room.used;
}

void Winograd::prepare(const float* w, float* prepared) const {
  const Matrices to = Room{prepared, points()}.by_blocks(x_.channels(), y_.blocks);
  (tile_ == F2::tile ? transform_all<F2> : transform_all<F4>)(w, x_.blocks, y_.blocks, false, to);
}

void Winograd::filter(const float* from, const Weights& w, const Ending& e, float* to, bool turned,
                      float* scratch) const {
  if (tile_ == F2::tile) return filter_by<F2>(from, w, e, to, turned, scratch);
  filter_by<F4>(from, w, e, to, turned, scratch);
}

template <class F>
void Winograd::filter_by(const float* from, const Weights& w, const Ending& e, float* to,
                         bool turned, float* scratch) const {
  const Image &x = turned ? y_ : x_, &y = turned ? x_ : y_;
  const Index top = turned ? 2 - top_ : top_, left = turned ? 2 - left_ : left_;
  const Tiles tiles(n_, y, F::tile);
  Room room{scratch, F::points}, prepared{const_cast<float*>(w.data), F::points};
  const Matrices weights = (w.prepared ? prepared : room).by_blocks(x.channels(), y.blocks);
  const Matrices image = room.by_rows(tiles.chunk, x.blocks);
  const Matrices result = room.by_rows(tiles.chunk, y.blocks);

  if (!w.prepared) transform_all<F>(w.data, x_.blocks, y_.blocks, turned, weights);
  for (Index first = 0; first < tiles.all; first += tiles.chunk) {
    const Index count = std::min(tiles.chunk, tiles.all - first);
#pragma omp parallel for schedule(static)
    for (Index i = 0; i < count; ++i) {
      const auto tile = tiles[first + i];
      for (Index c = 0; c < x.blocks; ++c) {
        transform_tile<F, typename F::OfImage>(plane(from, x, tile.n, c), tile.row - top,
                                               tile.column - left, image, i, c);
      }
    }
#pragma omp parallel for collapse(2) schedule(static)
    for (int p = 0; p < F::points; ++p)
      for (Index k = 0; k < y.blocks; k += 2)
        for (Index c = 0; c < x.channels(); c += depth) {
          multiply(image.at(p, 0, c / 8), {image.row, 1}, weights.at(p, c, k),
                   {weights.row, weights.block}, result.at(p, 0, k), {result.row, result.block},
                   count, std::min<Index>(2, y.blocks - k), std::min(depth, x.channels() - c),
                   c > 0);
        }
#pragma omp parallel for schedule(static)
    for (Index i = 0; i < count; ++i) {
      const auto tile = tiles[first + i];
      for (Index k = 0; k < y.blocks; ++k) {
        float bias[8] = {};
        if (e.b) std::copy_n(e.b + 8 * k, std::min<Index>(8, channels_ - 8 * k), bias);
        finish_tile<F>(result, i, k, {e.b ? bias : nullptr, e.add, e.slope},
                       plane(to, y, tile.n, k), tile.row, tile.column);
      }
    }
  }
}

void Winograd::weight_grad(const float* x, const float* dy, float* dw, float* db,
                           float* scratch) const {
  using F = F4;
  check(tile_ == F::tile, "Winograd: tiles of ", tile_, 'x', tile_, " are for forward alone");
  const Tiles tiles(n_, y_, F::tile);
  Room room{scratch, F::points};
  const Matrices weights = room.by_blocks(x_.channels(), y_.blocks);
  const Matrices image = room.by_rows(tiles.chunk, x_.blocks);
  const Matrices result = room.by_rows(tiles.chunk, y_.blocks);

  for (Index first = 0; first < tiles.all; first += tiles.chunk) {
    const Index count = std::min(tiles.chunk, tiles.all - first);
#pragma omp parallel for schedule(static)
    for (Index i = 0; i < count; ++i) {
      const auto tile = tiles[first + i];
      for (Index c = 0; c < x_.blocks; ++c) {
        transform_tile<F, F::OfImage>(plane(x, x_, tile.n, c), tile.row - top_, tile.column - left_,
                                      image, i, c);
      }
      for (Index k = 0; k < y_.blocks; ++k) {
        transform_tile<F, F::OfResult>(plane(dy, y_, tile.n, k), tile.row, tile.column, result, i,
                                       k);
      }
    }
#pragma omp parallel for collapse(2) schedule(static)
    for (int p = 0; p < F::points; ++p)
      for (Index k = 0; k < y_.blocks; k += 2) {
        multiply(image.at(p, 0, 0), {1, image.row}, result.at(p, 0, k), {result.row, result.block},
                 weights.at(p, 0, k), {weights.row, weights.block}, x_.channels(),
                 std::min<Index>(2, y_.blocks - k), count, first > 0);
      }
  }
#pragma omp parallel for collapse(2) schedule(static)
  for (Index k = 0; k < y_.blocks; ++k)
    for (Index c = 0; c < x_.blocks; ++c) {
      finish_weights<F>(weights, c, k, dw + (k * x_.blocks + c) * block_size);
    }
  if (!db) return;
#pragma omp parallel for schedule(static)
  for (Index k = 0; k < y_.blocks; ++k) {
    double sums[8] = {};
    for (Index n = 0; n < n_; ++n) add_up(plane(dy, y_, n, k), sums);
    for (Index l = 0; l < std::min<Index>(8, channels_ - 8 * k); ++l)
      db[8 * k + l] = float(sums[l]);
  }
}

#else

bool Winograd::available() { return false; }
bool Winograd::possible(const ConvGeometry&) { return false; }
bool Winograd::pays(const ConvGeometry&, const Shape&) { return false; }
// What follows is never called.
Winograd::Winograd(const ConvGeometry&, const Shape&, int) {}
std::size_t Winograd::scratch(bool) const { return 0; }
std::int64_t Winograd::prepared_size() const { return 0; }
void Winograd::prepare(const float*, float*) const {}
void Winograd::filter(const float*, const Weights&, const Ending&, float*, bool, float*) const {}
void Winograd::weight_grad(const float*, const float*, float*, float*, float*) const {}

#endif

}  // namespace lamina::detail
