// Synthetic images: for each class a wave of its own direction and phase, in noise.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/train/data/detail/options.hpp>

#include <algorithm>

namespace lamina {
namespace detail::waves {

// Streams of the seed; the images of the validation set are others than those of the training set.
inline constexpr std::uint64_t wave_stream = 0, train_stream = 1, validation_stream = 2;
inline constexpr std::int64_t train_size = 50000, validation_size = 10000;

class Synthetic final : public Dataset {
 public:
  Synthetic(int classes, Transform transform, const DataOptions& options)
      : Dataset("synthetic", classes, transform), seed_(options.seed), train_(options.train) {}

  std::int64_t size() const override { return train_ ? train_size : validation_size; }

  void read(std::int64_t index, Sample& to) const override {
    const Shape s = shape();
    to.height = s.h, to.width = s.w, to.channels = s.c;
    to.label = std::int32_t(index % classes());
    const auto count = std::size_t(s.sample());
    const Random noise(seed_, train_ ? train_stream : validation_stream, std::uint64_t(index));
    to.pixels.resize((count + 15) / 16 * 16);
    for (std::size_t at = 0; at < to.pixels.size(); at += 16) {
      const auto words = noise.block(at / 16);
      for (std::size_t k = 0; k < 16; ++k)
        to.pixels[at + k] = std::uint8_t(words[k / 4] >> k % 4 * 8);
    }
    to.pixels.resize(count);

    // Whole turns are 2^32, so that the phases wrap around by themselves: up to 4 waves an image.
    const auto wave = Random(seed_, wave_stream, std::uint64_t(to.label)).block(0);
    const auto across = std::uint32_t(wave[0] / std::uint64_t(s.w) * 4);
    const auto down = std::uint32_t(wave[1] / std::uint64_t(s.h) * 4);
    const auto channels = std::uint32_t(s.c), width = std::uint32_t(s.w);
    std::uint8_t* row = to.pixels.data();
    for (std::uint32_t y = 0; y < std::uint32_t(s.h); ++y, row += s.c * s.w) {
      for (std::uint32_t c = 0; c < channels; ++c) {
        const std::uint32_t start = wave[2] + y * down + c * wave[3];
        for (std::uint32_t x = 0; x < width; ++x) {
          std::uint8_t& value = row[x * channels + c];
          value = std::uint8_t((triangle(start + x * across) + value) / 2);
        }
      }
    }
  }

 private:
  // A wave between 0 and 255.
  static std::uint32_t triangle(std::uint32_t phase) {
    const auto half = phase >> 23;  // 0 ... 511
    return half < 256 ? half : 511 - half;
  }

  std::uint64_t seed_;
  bool train_;
};

}  // namespace detail::waves

LAMINA_INLINE std::unique_ptr<Dataset> synthetic(const DataOptions& options) {
  Transform transform;
  transform.shape = detail::wanted(options, {1, 3, 224, 224});
  transform.mean.fill(0.5f);
  transform.deviation.fill(0.25f);
  const int classes = options.classes > 0 ? options.classes : 10;
  return detail::limited(std::make_unique<detail::waves::Synthetic>(classes, transform, options),
                         options.limit);
}

}  // namespace lamina
