// What DataOptions make of a data set.
#pragma once

#include <lamina/base/error.hpp>
#include <lamina/base/inline.hpp>
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

  // Spaced, because the images of a folder are sorted by class.
  void read(std::int64_t index, Sample& to) const override {
    all_->read(index * all_->size() / size_, to);
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
