// Winograd's convolution. With the 6x6 transforms U of w, V of a tile of x and Z of the tile of dy
// that belongs to it, in each of their 36 elements
//   y = A^T (sum over c of U V) A,   dw = G^T (sum over tiles of Z V) G,
// and dx is the filter with w turned around: 36 matrix products where a direct convolution has 144
// products for each 4x4 tile. Tiles go through in chunks, so that what lies between the steps stays
// in the caches.
#include "cpu/winograd.hpp"

#include <algorithm>

#if defined(__x86_64__)
#include "cpu/winograd_tiles.hpp"
#endif

namespace lamina::detail {

#if defined(__x86_64__)

namespace {

using Index = std::int64_t;

constexpr int points = 36;
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

LAMINA_AVX2 void store_points(const Lanes* from, const Matrices& to, Index row, Index block) {
  for (int p = 0; p < points; ++p) _mm256_storeu_ps(to.at(p, row, block), from[p]);
}
LAMINA_AVX2 void load_points(const Matrices& from, Index row, Index block, Lanes* to) {
  for (int p = 0; p < points; ++p) to[p] = _mm256_loadu_ps(from.at(p, row, block));
}

/// Rows are x's channels, columns y's.
LAMINA_AVX2 void transform_weights(const float* w, Index x_block, Index y_block,
                                   const Matrices& to) {
  for (int i = 0; i < 8; ++i) {
    Lanes in[window], out[points];
    for (int k = 0; k < window; ++k) in[k] = _mm256_loadu_ps(w + k * 64 + i * 8);
    transform<OfFilter>(in, out);
    store_points(out, to, x_block * 8 + i, y_block);
  }
}

/// The same for the input gradient: turned around, and rows are y's channels, columns x's.
LAMINA_AVX2 void transform_turned(const float* w, Index x_block, Index y_block,
                                  const Matrices& to) {
  float turned[block_size];
  for (int k = 0; k < window; ++k)
    for (int o = 0; o < 8; ++o)
      for (int i = 0; i < 8; ++i) turned[k * 64 + o * 8 + i] = w[(8 - k) * 64 + i * 8 + o];
  transform_weights(turned, y_block, x_block, to);
}

LAMINA_AVX2 void finish_weights(const Matrices& sums, Index x_block, Index y_block, float* dw) {
  for (int i = 0; i < 8; ++i) {
    Lanes in[points], out[window];
    load_points(sums, x_block * 8 + i, y_block, in);
    transform<ToFilter>(in, out);
    for (int k = 0; k < window; ++k) _mm256_storeu_ps(dw + k * 64 + i * 8, out[k]);
  }
}

template <class T>
LAMINA_AVX2 void transform_tile(const Plane& from, Index row, Index column, const Matrices& to,
                                Index tile, Index block) {
  Lanes in[T::in * T::in], out[points];
  load<T::in>(from, row, column, in);
  transform<T>(in, out);
  store_points(out, to, tile, block);
}

/// `b`: eight biases.
LAMINA_AVX2 void finish_tile(const Matrices& from, Index tile, Index block, const float* b,
                             const Plane& to, Index row, Index column) {
  Lanes in[points], out[16];
  load_points(from, tile, block, in);
  transform<ToResult>(in, out);
  const Lanes bias = _mm256_loadu_ps(b);
  for (Lanes& v : out) v += bias;
  store<4>(out, to, row, column);
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

/// The 4x4 tiles of an image, and how many go through the products together.
struct Winograd::Tiles {
  Index down, across, all, chunk;

  Tiles(Index n, const Image& y)
      : down((y.h + 3) / 4), across((y.w + 3) / 4), all(n * down * across) {
    // The weights are read once for each chunk, and its transforms lie in a cache until then.
    constexpr Index most = 24 * most_rows;
    const Index chunks = (all + most - 1) / most, even = (all + chunks - 1) / chunks;
    chunk = std::min(all, (even + most_rows - 1) / most_rows * most_rows);
  }

  struct Tile {
    Index n, row, column;
  };
  Tile operator[](Index i) const {
    return {i / (down * across), i / across % down * 4, i % across * 4};
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

bool Winograd::pays(const ConvGeometry& g, const Shape& x) {
  if (g.kernel != Pair(3) || g.stride != Pair(1) || g.dilation != Pair(1) || g.groups != 1) {
    return false;
  }
  // For each pair of channels, in the time of a multiplication of a direct convolution: a tile
  // takes 36 of them and its share of the transforms, the weights take as long as 20 tiles.
  const Shape y = g.output(x);
  const Tiles tiles(x.n, {1, y.h, y.w});
  return available() && 9 * y.n * y.h * y.w > 60 * (tiles.all + 20);
}

Winograd::Winograd(const ConvGeometry& g, const Shape& x)
    : n_(x.n), top_(g.pad.top), left_(g.pad.left), channels_(g.bias ? g.channels : 0) {
  const Shape y = g.output(x);
  x_ = {(x.c + 7) / 8, x.h, x.w};
  y_ = {(y.c + 7) / 8, y.h, y.w};
}

std::size_t Winograd::scratch() const {
  const Index chunk = std::max(Tiles(n_, x_).chunk, Tiles(n_, y_).chunk);
  // The input gradient has them the other way round, which takes as much.
  Room room{nullptr};
  room.by_blocks(x_.channels(), y_.blocks);
  room.by_rows(chunk, x_.blocks), room.by_rows(chunk, y_.blocks);
  return std::size_t(room.used) * sizeof(float);
}

void Winograd::filter(const float* from, const float* w, const float* b, float* to, bool turned,
                      float* scratch) const {
  const Image &x = turned ? y_ : x_, &y = turned ? x_ : y_;
  const Index top = turned ? 2 - top_ : top_, left = turned ? 2 - left_ : left_;
  const Tiles tiles(n_, y);
  Room room{scratch};
  const Matrices weights = room.by_blocks(x.channels(), y.blocks);
  const Matrices image = room.by_rows(tiles.chunk, x.blocks);
  const Matrices result = room.by_rows(tiles.chunk, y.blocks);

#pragma omp parallel for collapse(2) schedule(static)
  for (Index k = 0; k < y_.blocks; ++k)
    for (Index c = 0; c < x_.blocks; ++c) {
      (turned ? transform_turned : transform_weights)(w + (k * x_.blocks + c) * block_size, c, k,
                                                      weights);
    }
  for (Index first = 0; first < tiles.all; first += tiles.chunk) {
    const Index count = std::min(tiles.chunk, tiles.all - first);
#pragma omp parallel for schedule(static)
    for (Index i = 0; i < count; ++i) {
      const auto tile = tiles[first + i];
      for (Index c = 0; c < x.blocks; ++c) {
        transform_tile<OfImage>(plane(from, x, tile.n, c), tile.row - top, tile.column - left,
                                image, i, c);
      }
    }
#pragma omp parallel for collapse(2) schedule(static)
    for (int p = 0; p < points; ++p)
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
        if (b) std::copy_n(b + 8 * k, std::min<Index>(8, channels_ - 8 * k), bias);
        finish_tile(result, i, k, bias, plane(to, y, tile.n, k), tile.row, tile.column);
      }
    }
  }
}

void Winograd::weight_grad(const float* x, const float* dy, float* dw, float* db,
                           float* scratch) const {
  const Tiles tiles(n_, y_);
  Room room{scratch};
  const Matrices weights = room.by_blocks(x_.channels(), y_.blocks);
  const Matrices image = room.by_rows(tiles.chunk, x_.blocks);
  const Matrices result = room.by_rows(tiles.chunk, y_.blocks);

  for (Index first = 0; first < tiles.all; first += tiles.chunk) {
    const Index count = std::min(tiles.chunk, tiles.all - first);
#pragma omp parallel for schedule(static)
    for (Index i = 0; i < count; ++i) {
      const auto tile = tiles[first + i];
      for (Index c = 0; c < x_.blocks; ++c) {
        transform_tile<OfImage>(plane(x, x_, tile.n, c), tile.row - top_, tile.column - left_,
                                image, i, c);
      }
      for (Index k = 0; k < y_.blocks; ++k) {
        transform_tile<OfResult>(plane(dy, y_, tile.n, k), tile.row, tile.column, result, i, k);
      }
    }
#pragma omp parallel for collapse(2) schedule(static)
    for (int p = 0; p < points; ++p)
      for (Index k = 0; k < y_.blocks; k += 2) {
        multiply(image.at(p, 0, 0), {1, image.row}, result.at(p, 0, k), {result.row, result.block},
                 weights.at(p, 0, k), {weights.row, weights.block}, x_.channels(),
                 std::min<Index>(2, y_.blocks - k), count, first > 0);
      }
  }
#pragma omp parallel for collapse(2) schedule(static)
  for (Index k = 0; k < y_.blocks; ++k)
    for (Index c = 0; c < x_.blocks; ++c) {
      finish_weights(weights, c, k, dw + (k * x_.blocks + c) * block_size);
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
bool Winograd::pays(const ConvGeometry&, const Shape&) { return false; }

#endif

}  // namespace lamina::detail
