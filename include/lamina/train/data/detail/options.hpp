// What DataOptions make of a data set.
#pragma once

#include <lamina/train/data/dataset.hpp>

#include <array>
#include <memory>

namespace lamina::detail {

/// `own`, where `options` do not ask for another shape.
Shape wanted(const DataOptions& options, Shape own);

/// Statistics for an image of `channels` channels: a mean over colours if it is to be grey.
void normalise(Transform& transform, std::array<float, 3> mean, std::array<float, 3> deviation);

/// Keeps `limit` images, evenly spaced.
std::unique_ptr<Dataset> limited(std::unique_ptr<Dataset> data, std::int64_t limit);

}  // namespace lamina::detail
