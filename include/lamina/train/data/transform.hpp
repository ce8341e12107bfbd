// Transform: from a decoded image of any size to the normalised numbers that a network reads.
#pragma once

#include <lamina/base/random.hpp>
#include <lamina/kernels/samples.hpp>
#include <lamina/tensor/shape.hpp>

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace lamina {

/// A decoded image and its target. A worker keeps one and reads into it again and again, so that
/// its buffers are allocated once.
struct Sample {
  std::int64_t height = 0, width = 0, channels = 0;
  /// Rows x columns x channels, the channels interleaved: height x width, unless `shrunk`.
  std::vector<std::uint8_t> pixels;
  /// Each pixel stands for a square of so many by so many of the image, whose last ones may reach
  /// beyond it.
  std::int64_t shrunk = 1;
  std::int64_t rows() const { return (height + shrunk - 1) / shrunk; }
  std::int64_t columns() const { return (width + shrunk - 1) / shrunk; }
  /// Instead of `pixels`: channels planes of height x width numbers, which the network reads as
  /// they are. They are the transform's shape, and it is not applied.
  std::vector<float> planes;
  std::int32_t label = 0;            ///< where the data set's target is a class of the sample,
  std::vector<std::int32_t> labels;  ///< or i32 of another form,
  std::vector<float> values;         ///< or f32
  std::vector<std::uint8_t> file;    ///< scratch of the reader: the bytes before decoding
  /// How far a reader may shrink an image of this height and width where that saves it work
  /// (Transform::shrink); absent: not at all.
  std::function<std::int64_t(std::int64_t, std::int64_t)> shrink;
};

/// What is done to each image, in this order: choose a rectangle of it, resample that (bilinear,
/// antialiased when it shrinks), mirror, normalise. Channels are converted between grey and colour
/// where the image and `shape` differ.
struct Transform {
  Shape shape;  ///< of the result; n = 1

  /// The result is (value / 255 - mean) / deviation, per channel.
  std::array<float, 3> mean{0, 0, 0}, deviation{1, 1, 1};

  /// Without augmentation: the shorter side is resized to this, then the centre is cropped to
  /// `shape`. 0: the whole image is stretched to `shape`.
  std::int64_t resize = 0;

  bool augment = false;        ///< use the random ones below
  bool mirror = false;         ///< left and right, every second time
  std::int64_t pad = 0;        ///< shift by up to this many pixels each way; black comes in
  bool random_resize = false;  ///< crop a random 8 to 100 % of the area, aspect 3/4 to 4/3

  /// What of an image becomes the result, in its pixels; may reach beyond it.
  struct Rectangle {
    double x, y, width, height;
  };
  Rectangle cut(std::int64_t height, std::int64_t width, const Random& random) const;
  /// The largest of 1, 2, 4 and 8 by which an image of this size may be shrunk, such that the
  /// rectangle keeps as many pixels as the result has.
  std::int64_t shrink(std::int64_t height, std::int64_t width, const Random& random) const;

  /// Buffers of one worker.
  struct Scratch {
    struct Tap {
      std::int64_t first, count;  // the source pixels that one result pixel is a mean of
      std::size_t weight;         // where their weights begin
    };
    std::vector<Tap> across, down;
    std::vector<float> weights, rows, line;
  };

  /// Writes shape.c planes of shape.h x shape.w floats to `out`. `random` should be keyed by
  /// (seed, epoch, sample). May convert the channels of `sample` in place.
  /// Throws Error if the channels cannot be converted. An image that comes as planes is copied.
  void apply(Sample& sample, const Random& random, std::span<float> out, Scratch& scratch) const;
  /// The same as bytes, which stand for values(): what is resampled is rounded. An image that comes
  /// as planes is refused.
  void apply(Sample& sample, const Random& random, std::span<std::uint8_t> out,
             Scratch& scratch) const;
  Pixels::Values values() const;

 private:
  /// Normalised by value * scale + offset.
  struct Affine {
    float scale, offset;
  };
  Affine normalising(std::int64_t channel) const;
  /// All but normalising: values from 0 to 255.
  template <class T>
  void draw(Sample& sample, const Random& random, std::span<T> out, Scratch& scratch) const;
};

}  // namespace lamina
