// Sums that go from node to node as bf16, against what f64 says and what rounding may do.
#pragma once

#include "support/ordered.hpp"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace lamina::test {

/// What this rank finds wrong with an all-reduce and a reduce-scatter of `ranks`, which narrows();
/// "" where nothing is.
///
/// - Each number differs from the sum in f64 by no more than the rounding of each term, and of the
///   sum where it travels.
/// - What travels twice is a bf16, with the same bits on all ranks.
/// - Some numbers do differ by more than f32 would: they were sent so.
/// - 256 and many ones: f32 counts them but for one that a node adds to the 256, where a sum that
///   is rounded at each rank stays at 256.
inline std::string wrong_when_narrow(const Communicator& ranks, std::int64_t count) {
  const auto n = std::size_t(ranks.size());
  const std::int64_t own = ranks.rank() * count;
  std::vector<Tensor> all;
  for (int r = 0; r < int(n); ++r) {
    all.push_back(scattered_numbers<float>(r, count * std::int64_t(n)));
    for (std::int64_t i = 0; i < all.back().shape().size(); i += 5)
      all.back().as<float>()[i] = r == 0 ? 256.0F : 1.0F;
  }
  Tensor whole({count * std::int64_t(n), 1, 1, 1}, DType::f32);
  Tensor part({count, 1, 1, 1}, DType::f32);
  copy_bytes(all[std::size_t(ranks.rank())], whole);
  std::int64_t rounded = 0;
  const auto differs = [&](std::int64_t i, double got, bool twice) {
    double sum = 0, size = 0;
    for (const Tensor& t : all) sum += t.as<float>()[i], size += std::abs(t.as<float>()[i]);
    const double u = roundoff(DType::bf16), terms = i % 5 == 0 ? 1 : u * size;
    const double most = terms + (twice ? u * (std::abs(sum) + terms) : 0) + 1e-6 * size;
    rounded += std::abs(got - sum) > 1e-5 * size;
    return !(std::abs(got - sum) <= most);
  };
  Stream s;
  ranks.reduce_scatter(s, Pass::weight_grad, whole, part).wait(s);
  for (std::int64_t i = 0; i < count; ++i)
    if (differs(own + i, part.as<float>()[i], false))
      return text("element ", i, " of ", count, " in its part is ", part.as<float>()[i]);
  if (count >= 700 && rounded < count / 10) return text("few of ", count, " terms were rounded");
  ranks.all_reduce(s, Pass::weight_grad, whole).wait(s);
  for (std::int64_t i = 0; i < whole.shape().size(); ++i) {
    const float got = whole.as<float>()[i];
    if (differs(i, got, true)) return text("element ", i, " of ", count, " is ", got);
    if (float(BF16(double(got))) != got) return text("element ", i, " is ", got, ", no bf16");
  }
  const Tensor theirs({whole.shape().size() * std::int64_t(n), 1, 1, 1}, DType::f32);
  ranks.all_gather(s, Pass::update, whole, theirs).wait(s);
  for (std::size_t r = 0; r < n; ++r)
    for (std::int64_t i = 0; i < whole.shape().size(); ++i)
      if (theirs.as<float>()[std::int64_t(r) * whole.shape().size() + i] != whole.as<float>()[i])
        return text("rank ", r, " has another element ", i);
  return {};
}

}  // namespace lamina::test
