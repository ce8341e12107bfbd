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
/// alike at the border of the whole, and of which exchanges ask the same.
class RankClasses {
 public:
  /// Of the network as it is placed on rank 0.
  explicit RankClasses(const PlacedNetwork& net) : of_(std::size_t(net.placing().ranks.size())) {
    for (const Step& step : net.steps()) {
      const auto input = [&](std::size_t k) -> const Step& {
        return net.steps()[std::size_t(step.inputs[k])];
      };
      if (step.kind == Step::Kind::reshard) {
        add_exchange(input(0).blocks, step.blocks, input(0).output.has_gradient);
        add_blocks(step.blocks, step.blocks, step.blocks, Axis::none, int(of_.size()));
      }
      if (step.kind == Step::Kind::input)
        add_blocks(step.blocks, step.blocks, step.blocks, Axis::none, step.output.split.ways());
      if (step.kind != Step::Kind::layer) continue;
      const Axis halo = step.layer->halo_axes();
      // What an epilogue adds lies as y does; one that is absorbed has an input alone.
      for (std::size_t k = 0; k < std::min(step.inputs.size(), step.input_shapes.size()); ++k) {
        const Blocks& held = input(k).blocks;
        if (k > 0 || halo == Axis::none) {
          add_blocks(held, held, step.blocks, Axis::none, step.split().ways());
          continue;
        }
        const Blocks reached = step.layer->halo_blocks(step.input_shapes, step.split());
        add_blocks(held, reached, step.blocks, halo, step.split().ways());
        add_halo(held, reached, step.split(), halo, input(k).output.has_gradient);
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

  /// How ranks that take part hold x and make y, of whose windows they read `reached`. Where these
  /// meet the border, along `halo`, it matters how far away that is.
  void add_blocks(const Blocks& x, const Blocks& reached, const Blocks& y, Axis halo, int ways) {
    using Key = std::array<std::int64_t, 8>;
    const auto key = [](Part held, Part seen, Part made, std::int64_t extent, std::int64_t made_of,
                        bool windows) -> Key {
      if (!windows) return {held.size, made.size, held.begin == 0, made.begin == 0};
      const bool first = seen.begin == 0, last = seen.end() == extent;
      return {held.size,
              made.size,
              seen.size,
              held.begin - seen.begin,
              first ? held.begin : -1,
              first ? made.begin : -1,
              last ? extent - held.end() : -1,
              last ? made_of - made.end() : -1};
    };
    std::vector<std::array<Key, 4>> keys;
    for (std::size_t r = 0; r < std::size_t(ways); ++r) {
      const Box &a = x.box[r], &s = reached.box[r], &b = y.box[r];
      const auto along = [&](Part Box::*axis, std::int64_t Shape::*extent, Axis cut) {
        return key(a.*axis, s.*axis, b.*axis, x.whole.*extent, y.whole.*extent,
                   contains(halo, cut));
      };
      keys.push_back({Key{a.n.size, b.n.size}, along(&Box::c, &Shape::c, Axis::channel),
                      along(&Box::h, &Shape::h, Axis::height),
                      along(&Box::w, &Shape::w, Axis::width)});
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
