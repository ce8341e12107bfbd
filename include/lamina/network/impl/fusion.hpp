// Which layers are absorbed by which.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/network/fusion.hpp>

#include <algorithm>

namespace lamina {

namespace detail {

class FusionPlanner {
 public:
  FusionPlanner(const Network& network, const PlaceOptions& options)
      : network_(network), options_(options), readers_(graph().size()) {
    for (int v = 0; v < int(graph().size()); ++v)
      for (const int input : vertex(v).inputs) readers_[std::size_t(input)].push_back(v);
    fusion_.vertices.resize(graph().size());
  }

  Fusion plan() {
    for (int v = 1; v < int(graph().size()); ++v) {
      if (role(v).absorbed_by >= 0) continue;
      for (int last = v; last >= 0;) last = absorb(v, last);
    }
    return std::move(fusion_);
  }

 private:
  const std::vector<Network::Vertex>& graph() const { return network_.graph(); }
  const Network::Vertex& vertex(int v) const { return graph()[std::size_t(v)]; }
  Fusion::Role& role(int v) { return fusion_.vertices[std::size_t(v)]; }
  Split split(int v) const {
    return options_.splits.empty() ? input_split(options_.batch, options_.ranks.size())
                                   : options_.splits[std::size_t(v)];
  }
  bool recomputed(int v) const {
    return !options_.recompute.empty() && options_.recompute[std::size_t(v)];
  }

  /// Has `by` absorb the layer that reads `last`: itself, or the end of what it has absorbed.
  /// Returns that layer; -1 where it cannot be.
  int absorb(int by, int last) {
    const auto& readers = readers_[std::size_t(last)];
    if (readers.size() != 1) return -1;
    const int next = readers[0];
    const auto& inputs = vertex(next).inputs;
    const std::optional<Epilogue> work = vertex(next).layer->as_epilogue();
    Fusion::Role wanted = role(by);
    if (!work || wanted.epilogue.activation || (work->add && wanted.epilogue.add)) return -1;
    if (work->scale && (wanted.epilogue || options_.training)) return -1;
    if (inputs.size() != (work->add ? 2 : 1)) return -1;
    if (work->add) {
      wanted.added = inputs[0] == last ? inputs[1] : inputs[0];
      if (wanted.added >= by) return -1;
    }
    wanted.epilogue.add |= work->add, wanted.epilogue.scale |= work->scale;
    if (work->activation) wanted.epilogue.activation = work->activation;
    const bool fits =
        recomputed(by) == recomputed(next) && same_blocks(by, next) && fuses(by, wanted.epilogue);
    if (!fits) return -1;
    role(by) = wanted, role(next).absorbed_by = by;
    return next;
  }

  /// Whether all ranks do: collective where their back ends are unlike. They ask the same
  /// questions, since the answers are.
  bool fuses(int by, const Epilogue& e) const {
    const bool mine = vertex(by).layer->fuses(*options_.backend, e, split(by));
    if (!options_.unlike_backends) return mine;
    return options_.ranks.all_reduce_value(int(mine), ReduceOp::min) == 1;
  }

  /// Whether ranks hold of all that `next` reads and makes what they hold of y of `by`.
  bool same_blocks(int by, int next) const {
    const auto shapes = [&](int v) { return network_.input_shapes(vertex(v), options_.batch); };
    const auto xs = shapes(next);
    const Layer& layer = *vertex(next).layer;
    const int ranks = options_.ranks.size();
    const Blocks y = vertex(by).layer->output_blocks(shapes(by), split(by), ranks);
    for (std::size_t i = 0; i < xs.size(); ++i)
      if (!layer.input_blocks(i, xs, split(next), ranks).same(y)) return false;
    return layer.output_blocks(xs, split(next), ranks).same(y);
  }

  const Network& network_;
  const PlaceOptions& options_;
  std::vector<std::vector<int>> readers_;  // by vertex; one that reads it twice is here twice
  Fusion fusion_;
};

}  // namespace detail

LAMINA_INLINE Fusion plan_fusion(const Network& network, const PlaceOptions& options) {
  check(options.backend != nullptr, "no back end was given");
  for (const std::size_t size : {options.splits.size(), options.recompute.size()})
    check(size == 0 || size == network.graph().size(), "expected an entry for each of the ",
          network.graph().size(), " vertices of the network, got ", size);
  return detail::FusionPlanner(network, options).plan();
}

}  // namespace lamina
