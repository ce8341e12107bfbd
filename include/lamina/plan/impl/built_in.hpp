// The plans that need no file: each is a wish per layer, and what to do where that is impossible.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/base/nearest.hpp>
#include <lamina/plan/plan.hpp>

#include <algorithm>

namespace lamina {

namespace detail::built_in {

inline constexpr std::string_view names[] = {"data", "owt", "spatial", "filter"};

/// As many ranks as there can be along one axis, the others along the batch: `cut` makes a split of
/// the parts of either.
template <class Cut>
std::vector<Split> most_of(int ranks, Cut&& cut) {
  std::vector<Split> wishes;
  for (int parts = ranks; parts >= 1; --parts)
    if (ranks % parts == 0) wishes.push_back(cut(ranks / parts, parts));
  return wishes;
}

inline std::vector<Split> by_channel(int ranks) {
  return most_of(ranks, [](int b, int k) { return Split{.batch = b, .channel = k}; });
}
inline std::vector<Split> by_height(int ranks) {
  return most_of(ranks, [](int b, int h) { return Split{.batch = b, .height = h}; });
}

/// Goes through a network, with what every layer so far is split by.
class Planner {
 public:
  Planner(const Network& net, std::int64_t batch, int ranks)
      : net_(net), batch_(batch), ranks_(ranks), data_(input_split(batch, ranks)) {}

  Plan plan(std::string_view name) {
    Plan plan{.ranks = ranks_};
    used_.push_back(data_);
    behind_linear_.push_back(false);
    for (std::size_t i = 1; i < net_.graph().size(); ++i) {
      const auto& v = net_.graph()[i];
      const bool linear = is_linear(*v.layer);
      behind_linear_.push_back(v.layer->multiplies() ? linear : all_behind_linear(v));
      std::vector<Split> wishes = {data_};
      if (name == "filter" || (name == "owt" && behind_linear_.back()))
        wishes = linear && comes_in_parts(v) ? std::vector{Split{.input = ranks_}, data_}
                                             : by_channel(ranks_);
      else if (name == "spatial" && has_rows(v))
        wishes = by_height(ranks_);
      // Batch norm may need more samples on a rank than there are for all of them.
      for (int fewer = ranks_ - 1; fewer >= 1 && name != "data"; --fewer)
        wishes.push_back({.batch = fewer});
      used_.push_back(first_legal(v, wishes));
      if (used_.back() == data_ && wishes[0] == data_) continue;
      plan.rules.push_back({v.name, wishes[0], {wishes.begin() + 1, wishes.end()}, {}});
    }
    return plan;
  }

 private:
  using Vertex = Network::Vertex;

  /// Whether the layer's weights meet whole samples, and not windows of them that move along rows
  /// and columns.
  static bool is_linear(const Layer& layer) {
    return layer.multiplies() && !contains(layer.splits(), Axis::height);
  }
  bool all_behind_linear(const Vertex& v) const {
    return std::ranges::all_of(v.inputs, [&](int i) { return behind_linear_[std::size_t(i)]; });
  }
  /// Whether each rank has the input channels that it takes when they are cut, so that nothing is
  /// sent before the layer.
  bool comes_in_parts(const Vertex& v) const {
    const auto from = std::size_t(v.inputs[0]);
    const Vertex& producer = net_.graph()[from];
    const Split split{.input = ranks_};
    const auto xs = net_.input_shapes(v, batch_);
    if (!producer.layer || !why_illegal(*v.layer, xs, split, ranks_).empty()) return false;
    return producer.layer->output_blocks(net_.input_shapes(producer, batch_), used_[from], ranks_)
        .same(v.layer->input_blocks(0, xs, split, ranks_));
  }
  bool has_rows(const Vertex& v) const {
    const auto xs = net_.input_shapes(v, batch_);
    return contains(v.layer->splits(), Axis::height) &&
           std::ranges::all_of(xs, [](const Shape& x) { return x.h > 1; });
  }
  Split first_legal(const Vertex& v, const std::vector<Split>& wishes) const {
    const auto xs = net_.input_shapes(v, batch_);
    for (const Split& wish : wishes)
      if (why_illegal(*v.layer, xs, wish, ranks_).empty()) return wish;
    return data_;
  }

  const Network& net_;
  std::int64_t batch_;
  int ranks_;
  Split data_;
  std::vector<Split> used_;          // by vertex
  std::vector<bool> behind_linear_;  // by vertex: is linear, or works on what such layers made
};

}  // namespace detail::built_in

LAMINA_INLINE std::vector<std::string_view> plan_names() {
  return {std::begin(detail::built_in::names), std::end(detail::built_in::names)};
}

LAMINA_INLINE Plan built_in_plan(std::string_view name, const Network& net, std::int64_t batch,
                                 int ranks) {
  if (std::ranges::find(detail::built_in::names, name) == std::end(detail::built_in::names))
    throw Error(text("plan '", name, "' is not known", suggestion(name, detail::built_in::names),
                     ": expected data, owt, spatial, filter or a file"));
  return detail::built_in::Planner(net, batch, ranks).plan(name);
}

}  // namespace lamina
