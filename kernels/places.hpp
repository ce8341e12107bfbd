// Work on packs of channels at positions, where these matter.
#pragma once

#include "divisor.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>

namespace lamina::cuda {

/// How packs of channels at positions are dealt out: in parts of a sample, so that numbers within
/// one suffice.
struct Deal {
  Divisor width, packs, parts_each;
  int count;  ///< of packs in a sample
  std::int64_t parts;

  Deal(std::int64_t samples, std::int64_t h, std::int64_t w, std::int64_t packs_each)
      : width(w),
        packs(packs_each),
        parts_each((h * w * packs_each + most - 1) / most),
        count(int(h * w * packs_each)),
        parts((h * w * packs_each + most - 1) / most * samples) {}

  /// Whether numbers within a sample of so many elements are small enough.
  static bool fits(std::int64_t sample) {
    return sample <= std::numeric_limits<std::int32_t>::max();
  }

  static constexpr int most = 256, warp = 32;
  /// As many as a part has packs.
  int threads() const { return (std::min(count, most) + warp - 1) / warp * warp; }
};

/// Calls f(sample, row, column, first channel) for what is this thread's. In one loop: stores in
/// loops in loops are not made of whole packs.
template <int V, class F>
__device__ void each_pack(const Deal& deal, const F& f) {
  for (unsigned part = blockIdx.x; part < unsigned(deal.parts); part += gridDim.x) {
    const int n = deal.parts_each.quotient(int(part));
    const int i = (int(part) - n * deal.parts_each.by()) * Deal::most + int(threadIdx.x);
    if (i >= deal.count) continue;
    const int at = deal.packs.quotient(i), row = deal.width.quotient(at);
    f(n, row, at - row * deal.width.by(), (i - at * deal.packs.by()) * V);
  }
}

/// Starts a kernel that does.
template <class Kernel, class... Arguments>
cudaError_t launch_packs(cudaStream_t stream, const Deal& deal, Kernel kernel,
                         Arguments... arguments) {
  if (deal.parts > std::numeric_limits<std::int32_t>::max()) return cudaErrorInvalidValue;
  return launch(stream, dim3(unsigned(std::min(deal.parts, most_blocks))),
                dim3(unsigned(deal.threads())), kernel, arguments...);
}

}  // namespace lamina::cuda
