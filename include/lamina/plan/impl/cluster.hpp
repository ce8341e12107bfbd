// Clusters: devices by rank, more or fewer nodes, and what cannot be.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/plan/cluster.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace lamina {

namespace detail::clusters {

inline constexpr std::int64_t most_devices = 1 << 20;

/// Throws unless it is finite and above 0, or also 0 where `or_zero`.
inline void check_number(double value, bool or_zero, const Word& member, const char* unit) {
  check(std::isfinite(value) && (value > 0 || (or_zero && value == 0)), member.view(),
        or_zero ? ": expected 0 " : ": expected more than 0 ", unit, or_zero ? " or more" : "",
        ", got ", value);
}

inline void check_device(const DeviceModel& d, const std::string& member) {
  check_number(d.memory, false, member + ".memory", "bytes");
  check_number(d.bandwidth, false, member + ".bandwidth", "bytes/s");
  check_number(d.launch, true, member + ".launch", "seconds");
  check_number(d.reduction, true, member + ".reduction", "bytes/s");
  check(!d.flops.empty(), member, ".flops: expected one type at least");
  for (std::size_t i = 0; i < d.flops.size(); ++i) {
    const DeviceModel::Flops& f = d.flops[i];
    const std::string place = text(member, ".flops[", i, ']');
    check(is_floating(f.dtype), place, ".dtype: expected floating point numbers, got ",
          lamina::name(f.dtype));
    check_number(f.gemm, false, place + ".gemm", "FLOP/s");
    check_number(f.conv, false, place + ".conv", "FLOP/s");
    for (std::size_t k = 0; k < i; ++k)
      check(d.flops[k].dtype != f.dtype, place, ".dtype: ", lamina::name(f.dtype),
            " is given twice");
  }
}

inline void check_link(const Link& link, const std::string& member) {
  check_number(link.latency, true, member + ".latency", "seconds");
  check_number(link.bandwidth, false, member + ".bandwidth", "bytes/s");
}

inline bool alike(const CommCeiling& a, const CommCeiling& b) {
  return a.op == b.op && a.ranks == b.ranks && a.stride == b.stride;
}

inline void check_measured(const std::vector<CommCeiling>& measured) {
  for (std::size_t i = 0; i < measured.size(); ++i) {
    const CommCeiling& c = measured[i];
    const std::string member = text("measured[", i, ']');
    check(c.op != Collective::barrier, member, ".op: expected what moves bytes, got barrier");
    check(c.ranks >= 2, member, ".ranks: expected 2 or more, got ", c.ranks);
    check(c.stride >= 1, member, ".stride: expected 1 or more, got ", c.stride);
    check_number(c.bytes, false, member + ".bytes", "bytes");
    check_number(c.seconds, false, member + ".seconds", "seconds");
    for (std::size_t k = i; k-- > 0;)
      if (alike(measured[k], c)) {
        check(measured[k].bytes < c.bytes, member, ".bytes: expected more than those of measured[",
              k, "], ", measured[k].bytes, ", got ", c.bytes);
        break;
      }
  }
}

}  // namespace detail::clusters

LAMINA_INLINE const DeviceModel::Flops& DeviceModel::flops_of(DType dtype) const {
  for (const DType t : {dtype, wide(dtype)})
    for (const Flops& f : flops)
      if (f.dtype == t) return f;
  throw Error(text("device '", name, "' has no FLOP/s of ", lamina::name(dtype)));
}

LAMINA_INLINE int Cluster::node_count() const {
  int all = 0;
  for (const Nodes& group : nodes) all += group.count;
  return all;
}

LAMINA_INLINE const DeviceModel& Cluster::device_of(int rank) const {
  check(rank >= 0 && rank < devices(), "expected a rank from 0 to ", devices() - 1, " of cluster '",
        name, "', got ", rank);
  int node = rank / devices_per_node;
  std::size_t group = 0;
  while (node >= nodes[group].count) node -= nodes[group++].count;
  return nodes[group].device;
}

LAMINA_INLINE double Cluster::least_memory(int devices) const {
  double least = device_of(0).memory;
  for (int rank = 1; rank < devices; ++rank) least = std::min(least, device_of(rank).memory);
  return least;
}

LAMINA_INLINE Link Cluster::across_with(int senders) const {
  return {across.latency, across.bandwidth / std::clamp(senders, 1, sharers)};
}

LAMINA_INLINE Cluster Cluster::of(int wanted) const {
  const int each = devices_per_node;
  const bool part = wanted >= 1 && wanted < each;
  check(!nodes.empty() && each >= 1 && (part || (wanted >= each && wanted % each == 0)),
        "cluster '", name, "': expected a multiple of ", each, " devices",
        each > 1 ? ", or fewer than these" : "", ", got ", wanted);
  check(wanted <= detail::clusters::most_devices, "cluster '", name, "': expected up to ",
        detail::clusters::most_devices, " devices, got ", wanted);
  Cluster c = *this;
  if (part) c.devices_per_node = wanted, c.sharers = std::min(sharers, wanted);
  c.nodes.clear();
  int left = part ? 1 : wanted / each;
  for (const Nodes& group : nodes)
    if (const int count = std::min(group.count, left); count > 0)
      c.nodes.push_back({count, group.device}), left -= count;
  c.nodes.back().count += left;
  return c;
}

LAMINA_INLINE void check_cluster(const Cluster& c) {
  namespace clusters = detail::clusters;
  check(!c.nodes.empty(), "nodes: expected one at least");
  check(c.devices_per_node >= 1, "devices_per_node: expected 1 or more, got ", c.devices_per_node);
  std::int64_t devices = 0;
  for (std::size_t i = 0; i < c.nodes.size(); ++i) {
    const std::string member = text("nodes[", i, ']');
    check(c.nodes[i].count >= 1, member, ".count: expected 1 or more, got ", c.nodes[i].count);
    devices += std::int64_t(c.nodes[i].count) * c.devices_per_node;
    check(devices <= clusters::most_devices, member, ".count: expected up to ",
          clusters::most_devices, " devices in all, got ", devices);
    clusters::check_device(c.nodes[i].device, member + ".device");
  }
  clusters::check_link(c.inside, "inside");
  clusters::check_link(c.across, "across");
  check(c.sharers >= 1 && c.sharers <= c.devices_per_node, "sharers: expected 1 to ",
        c.devices_per_node, ", the devices of a node, got ", c.sharers);
  check(std::isfinite(c.contention) && c.contention >= 1, "contention: expected 1 or more, got ",
        c.contention);
  clusters::check_measured(c.measured);
}

}  // namespace lamina
