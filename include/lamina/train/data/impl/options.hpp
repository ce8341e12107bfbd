// What DataOptions make of a data set.
#pragma once

#include <lamina/base/error.hpp>
#include <lamina/base/inline.hpp>
#include <lamina/base/random.hpp>
#include <lamina/train/data/detail/options.hpp>

#include <algorithm>

namespace lamina::detail {

LAMINA_INLINE Shape wanted(const DataOptions& options, Shape own) {
  const auto choose = [](std::int64_t asked, std::int64_t has) { return asked > 0 ? asked : has; };
  return {1, choose(options.channels, own.c), choose(options.height, own.h),
          choose(options.width, own.w)};
}

LAMINA_INLINE void normalise(Transform& transform, std::array<float, 3> mean,
                             std::array<float, 3> deviation) {
  if (transform.shape.c == 1) {
    mean.fill((mean[0] + mean[1] + mean[2]) / 3);
    deviation.fill((deviation[0] + deviation[1] + deviation[2]) / 3);
  }
  transform.mean = mean;
  transform.deviation = deviation;
}

class Limited final : public Dataset {
 public:
  Limited(std::unique_ptr<Dataset> all, std::int64_t size)
      : Dataset(all->name(), all->classes(), all->transform()), all_(std::move(all)), size_(size) {}

  std::int64_t size() const override { return size_; }

  // One of each of as many equal parts, because the images of a folder are sorted by class; and of
  // these any one, because elsewhere classes take turns, of which equal steps would meet the same.
  void read(std::int64_t index, Sample& to) const override {
    const auto part = [&](std::int64_t i) { return i * all_->size() / size_; };
    const std::int64_t begin = part(index), size = part(index + 1) - begin;
    const Random random(key_of("limit"));
    all_->read(begin + std::int64_t(random.below(std::uint64_t(size), std::uint64_t(index))), to);
  }

 private:
  std::unique_ptr<Dataset> all_;
  std::int64_t size_;
};

LAMINA_INLINE std::unique_ptr<Dataset> limited(std::unique_ptr<Dataset> data, std::int64_t limit) {
  check(limit >= 0, data->name(), ": a limit of ", limit, " images, expected 0 or more");
  if (limit == 0 || limit >= data->size()) return data;
  return std::make_unique<Limited>(std::move(data), limit);
}

}  // namespace lamina::detail
