// What collectives take: from what was measured, or by formulas.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/cost/group.hpp>
#include <lamina/plan/cluster.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

namespace lamina {

namespace detail::collectives {

/// Rounded up.
inline int lg(int ranks) { return std::bit_width(unsigned(ranks - 1)); }

/// How a group lies on the nodes, and how many like it lie on the same ones.
struct Layout {
  int ranks = 1, nodes = 1;
  int most = 1, fewest = 1;  ///< ranks of a node
  int stride = 0;
  int groups = 1;
};

inline Layout layout(const Cluster& c, std::vector<int> ranks) {
  std::ranges::sort(ranks);
  check(!ranks.empty(), "a collective: expected one rank at least");
  check(ranks.front() >= 0 && ranks.back() < c.devices(), "a collective: expected ranks from 0 to ",
        c.devices() - 1, " of cluster '", c.name, "', got ", ranks.front(), " to ", ranks.back());
  const auto twice = std::ranges::adjacent_find(ranks);
  check(twice == ranks.end(), "a collective: rank ", twice == ranks.end() ? 0 : *twice,
        " comes twice");
  const int each = c.devices_per_node;
  Layout l{.ranks = int(ranks.size()), .nodes = 0, .most = 0, .fewest = each};
  l.stride = stride(ranks);
  for (std::size_t i = 0, end = 0; i < ranks.size(); i = end) {
    while (end < ranks.size() && ranks[end] / each == ranks[i] / each) ++end;
    const int here = int(end - i);
    ++l.nodes, l.most = std::max(l.most, here), l.fewest = std::min(l.fewest, here);
  }
  // The ranks between two neighbours are in other groups; there is no room for more on a node.
  l.groups = std::max(1, std::min(l.stride, each / l.most));
  return l;
}

/// Links as the formulas see them: seconds, and seconds per byte of a rank.
struct Path {
  double alpha = 0;
  double ring = 0;   ///< where each rank sends to the next one, around as many rings as are links
  double edge = 0;   ///< where one rank of a node and group sends across
  double other = 0;  ///< where all send wherever they must
  double gamma = 0;
};

inline Path path_of(const Link& link, double gamma) {
  const double beta = 1 / link.bandwidth;
  return {link.latency, beta, beta, beta, gamma};
}
/// For a group as if it had no levels.
inline Path path_flat(const Cluster& c, const Layout& l, double gamma) {
  const Path in = path_of(c.inside, gamma);
  if (l.nodes == 1) return in;
  const Path edge = path_of(c.across_with(l.groups), gamma);
  const Path some = path_of(c.across_with(l.groups * l.fewest), gamma);
  const Path all = path_of(c.across_with(l.groups * l.most), gamma);
  if (l.most == 1) return all;
  return {std::max(in.alpha, all.alpha), std::max(in.ring, some.ring / l.fewest),
          std::max(in.edge, edge.edge), std::max(in.other, all.other), gamma};
}

/// Of all parts but one's own: by a ring, or by halving or doubling.
inline double parts(int p, double m, const Path& path, double gamma) {
  const double part = m / p * (p - 1);
  return std::min((p - 1) * path.alpha + part * (path.ring + gamma),
                  lg(p) * path.alpha + part * (path.other + gamma));
}
inline double reduce_scatter(int p, double m, const Path& path) {
  return parts(p, m, path, path.gamma);
}
inline double all_gather(int p, double m, const Path& path) { return parts(p, m, path, 0); }
inline double doubling(int p, double m, const Path& path) {
  return lg(p) * (path.alpha + m * (path.other + path.gamma));
}
inline double all_reduce(int p, double m, const Path& path) {
  const double part = m / p * (p - 1);
  const double ring = 2 * (p - 1) * path.alpha + part * (2 * path.ring + path.gamma);
  const double halving = 2 * lg(p) * path.alpha + part * (2 * path.other + path.gamma);
  return std::min({ring, halving, doubling(p, m, path)});
}
inline double broadcast(int p, double m, const Path& path) {
  const double tree = lg(p) * (path.alpha + m * path.other);
  const double scatter = lg(p) * path.alpha + m / p * (p - 1) * path.edge;
  return std::min(tree, scatter + all_gather(p, m, path));
}

inline double flat(const Cluster& c, Collective op, double m, const Layout& l, double gamma) {
  const Path path = path_flat(c, l, gamma);
  const int p = l.ranks;
  switch (op) {
    case Collective::all_reduce:
      return all_reduce(p, m, path);
    case Collective::reduce_scatter:
      return reduce_scatter(p, m, path);
    case Collective::all_gather:
      return all_gather(p, m, path);
    case Collective::broadcast:
      return broadcast(p, m, path);
    case Collective::all_to_all: {
      const Path in = path_of(c.inside, 0), out = path_of(c.across_with(l.groups * l.most), 0);
      const int beside = (l.nodes == 1 ? p : l.fewest) - 1;  // the rest goes across
      return beside * (in.alpha + m / p * in.other) +
             (p - 1 - beside) * (out.alpha + m / p * out.other);
    }
    case Collective::halo:
      return (p > 2 ? 2 : 1) * path.alpha + m * path.edge;
    case Collective::barrier:
      break;
  }
  return lg(p) * path.alpha;
}

/// In two levels; nothing where the operation has none.
inline std::optional<double> hierarchical(const Cluster& c, Collective op, double m,
                                          const Layout& l, double gamma) {
  const int g = l.most, q = l.nodes;
  const double part = m / l.fewest;
  const Path in = path_of(c.inside, gamma);
  const Path out = path_of(c.across_with(l.groups * l.fewest), gamma);
  switch (op) {
    case Collective::all_reduce:
      return std::min(
          reduce_scatter(g, m, in) + all_reduce(q, part, out) + all_gather(g, m, in),
          doubling(g, m, in) + doubling(q, m, path_of(c.across_with(l.groups * g), gamma)));
    case Collective::reduce_scatter:
      return reduce_scatter(g, m, in) + reduce_scatter(q, part, out);
    case Collective::all_gather:
      return all_gather(q, part, out) + all_gather(g, m, in);
    case Collective::broadcast:
      return broadcast(q, m, path_of(c.across_with(l.groups), gamma)) + broadcast(g, m, in);
    case Collective::barrier:
      return lg(q) * out.alpha + lg(g) * in.alpha;
    case Collective::all_to_all:
    case Collective::halo:
      break;
  }
  return std::nullopt;
}

/// Of the device that adds up the slowest; seconds per byte.
inline double gamma(const Cluster& c, const std::vector<int>& ranks) {
  double most = 0;
  const auto add = [&](const DeviceModel& d) {
    if (d.reduction > 0) most = std::max(most, 1 / d.reduction);
  };
  if (c.nodes.size() == 1) add(c.nodes[0].device);  // as it mostly is
  if (c.nodes.size() > 1)
    for (const int r : ranks) add(c.device_of(r));
  return most;
}

/// From points by bytes, if there are any of this kind.
inline std::optional<double> measured(const Cluster& c, Collective op, double bytes, int ranks,
                                      int stride) {
  double before = 0, least = 0;  // the point before: its bytes, and its seconds at least
  for (const CommCeiling& point : c.measured) {
    if (point.op != op || point.ranks != ranks || point.stride != stride || point.disturbed)
      continue;
    const double seconds = std::max(least, point.seconds);
    if (bytes <= point.bytes) {
      if (before == 0 || bytes == point.bytes) return seconds;
      const double way = std::log(bytes / before) / std::log(point.bytes / before);
      return least * std::pow(seconds / least, way);
    }
    before = point.bytes, least = seconds;
  }
  if (before == 0) return std::nullopt;
  return least * (bytes / before);
}

}  // namespace detail::collectives

LAMINA_INLINE double collective_time(const Cluster& c, Collective op, double bytes,
                                     const std::vector<int>& ranks) {
  namespace collectives = detail::collectives;
  const collectives::Layout l = collectives::layout(c, ranks);
  check(bytes >= 0, name(op), ": expected 0 bytes or more, got ", bytes);
  if (l.ranks == 1) return 0;
  if (const auto time = collectives::measured(c, op, bytes, l.ranks, l.stride)) return *time;
  const double gamma = collectives::gamma(c, ranks);
  const double flat = collectives::flat(c, op, bytes, l, gamma);
  if (l.nodes == 1 || l.most == 1) return flat;
  return std::min(flat, collectives::hierarchical(c, op, bytes, l, gamma).value_or(flat));
}

namespace detail::collectives {

/// Seconds of a message by what is known of its link.
inline double message(const Cluster& c, const Link& out, const Sent& s) {
  const int each = c.devices_per_node;
  const Link& link = s.from / each == s.to / each ? c.inside : out;
  return link.latency + s.bytes / link.bandwidth;
}
/// The same in one of so many rounds, by what was measured, if it was.
inline double message(const Cluster& c, const Link& out, const Sent& s, int rounds) {
  const bool alike = c.node_count() == 1 || c.devices_per_node == 1;
  if (alike && rounds == 1)
    if (const auto time = measured(c, Collective::halo, s.bytes, 2, 1)) return *time;
  const int ranks = int(std::bit_ceil(unsigned(rounds + 1)));
  if (alike && rounds > 1)
    if (const auto time = measured(c, Collective::all_to_all, s.bytes * ranks, ranks, 1))
      return *time / (ranks - 1);
  return message(c, out, s);
}

}  // namespace detail::collectives

LAMINA_INLINE double redistribution_time(const Cluster& c, int ranks, std::span<const Sent> sent) {
  check(ranks > 0 && ranks <= c.devices(), "a redistribution: expected from 1 to ", c.devices(),
        " ranks of cluster '", c.name, "', got ", ranks);
  const auto shift = [&](const Sent& s) { return (s.to - s.from + ranks) % ranks; };
  for (const Sent& s : sent)
    check(s.from >= 0 && s.to >= 0 && s.from < ranks && s.to < ranks && s.from != s.to &&
              s.bytes >= 0,
          "a redistribution among ", ranks, " ranks: expected 0 bytes or more from one to another",
          ", got ", s.bytes, " from ", s.from, " to ", s.to);
  const Link out = c.across_with(c.devices_per_node);
  std::vector<double> done(std::size_t(ranks), 0.0), ends;
  if (ranks > most_looked_at) {
    std::vector<double> given = done;
    for (const Sent& s : sent) {
      const double seconds = detail::collectives::message(c, out, s);
      done[std::size_t(s.to)] += seconds, given[std::size_t(s.from)] += seconds;
    }
    return std::max(*std::ranges::max_element(done), *std::ranges::max_element(given));
  }
  std::vector<Sent> all(sent.begin(), sent.end());
  std::ranges::sort(all, {}, shift);
  int rounds = 0;
  for (std::size_t i = 0; i < all.size(); ++i)
    rounds += i == 0 || shift(all[i]) != shift(all[i - 1]);
  for (std::size_t i = 0, end = 0; i < all.size(); i = end) {
    ends.clear();
    for (; end < all.size() && shift(all[end]) == shift(all[i]); ++end) {
      const Sent& s = all[end];
      ends.push_back(std::max(done[std::size_t(s.from)], done[std::size_t(s.to)]) +
                     detail::collectives::message(c, out, s, rounds));
    }
    for (std::size_t k = i; k < end; ++k)
      for (const int r : {all[k].from, all[k].to})
        done[std::size_t(r)] = std::max(done[std::size_t(r)], ends[k - i]);
  }
  return *std::ranges::max_element(done);
}

}  // namespace lamina
