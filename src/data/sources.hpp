// What the sources of images share: whole files read, images held in memory.
#pragma once

#include <lamina/base/error.hpp>
#include <lamina/train/data/detail/options.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace lamina::detail {

/// The whole file, into a buffer that is reused. Throws Error naming it.
void read_file(const std::string& path, std::vector<std::uint8_t>& to);

bool is_directory(const std::string& path);
bool is_file(const std::string& path);

/// Decodes sample.file (JPEG or PNG, as its first bytes say) to sample.pixels, grey or colour.
/// Throws Error naming `path`.
void decode_image(const std::string& path, Sample& sample);

/// Images of one size, already decoded.
class Stored final : public Dataset {
 public:
  Stored(std::string name, int classes, Transform transform, Shape stored,
         std::vector<std::uint8_t> pixels, std::vector<std::uint8_t> labels)
      : Dataset(std::move(name), classes, transform),
        stored_(stored),
        pixels_(std::move(pixels)),
        labels_(std::move(labels)) {}

  std::int64_t size() const override { return std::int64_t(labels_.size()); }

  void read(std::int64_t index, Sample& to) const override {
    const auto first = pixels_.begin() + index * stored_.sample();
    to.height = stored_.h, to.width = stored_.w, to.channels = stored_.c;
    to.pixels.assign(first, first + stored_.sample());
    to.label = labels_[std::size_t(index)];
  }

 private:
  Shape stored_;  // of one image; its channels are interleaved in pixels_
  std::vector<std::uint8_t> pixels_, labels_;
};

}  // namespace lamina::detail
