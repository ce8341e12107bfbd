// What a StepModel knows of layers, their splits and what lies between them.
#pragma once

#include <lamina/plan/detail/gradients.hpp>
#include <lamina/plan/step_model.hpp>

#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace lamina::detail {

/// The sum of a layer's gradients in a group of ranks, whose number `Groups` has.
struct Reduction {
  int group = -1;
  double bytes = 0;   ///< of the gradients
  double sent = 0;    ///< of these as they travel
  double values = 0;  ///< of the parameters, which a sharded optimizer gathers
};

/// What a layer costs under one of its splits, in one micro-batch.
struct OptionCost {
  /// Seconds of messages: those of a halo, and others.
  struct Messages {
    double halo = 0, others = 0;
  };
  LayerSeconds kernels = {};
  double sum = 0;                         ///< of gradients, where several layers read y: before dx
  Messages forward = {}, recompute = {};  ///< others wait for the kernel, which waits for the halo,
  bool overlaps = false;                  ///< unless that travels beside it
  /// Of dx, beside the kernel of dw: parts, then a halo; but where the layer does not multiply,
  /// others are sums of the kernel of dw, for which that of dx waits (batch norm).
  Messages backward = {};
  bool multiplies = false;
  std::vector<Reduction> reductions = {};
  double bytes = 0;         ///< of memory: see StepModel::graph()
  std::vector<int> wanted;  ///< numbers of arrangements, of each x
  int made = -1;            ///< and of y
};

/// Arrangements of blocks, each once, and what it takes to make one of another.
class Arrangements {
 public:
  explicit Arrangements(const Cluster& cluster) : cluster_(&cluster) {}
  int number(Blocks blocks);
  /// Seconds until each rank has what it wants; elements are of so many bytes.
  double seconds(int held, int wanted, double element) const;

 private:
  struct Arrangement {
    Blocks blocks;
    std::vector<Copies> copies;
    std::vector<Copies> looked_at;  ///< what some ranks have, who stand for all of them
  };

  const Cluster* cluster_;
  std::vector<Arrangement> all_;
  std::unordered_multimap<std::size_t, int> by_hash_;
  mutable std::unordered_map<std::uint64_t, double> known_;
  mutable std::vector<Sent> sent_;  ///< of the arrangement that is looked at
};

/// Groups of ranks that share collectives, and what these take.
class Groups {
 public:
  Groups(const Cluster& cluster, int ranks) : cluster_(&cluster), all_(ranks) {}
  /// The number of the group of rank 0; -1 where it is alone. As Site makes them: splits have
  /// groups of their own, but share that of all ranks.
  int number(const Split& split, Axis axes);
  /// Seconds of a collective in it; nothing in -1.
  double seconds(int group, Collective op, double bytes) const;
  int ranks(int group) const { return int(members_[std::size_t(group)].size()); }
  /// Whether it has ranks on several nodes.
  bool leaves_node(int group) const;

 private:
  const Cluster* cluster_;
  int all_;
  std::vector<std::pair<Split, Axis>> keys_;
  std::vector<std::vector<int>> members_;
  mutable std::map<std::tuple<int, Collective, double>, double> known_;
};

/// Vertices of equal layers with inputs of equal shapes, whose outputs as many layers read: they
/// have their options in common.
struct LayerKind {
  const Layer* layer = nullptr;  ///< null for the input
  std::vector<Shape> xs = {};    ///< whole
  Shape y = {};
  std::size_t readers = 1;
  std::vector<Split> splits = {};
  std::vector<OptionCost> costs = {};
};

struct StepParts {
  StepParts(Network network_, PlaceOptions options_, UpdateRule rule_, Cluster cluster_, int ranks_,
            std::shared_ptr<const LayerTimes> times_);

  LayerKind& kind(int vertex) { return kinds[std::size_t(kind_of[std::size_t(vertex)])]; }
  const LayerKind& kind(int vertex) const {
    return kinds[std::size_t(kind_of[std::size_t(vertex)])];
  }
  const OptionCost& cost(int vertex, const Selection& selection) const {
    return kind(vertex).costs[std::size_t(selection[std::size_t(vertex)])];
  }
  /// The number of a split of this kind, which is added if it is new. It must be legal.
  int add(LayerKind& kind, const Split& split);
  /// Adds one that is new; `alone` is its cost_alone().
  void add(LayerKind& kind, const Split& split, OptionCost alone);
  /// All that has nothing to do with other layers: without `wanted`, `made`, and the bytes of y.
  OptionCost cost_alone(const LayerKind& kind, const Split& split);
  /// Of a message that counts gradients as if they were of the type in which layers compute.
  Reduction reduction(int group, double bytes) const;

  Network network;
  PlaceOptions options;
  UpdateRule rule;
  Cluster cluster;
  int ranks;
  std::shared_ptr<const LayerTimes> times;
  std::vector<LayerKind> kinds;
  std::vector<int> kind_of;  ///< by vertex
  /// By vertex, who reads its y, as which of their inputs, in the order of forward.
  std::vector<std::vector<std::pair<int, int>>> readers;
  Gradients gradients;  ///< by vertex
  /// By vertex, whether forward runs once more in backward: of what is marked that which is read,
  /// as on one rank.
  std::vector<bool> recomputed;
  Arrangements arrangements;
  Groups groups;
};

}  // namespace lamina::detail
