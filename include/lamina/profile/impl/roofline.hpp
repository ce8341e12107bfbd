// How rows of a profile stand against the ceilings, and what may excuse those above.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/profile/roofline.hpp>

#include <algorithm>

namespace lamina {

namespace detail::roofline {

inline constexpr double tolerance = 0.95;  // ceilings and times are measured: 5 % says nothing yet

struct Ceilings {
  const Machine& machine;
  DType dtype;
  double peak, bandwidth;
};

inline Ceilings ceilings_of(const Profile& p) {
  check(p.machine.has_value(), "roofline: the profile has no ceilings of its machine");
  const DType t = p.arithmetic;
  const Ceilings c{*p.machine, t, p.machine->peak(t), p.machine->bandwidth()};
  check(c.peak > 0, "roofline: the machine's peak in ", name(t), " has not been measured");
  check(c.bandwidth > 0, "roofline: the machine's memory bandwidth has not been measured");
  return c;
}

inline std::string alone_reason(double rate, const char* unit) {
  return format("other ranks were not as busy: below the %.1f %s of a rank alone", rate / 1e9,
                unit);
}

inline std::string above_peak(const Ceilings& c, const ProfileRow& r) {
  if (tolerance * (r.work.flops - r.work.padding) <= r.time.mean * c.peak)
    return format("padding: %.1f %% of the multiplications are with zeros, which kernels may skip",
                  100 * r.work.padding / r.work.flops);
  const std::string_view algorithm = algorithm_of(r.algorithm, r.pass);
  if (algorithm.find("wino") != algorithm.npos)
    return "Winograd: FLOPs are counted as those of a direct convolution";
  if (algorithm.find(":fft") != algorithm.npos)
    return "FFT: FLOPs are counted as those of a direct convolution";
  double alone = 0;
  for (const ComputeCeiling& fma : c.machine.compute)
    if (fma.kind == ComputeCeiling::Kind::fma && fma.dtype == c.dtype)
      alone = std::max(alone, fma.flops.alone);
  const bool enough = c.machine.ranks > 1 && tolerance * r.work.flops <= r.time.mean * alone;
  return enough ? alone_reason(alone, "GFLOP/s") : "";
}

inline std::string above_bandwidth(const Ceilings& c, const ProfileRow& r) {
  const auto& levels = c.machine.memory;
  const double t = r.time.mean, bytes = r.work.bytes;
  const MemoryCeiling& memory = levels.back();
  const double alone = memory.best(&Rate::alone);
  if (c.machine.ranks > 1 && tolerance * bytes <= t * alone) return alone_reason(alone, "GB/s");

  // From memory inwards: what a level cannot have moved must lie in the caches before it.
  std::string reason;
  for (std::size_t i = levels.size(); i-- > 0;) {
    const double moved = t * levels[i].bandwidth();
    if (tolerance * bytes <= moved) return reason;
    if (i == 0 || levels[i - 1].capacity < bytes - moved) return "";
    const MemoryCeiling& cache = levels[i - 1];
    reason =
        format("operands in %s (%.3g MB): %s can have moved %.3g of %.3g MB", cache.level.c_str(),
               cache.capacity / 1e6, levels[i].level.c_str(), moved / 1e6, bytes / 1e6);
  }
  return reason;
}

/// Why the row is above its roof, as far as known: both ceilings need an excuse if both are passed.
inline std::string reason_for(const Ceilings& c, const ProfileRow& r) {
  std::string all;
  const auto excuse = [&](double least, auto&& of) {
    if (r.time.mean >= tolerance * least) return true;
    const std::string reason = of(c, r);
    append(all, text(all.empty() || reason.empty() ? "" : "; ", reason));
    return !reason.empty();
  };
  const bool known = excuse(r.work.flops / c.peak, above_peak) &&
                     excuse(r.work.bytes / c.bandwidth, above_bandwidth);
  return known ? all : "";
}

}  // namespace detail::roofline

LAMINA_INLINE bool has_ceilings(const Profile& p) {
  return p.machine && p.machine->peak(p.arithmetic) > 0 && p.machine->bandwidth() > 0;
}

LAMINA_INLINE Roof roof(const Profile& profile, const ProfileRow& row) {
  const ProfileRow* one = &row;
  return roof(profile, {&one, 1});
}

LAMINA_INLINE Roof roof(const Profile& profile, std::span<const ProfileRow* const> rows) {
  const detail::roofline::Ceilings c = detail::roofline::ceilings_of(profile);
  Roof sum;
  double flops = 0, time = 0, parts[bound_count] = {};
  bool known = true;
  for (const ProfileRow* r : rows) {
    const double compute = r->work.flops / c.peak, memory = r->work.bytes / c.bandwidth;
    const double least = std::max(compute, memory);
    if (r->time.mean <= 0) {  // nothing ran on this rank's compute thread, whatever the arithmetic
      parts[int(Bound::communication)] += r->exposed.mean, sum.wasted += r->exposed.mean;
      continue;
    }
    double launches = 0;
    for (const ProfileKernel& k : r->kernels)
      if (k.lane == Lane::compute) launches += k.calls * c.machine.launch;
    parts[int(Bound::compute)] += compute, parts[int(Bound::memory)] += memory;
    parts[int(Bound::communication)] += r->exposed.mean;
    parts[int(Bound::overhead)] += least > 0 ? launches : r->time.mean;
    if (least > 0) parts[int(Bound::kernel)] += std::max(0.0, r->time.mean - least - launches);
    sum.seconds += least, flops += r->work.flops, time += r->time.mean;
    sum.wasted += std::max(0.0, r->time.mean - least) + r->exposed.mean;
    if (r->time.mean >= detail::roofline::tolerance * least) continue;
    sum.above = true;
    const std::string reason = detail::roofline::reason_for(c, *r);
    known &= !reason.empty();
    if (sum.reason.find(reason) == std::string::npos)
      append(sum.reason, text(sum.reason.empty() ? "" : "; ", reason));
  }
  if (!known) sum.reason.clear();
  if (sum.seconds > 0) sum.flops = flops / sum.seconds;
  if (time > 0) sum.fraction = sum.seconds / time;
  for (const Bound b : {Bound::compute, Bound::memory, Bound::communication})
    if (parts[int(b)] > parts[int(sum.bound)]) sum.bound = b;
  // Against the roofs as a whole: of several rows, some may be held by one and some by the other.
  if (parts[int(Bound::kernel)] > std::max(sum.seconds, parts[int(sum.bound)]))
    sum.bound = Bound::kernel;
  return sum;
}

}  // namespace lamina
