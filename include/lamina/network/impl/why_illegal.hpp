// Which splits of a layer are legal, and why others are not.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/network/network.hpp>

#include <algorithm>

namespace lamina {

namespace detail {

/// Throws Error where `layer` cannot be split so over `ranks` ranks.
inline void check_split(const Layer& layer, std::span<const Shape> xs, const Split& split,
                        int ranks, bool training) {
  check_shares(split);
  const Shape y = layer.output(xs);
  struct Cut {
    const char* name;
    Axis axis;
    int ways;
    std::int64_t extent;
    const char* one;
  };
  // Where ranks have copies of y, only x need have as many rows or columns.
  const auto cuts_y = [&](Axis axis, const Split& two) {
    const Blocks blocks = layer.output_blocks(xs, two, 2);
    return !contains(layer.splits(), axis) || blocks.number[0] != blocks.number[1];
  };
  std::int64_t rows = cuts_y(Axis::height, {.height = 2}) ? y.h : xs[0].h;
  std::int64_t columns = cuts_y(Axis::width, {.width = 2}) ? y.w : xs[0].w;
  for (const Shape& x : xs) rows = std::min(rows, x.h), columns = std::min(columns, x.w);
  const Cut cuts[] = {{"batch", Axis::batch, split.batch, xs[0].n, "sample"},
                      {"channel", Axis::channel, split.channel, layer.cut_channels(xs), "channel"},
                      {"input", Axis::input, split.input, xs[0].c, "input channel"},
                      {"height", Axis::height, split.height, rows, "row"},
                      {"width", Axis::width, split.width, columns, "column"}};
  for (const Cut& cut : cuts) {
    check(cut.ways >= 1, "split ", cut.name, ':', cut.ways, ": expected at least 1 part");
    if (cut.ways == 1) continue;
    const std::string_view limit = layer.limit(cut.axis, xs), colon = limit.empty() ? "" : ": ";
    check(contains(layer.splits(), cut.axis), "cannot be split by ", cut.name, colon, limit);
    const bool one = cut.extent == 1;
    check(cut.ways <= cut.extent, "split ", cut.name, ':', cut.ways, ": there ", one ? "is" : "are",
          " only ", cut.extent,
          limit.empty() ? text(' ', cut.one, one ? "" : "s") : "",  // or else the limit says it
          " to be cut", colon, limit);
  }
  check(split.ways() <= ranks, "split ", split, " has ", split.ways(), " parts, but there ",
        ranks == 1 ? "is " : "are ", ranks, ranks == 1 ? " rank" : " ranks");
  layer.check_split(xs, split, training);
}

}  // namespace detail

LAMINA_INLINE void check_shares(const Split& split) {
  for (const Axis axis : {Axis::batch, Axis::channel, Axis::input, Axis::height, Axis::width}) {
    const Shares& shares = split.shares_of(axis);
    check(shares.empty() || int(shares.size()) == split.ways(axis), "split ", split,
          ": expected a share for each of ", split.ways(axis), " parts, got ", shares.size());
    for (const int share : shares)
      check(share >= 1, "split ", split, ": expected shares of at least 1, got ", share);
  }
}

LAMINA_INLINE std::string why_illegal(const Layer& layer, std::span<const Shape> xs,
                                      const Split& split, int ranks, bool training) {
  try {
    detail::check_split(layer, xs, split, ranks, training);
  } catch (const Error& e) {
    return e.what();
  }
  return {};
}

}  // namespace lamina
