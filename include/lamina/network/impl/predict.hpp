// How a network is placed on ranks that are not there.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/comm/imagined.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/layers/exchange.hpp>
#include <lamina/network/predict.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

namespace lamina {

namespace detail {

inline PlacedNetwork imagine_as(const Network& network, const PlaceOptions& options, int rank,
                                ImaginedRanks& ranks) {
  check(!options.parameters_of,
        "what a network takes with the parameters of another one is not predicted");
  PlaceOptions mine = options;
  mine.backend = planning_backend(options.backend), mine.ranks = ranks.as(rank);
  return PlacedNetwork(network, std::move(mine));
}

/// Ranks on which a network takes the same: whose blocks have the same shapes in all layers, lie
/// alike to what their windows reach and begin, or do not, where the whole begins; and of which
/// exchanges ask the same.
class RankClasses {
 public:
  /// Of the network as it is placed on rank 0.
  explicit RankClasses(const PlacedNetwork& net) : of_(std::size_t(net.placing().ranks.size())) {
    for (const Step& step : net.steps()) {
      if (step.inputs.empty()) add_blocks(step.blocks, step.blocks, step.blocks);
      // What an epilogue adds lies as y does; a layer that is absorbed has an input alone.
      const std::size_t inputs = std::min(step.inputs.size(), step.input_shapes.size());
      for (std::size_t k = 0; k < inputs; ++k) {
        const Step& input = net.steps()[std::size_t(step.inputs[k])];
        const bool back = input.output.has_gradient;
        if (step.kind == Step::Kind::reshard) add_exchange(input.blocks, step.blocks, back);
        const Axis halo = step.layer->halo_axes();
        if (k > 0 || halo == Axis::none) {
          add_blocks(input.blocks, input.blocks, step.blocks);
          continue;
        }
        const Blocks reached = step.layer->halo_blocks(step.input_shapes, step.split());
        add_blocks(input.blocks, reached, step.blocks);
        add_halo(input.blocks, reached, step.split(), halo, back);
      }
    }
    for (int r = 0; r < int(of_.size()); ++r)
      if (of_[std::size_t(r)] == int(first_.size())) first_.push_back(r);
  }

  /// The first rank that is like this one.
  int first_like(int rank) const { return first_[std::size_t(of_[std::size_t(rank)])]; }

 private:
  /// Ranks stay in one class only where they have the same key; those beyond the keys have another.
  template <class Key>
  void tell_apart(const std::vector<Key>& keys) {
    std::map<std::pair<int, std::optional<Key>>, int> seen;
    for (std::size_t r = 0; r < of_.size(); ++r) {
      std::pair<int, std::optional<Key>> key{of_[r], {}};
      if (r < keys.size()) key.second = keys[r];
      of_[r] = seen.try_emplace(std::move(key), int(seen.size())).first->second;
    }
  }

  /// What the windows of ranks reach of x, and how they make y. By how they hold x they have been
  /// told apart where it was made.
  void add_blocks(const Blocks& x, const Blocks& reached, const Blocks& y) {
    std::vector<std::array<std::int64_t, 15>> keys;
    for (std::size_t r = 0; r < reached.box.size(); ++r) {
      const Box &held = x.box[r], &seen = reached.box[r], &made = y.box[r];
      keys.emplace_back();
      auto at = keys.back().begin();
      for (Part Box::*axis : {&Box::n, &Box::c, &Box::h, &Box::w}) {
        const Part a = held.*axis, s = seen.*axis, b = made.*axis;
        for (const std::int64_t v : {s.size, a.begin - s.begin, b.size}) *at++ = v;
        if (axis != &Box::n) *at++ = b.begin == 0;
      }
    }
    tell_apart(keys);
  }

  void add_exchange(const Blocks& held, const Blocks& wanted, bool back) {
    tell_apart(Exchange::loads(held, wanted));
    if (back) tell_apart(Exchange::loads(wanted, held));
  }

  /// Each group has an exchange of its own.
  void add_halo(const Blocks& held, const Blocks& reached, const Split& split, Axis axes,
                bool back) {
    std::vector<std::array<Exchange::Load, 2>> loads(std::size_t(split.ways()));
    for (int r = 0; r < split.ways(); ++r) {
      const Place place = split.place(r);
      if (split.number(place, axes) != 0) continue;
      const std::vector<int> members = group(split, place, axes);
      const Blocks from = held.among(members), to = reached.among(members);
      if (from.box == to.box) continue;
      const auto there = Exchange::loads(from, to);
      const auto again =
          back ? Exchange::loads(to, from) : std::vector<Exchange::Load>(there.size());
      for (std::size_t i = 0; i < members.size(); ++i)
        loads[std::size_t(members[i])] = {there[i], again[i]};
    }
    tell_apart(loads);
  }

  std::vector<int> of_;     // by rank, its class; they are counted as they come
  std::vector<int> first_;  // by class
};

}  // namespace detail

LAMINA_INLINE PlacedNetwork imagine(const Network& network, const PlaceOptions& options, int rank,
                                    int ranks) {
  ImaginedRanks all(ranks);
  PlacedNetwork placed = detail::imagine_as(network, options, 0, all);
  return rank == 0 ? std::move(placed) : detail::imagine_as(network, options, rank, all);
}

LAMINA_INLINE std::vector<Memory> predict_memory(const Network& network,
                                                 const PlaceOptions& options, int ranks,
                                                 const UpdateRule& rule) {
  ImaginedRanks imagined(ranks);
  std::vector<Memory> all;
  std::optional<detail::RankClasses> classes;
  for (int r = 0; r < ranks; ++r) {
    if (const int known = classes ? classes->first_like(r) : r; known < r) {
      all.push_back(all[std::size_t(known)]);
      continue;
    }
    const PlacedNetwork placed = detail::imagine_as(network, options, r, imagined);
    if (r == 0 && ranks > 1) classes.emplace(placed);
    Memory m = placed.memory();
    for (const NamedParameter& n : placed.parameters())
      m.optimizer += n.parameter->state_bytes(rule.states());
    all.push_back(m);
  }
  return all;
}

}  // namespace lamina
