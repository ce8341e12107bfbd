// What layers cost under their splits, and what moves between them.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/cost/group.hpp>
#include <lamina/layers/add.hpp>
#include <lamina/network/predict.hpp>
#include <lamina/plan/detail/step_parts.hpp>

#include <algorithm>

namespace lamina {

namespace detail {

LAMINA_INLINE int Arrangements::number(Blocks blocks) {
  std::size_t hash = std::size_t(blocks.ranks());
  const auto mix = [&](std::int64_t v) { hash = (hash ^ std::size_t(v)) * 1099511628211u; };
  for (const Box& box : blocks.box)
    for (const Part& part : {box.n, box.c, box.h, box.w}) mix(part.begin), mix(part.size);
  const auto [first, last] = by_hash_.equal_range(hash);
  for (auto at = first; at != last; ++at)
    if (all_[std::size_t(at->second)].blocks.same(blocks)) return at->second;
  const int number = int(all_.size());
  Arrangement a{.blocks = {}, .copies = copies_of(blocks), .looked_at = {}};
  // Arrangements are regular: ranks at the ends and in the middle stand for all of many.
  constexpr int most = most_looked_at;
  const int ranks = blocks.ranks();
  for (int i = 0; i < std::min(ranks, most); ++i) {
    const int r = ranks <= most ? i : int(std::int64_t(i) * (ranks - 1) / (most - 1));
    if (blocks.number[std::size_t(r)] >= 0)
      a.looked_at.push_back({blocks.box[std::size_t(r)], {r}});
  }
  a.blocks = std::move(blocks);
  all_.push_back(std::move(a));
  by_hash_.emplace(hash, number);
  return number;
}

LAMINA_INLINE double Arrangements::seconds(int held, int wanted, double element) const {
  if (held == wanted) return 0;
  const std::uint64_t key = std::uint64_t(held) << 32 | std::uint64_t(wanted);
  const auto known = known_.find(key);
  if (known != known_.end()) return known->second;
  const Arrangement &has = all_[std::size_t(held)], &wants = all_[std::size_t(wanted)];
  const int ranks = wants.blocks.ranks();
  const auto send = [&](int from, int to, const Box& both) {
    if (from != to) sent_.push_back({from, to, double(both.size()) * element});
  };
  sent_.clear();
  each_overlap(has.copies, wants.looked_at,
               [&](const Copies& have, const Copies& want, const Box& both) {
                 send(have.nearest(want.ranks[0]), want.ranks[0], both);
               });
  double seconds = redistribution_time(*cluster_, ranks, sent_);
  if (ranks > most_looked_at) {  // then not all that any of these ranks sends is among it
    sent_.clear();
    each_overlap(wants.copies, has.looked_at,
                 [&](const Copies& want, const Copies& have, const Box& both) {
                   const int from = have.ranks[0], block = has.blocks.number[std::size_t(from)];
                   for (const int to : want.ranks)
                     if (has.copies[std::size_t(block)].nearest(to) == from) send(from, to, both);
                 });
    seconds = std::max(seconds, redistribution_time(*cluster_, ranks, sent_));
  }
  return known_[key] = seconds;
}

LAMINA_INLINE int Groups::number(const Split& split, Axis axes) {
  if (split.ways(axes) == 1) return -1;
  std::pair key{split, axes & split.axes()};
  if (split.ways(axes) == all_) key = {{.batch = all_}, Axis::batch};
  const auto at = std::ranges::find(keys_, key);
  if (at != keys_.end()) return int(at - keys_.begin());
  keys_.push_back(key), members_.push_back(group(key.first, {}, key.second));
  return int(keys_.size()) - 1;
}

LAMINA_INLINE double Groups::seconds(int group, Collective op, double bytes) const {
  if (group < 0 || bytes <= 0) return 0;
  const auto [at, isnew] = known_.try_emplace({group, op, bytes}, 0);
  if (isnew) at->second = collective_time(*cluster_, op, bytes, members_[std::size_t(group)]);
  return at->second;
}

LAMINA_INLINE bool Groups::leaves_node(int group) const {
  const auto node = [&](int rank) { return rank / cluster_->devices_per_node; };
  const std::vector<int>& ranks = members_[std::size_t(group)];
  return std::ranges::any_of(ranks, [&](int r) { return node(r) != node(ranks[0]); });
}

LAMINA_INLINE Reduction StepParts::reduction(int group, double bytes) const {
  const Precision& p = options.dtype;
  const double elements = bytes / double(size_of(p.compute));
  const bool narrow = options.narrow() && groups.leaves_node(group);
  const DType sent = narrow ? *options.sent_gradients : p.gradients;
  return {group, elements * double(size_of(p.gradients)), elements * double(size_of(sent)),
          elements * double(size_of(p.weights))};
}

LAMINA_INLINE OptionCost StepParts::cost_alone(const LayerKind& kind, const Split& split) {
  OptionCost o;
  if (!kind.layer) return o;
  const Cost cost = kind.layer->cost(kind.xs, split, options.dtype.compute);
  o.kernels = times->of(*kind.layer, kind.xs, split, cost, options.dtype, rule);
  if (kind.readers > 1) {
    Split of_y = split;  // which input channels do not cut
    of_y.input = 1, of_y.shares.input = {};
    const std::vector<Shape> parts(kind.readers, kind.y);
    o.sum = times->of(Add({}), parts, of_y, options.dtype, rule).forward;
  }
  o.multiplies = kind.layer->multiplies(), o.overlaps = o.multiplies && split.width == 1;
  for (const Message& m : cost.messages) {
    const int group = groups.number(split, m.axes);
    const auto add = [&](OptionCost::Messages& to) {
      (m.op == Collective::halo ? to.halo : to.others) += groups.seconds(group, m.op, m.bytes);
    };
    if (m.pass == Pass::weight_grad) {
      if (group >= 0) o.reductions.push_back(reduction(group, m.bytes));
    } else if (m.pass == Pass::forward) {
      add(o.forward);
      if (!m.once) add(o.recompute);
    } else {
      add(o.backward);
    }
  }
  const Precision& p = options.dtype;
  const double states =
      double(size_of(p.states)) * (rule.states() + (keeps_master(p.weights, p.states) ? 1 : 0));
  const double shared =
      options.shard_optimizer && !o.reductions.empty() ? groups.ranks(o.reductions[0].group) : 1;
  o.bytes = cost.parameters *
            (double(size_of(p.weights)) + double(size_of(p.gradients)) + states / shared);
  return o;
}

LAMINA_INLINE void StepParts::add(LayerKind& kind, const Split& split, OptionCost o) {
  const Blocks made = kind.layer ? kind.layer->output_blocks(kind.xs, split, ranks)
                                 : Blocks::of(kind.y, split, Axis::batch, ranks);
  o.bytes += double(made.largest()) * double(size_of(options.dtype.compute));
  o.made = arrangements.number(made);
  for (std::size_t k = 0; k < kind.xs.size(); ++k)
    o.wanted.push_back(arrangements.number(kind.layer->input_blocks(k, kind.xs, split, ranks)));
  kind.splits.push_back(split), kind.costs.push_back(std::move(o));
}

LAMINA_INLINE int StepParts::add(LayerKind& kind, const Split& split) {
  const auto at = std::ranges::find(kind.splits, split);
  if (at != kind.splits.end()) return int(at - kind.splits.begin());
  add(kind, split, cost_alone(kind, split));
  return int(kind.splits.size()) - 1;
}

LAMINA_INLINE StepParts::StepParts(Network network_, PlaceOptions options_, UpdateRule rule_,
                                   Cluster cluster_, int ranks_,
                                   std::shared_ptr<const LayerTimes> times_)
    : network(std::move(network_)),
      options(std::move(options_)),
      rule(std::move(rule_)),
      cluster(std::move(cluster_)),
      ranks(ranks_),
      times(std::move(times_)),
      arrangements(cluster),
      groups(cluster, ranks) {
  check_cluster(cluster);
  check(ranks > 0 && ranks <= cluster.devices(), "cluster ", cluster.name, " has ",
        cluster.devices(), " devices: expected from 1 to as many ranks, got ", ranks);
  options.splits.clear(), options.ranks = {};
  gradients = gradients_of(network, options.batch, options.dtype.compute);
  const Split data = input_split(options.batch, ranks);
  readers.resize(network.graph().size());
  for (int v = 0; v < int(network.graph().size()); ++v)
    for (int k = 0; const int input : network.graph()[std::size_t(v)].inputs)
      readers[std::size_t(input)].push_back({v, k++});
  recomputed.resize(network.graph().size());
  if (std::ranges::count(options.recompute, true) > 0)
    for (const PlacedNetwork placed = imagine(network, options, 0, 1);
         const Step& step : placed.steps())
      if (!step.inserted() && step.recomputed) recomputed[std::size_t(step.vertex)] = true;
  std::map<std::string, int> known;
  for (std::size_t i = 0; const auto& v : network.graph()) {
    LayerKind kind{.layer = v.layer.get(), .y = v.shape, .readers = readers[i++].size()};
    kind.y.n = options.batch;
    if (v.layer)
      kind.xs = network.input_shapes(v, options.batch), kind.y = v.layer->output(kind.xs);
    std::string key = v.layer ? text(v.layer->type(), ' ', v.layer->options()) : "input";
    for (const Shape& x : kind.xs) append(key, text(' ', x));
    append(key, text(' ', kind.readers));
    const auto [at, isnew] = known.try_emplace(key, int(kinds.size()));
    if (isnew) kinds.push_back(std::move(kind));
    kind_of.push_back(at->second);
  }
  for (LayerKind& kind : kinds) {
    const auto legal = [&](const Split& s) {
      return !kind.layer || why_illegal(*kind.layer, kind.xs, s, ranks).empty();
    };
    Split split = data;
    for (int fewer = data.batch - 1; fewer >= 1 && !legal(split); --fewer) split = {.batch = fewer};
    add(kind, split);
  }
}

}  // namespace detail

}  // namespace lamina
