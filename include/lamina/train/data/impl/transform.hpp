// Transform: the geometry of an image and its augmentation, resampling, and normalisation.
#pragma once

#include <lamina/base/error.hpp>
#include <lamina/base/inline.hpp>
#include <lamina/train/data/transform.hpp>

#include <algorithm>
#include <cmath>

namespace lamina {
namespace detail::pixels {

using Scratch = Transform::Scratch;

using Rectangle = Transform::Rectangle;

// Of an image h x w, as below.
inline Rectangle centre(double h, double w, double width, double height) {
  return {(w - width) / 2, (h - height) / 2, width, height};
}

// The largest rectangle with the aspect of `shape`, shrunk by `zoom`.
inline Rectangle plain(const Transform& t, double h, double w) {
  if (t.resize == 0) return {0, 0, w, h};
  const double pixel = std::min(w, h) / double(t.resize);
  return centre(h, w, std::min(double(t.shape.w) * pixel, w),
                std::min(double(t.shape.h) * pixel, h));
}

// The words of an image's random stream: 0 mirrors, 1 and 2 shift, 4 and on resize.
inline constexpr std::uint64_t mirror_word = 0, shift_word = 1, resize_word = 4;

// Random area and aspect, as in "Going deeper with convolutions" (Szegedy et al., 2015).
inline Rectangle resized(double h, double w, const Random& random) {
  for (std::uint64_t attempt = 0; attempt < 10; ++attempt) {
    const auto u = random.block(resize_word / 4 + attempt);
    const double area = w * h * (0.08 + 0.92 * double(Random::unit(u[0])));
    const double aspect = std::exp((2.0 * double(Random::unit(u[1])) - 1.0) * std::log(4.0 / 3.0));
    const double width = std::sqrt(area * aspect), height = std::sqrt(area / aspect);
    if (width > w || height > h) continue;
    return {double(Random::unit(u[2])) * (w - width), double(Random::unit(u[3])) * (h - height),
            width, height};
  }
  // A long, thin image: its centre, within the allowed aspects.
  return centre(h, w, std::min(w, h * 4 / 3), std::min(h, w * 4 / 3));
}

inline Rectangle shifted(const Transform& t, Rectangle r, const Random& random) {
  const auto step = [&](std::uint64_t word) {
    const auto choices = std::uint64_t(2 * t.pad + 1);
    return double(std::int64_t(random.bits(word) * choices >> 32) - t.pad);
  };
  r.x += step(shift_word) * r.width / double(t.shape.w);
  r.y += step(shift_word + 1) * r.height / double(t.shape.h);
  return r;
}

inline void convert(Sample& s, std::int64_t channels) {
  if (s.channels == channels) return;
  check((s.channels == 1 && channels == 3) || (s.channels == 3 && channels == 1),
        "cannot turn an image of ", s.channels, " channels into ", channels);
  auto& p = s.pixels;
  const auto count = std::size_t(s.rows() * s.columns());
  if (channels == 3) {
    p.resize(3 * count);
    for (std::size_t i = count; i-- > 0;) p[3 * i + 2] = p[3 * i + 1] = p[3 * i] = p[i];
  } else {
    // Luma of ITU-R BT.601, in 1/256.
    for (std::size_t i = 0; i < count; ++i) {
      p[i] = std::uint8_t((77 * p[3 * i] + 150 * p[3 * i + 1] + 29 * p[3 * i + 2] + 128) >> 8);
    }
    p.resize(count);
  }
  s.channels = channels;
}

// Which pixels of a line of `source` make each of `count` pixels that cover [from, from + length):
// a triangle as wide as a result pixel, or as a source pixel if that is wider. Count 0: outside.
inline void make_taps(std::vector<Scratch::Tap>& taps, std::vector<float>& weights, double from,
                      double length, std::int64_t count, std::int64_t source) {
  taps.clear();
  const double pixel = length / double(count), reach = std::max(pixel, 1.0);
  for (std::int64_t i = 0; i < count; ++i) {
    const double at = from + (double(i) + 0.5) * pixel;  // source pixel j has its centre at j + 0.5
    Scratch::Tap tap{0, 0, weights.size()};
    if (at >= 0 && at < double(source)) {
      const auto end = std::min(source, std::int64_t(std::ceil(at + reach + 0.5)));
      double sum = 0;
      for (auto j = std::max<std::int64_t>(0, std::int64_t(at - reach - 0.5)); j < end; ++j) {
        const double weight = 1 - std::abs(double(j) + 0.5 - at) / reach;
        if (weight <= 0) continue;
        if (tap.count++ == 0) tap.first = j;
        weights.push_back(float(weight));
        sum += weight;
      }
      for (auto k = tap.weight; k < weights.size(); ++k) weights[k] = float(weights[k] / sum);
    }
    taps.push_back(tap);
  }
}

inline void put(float from, float& to) { to = from; }
// Of a mean of bytes, which is neither below 0 nor, but for roundoff, above 255.
inline void put(float from, std::uint8_t& to) { to = std::uint8_t(int(from + 0.5f)); }

// First each row that is needed across, then down; `out` is planes of values 0 to 255.
template <class T>
void resample(const Sample& s, const Rectangle& r, Shape to, std::span<T> out, Scratch& scratch) {
  scratch.weights.clear();
  make_taps(scratch.across, scratch.weights, r.x, r.width, to.w, s.columns());
  make_taps(scratch.down, scratch.weights, r.y, r.height, to.h, s.rows());
  std::int64_t top = s.rows(), bottom = 0;
  for (const auto& tap : scratch.down) {
    if (tap.count == 0) continue;
    top = std::min(top, tap.first);
    bottom = std::max(bottom, tap.first + tap.count);
  }
  const auto line = to.c * to.w;
  scratch.rows.resize(std::size_t(std::max<std::int64_t>(0, bottom - top) * line));
  for (std::int64_t y = top; y < bottom; ++y) {
    const std::uint8_t* row = s.pixels.data() + y * s.columns() * s.channels;
    float* result = scratch.rows.data() + (y - top) * line;
    for (std::int64_t x = 0; x < to.w; ++x) {
      const auto& tap = scratch.across[std::size_t(x)];
      for (std::int64_t c = 0; c < to.c; ++c) {
        float sum = 0;
        for (std::int64_t k = 0; k < tap.count; ++k) {
          sum += scratch.weights[tap.weight + std::size_t(k)] *
                 float(row[(tap.first + k) * s.channels + c]);
        }
        result[c * to.w + x] = sum;
      }
    }
  }
  for (std::int64_t y = 0; y < to.h; ++y) {
    const auto& tap = scratch.down[std::size_t(y)];
    scratch.line.assign(std::size_t(line), 0.0f);
    float* const sums = scratch.line.data();
    for (std::int64_t k = 0; k < tap.count; ++k) {
      const float weight = scratch.weights[tap.weight + std::size_t(k)];
      const float* row = scratch.rows.data() + (tap.first + k - top) * line;
      for (std::int64_t i = 0; i < line; ++i) sums[i] += weight * row[i];
    }
    for (std::int64_t c = 0; c < to.c; ++c) {
      T* result = out.data() + (c * to.h + y) * to.w;
      for (std::int64_t x = 0; x < to.w; ++x) put(sums[c * to.w + x], result[x]);
    }
  }
}

// The quick case, whole pixels: only move them.
template <class T>
void shift(const Sample& s, std::int64_t left, std::int64_t top, Shape to, std::span<T> out) {
  std::fill(out.begin(), out.end(), T(0));
  const auto x0 = std::max<std::int64_t>(0, -left), x1 = std::min(to.w, s.columns() - left);
  for (std::int64_t y = std::max<std::int64_t>(0, -top); y < std::min(to.h, s.rows() - top); ++y) {
    const std::uint8_t* row = s.pixels.data() + ((y + top) * s.columns() + left) * s.channels;
    for (std::int64_t c = 0; c < to.c; ++c) {
      T* result = out.data() + (c * to.h + y) * to.w;
      for (std::int64_t x = x0; x < x1; ++x) result[x] = T(row[x * s.channels + c]);
    }
  }
}

}  // namespace detail::pixels

LAMINA_INLINE Transform::Rectangle Transform::cut(std::int64_t height, std::int64_t width,
                                                  const Random& random) const {
  const auto h = double(height), w = double(width);
  const Rectangle r = augment && random_resize ? detail::pixels::resized(h, w, random)
                                               : detail::pixels::plain(*this, h, w);
  return augment && pad > 0 ? detail::pixels::shifted(*this, r, random) : r;
}

LAMINA_INLINE std::int64_t Transform::shrink(std::int64_t height, std::int64_t width,
                                             const Random& random) const {
  const Rectangle r = cut(height, width, random);
  const double pixels = std::min(r.width / double(shape.w), r.height / double(shape.h));
  return pixels >= 8 ? 8 : pixels >= 4 ? 4 : pixels >= 2 ? 2 : 1;
}

template <class T>
void Transform::draw(Sample& sample, const Random& random, std::span<T> out,
                     Scratch& scratch) const {
  check(sample.height > 0 && sample.width > 0 &&
            sample.pixels.size() == std::size_t(sample.rows() * sample.columns() * sample.channels),
        "an image of ", sample.rows(), "x", sample.columns(), "x", sample.channels, " has ",
        sample.pixels.size(), " bytes");
  detail::pixels::convert(sample, shape.c);

  Rectangle r = cut(sample.height, sample.width, random);
  for (double* length : {&r.x, &r.y, &r.width, &r.height}) *length /= double(sample.shrunk);
  if (r.width == double(shape.w) && r.height == double(shape.h) && r.x == std::floor(r.x) &&
      r.y == std::floor(r.y)) {
    detail::pixels::shift(sample, std::int64_t(r.x), std::int64_t(r.y), shape, out);
  } else {
    detail::pixels::resample(sample, r, shape, out, scratch);
  }
  if (augment && mirror && random.bits(detail::pixels::mirror_word) >> 31) {
    const auto w = std::size_t(shape.w);
    for (std::size_t row = 0; row < out.size(); row += w) {
      std::reverse(out.data() + row, out.data() + row + w);
    }
  }
}

LAMINA_INLINE Transform::Affine Transform::normalising(std::int64_t channel) const {
  const auto c = std::size_t(std::min<std::int64_t>(channel, Pixels::channels - 1));
  return {1 / (255 * deviation[c]), -mean[c] / deviation[c]};
}

LAMINA_INLINE Pixels::Values Transform::values() const {
  Pixels::Values all;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Affine of = normalising(std::int64_t(i / 256));
    all[i] = float(i % 256) * of.scale + of.offset;
  }
  return all;
}

LAMINA_INLINE void Transform::apply(Sample& sample, const Random& random, std::span<float> out,
                                    Scratch& scratch) const {
  check(std::int64_t(out.size()) == shape.sample(), "an image of shape ", shape, " does not fit ",
        out.size(), " floats");
  if (!sample.planes.empty()) {
    check(sample.planes.size() == out.size() && !augment, "an image of ", sample.planes.size(),
          " numbers, expected ", out.size(), augment ? ", and none that is augmented" : "");
    std::copy(sample.planes.begin(), sample.planes.end(), out.begin());
    return;
  }
  draw(sample, random, out, scratch);
  const auto plane = std::size_t(shape.h * shape.w);
  for (std::int64_t c = 0; c < shape.c; ++c) {
    const Affine of = normalising(c);
    for (float& value : out.subspan(std::size_t(c) * plane, plane))
      value = value * of.scale + of.offset;
  }
}

LAMINA_INLINE void Transform::apply(Sample& sample, const Random& random,
                                    std::span<std::uint8_t> out, Scratch& scratch) const {
  check(std::int64_t(out.size()) == shape.sample(), "an image of shape ", shape, " does not fit ",
        out.size(), " bytes");
  check(sample.planes.empty(), "an image of ", sample.planes.size(), " numbers, expected pixels");
  draw(sample, random, out, scratch);
}

}  // namespace lamina
