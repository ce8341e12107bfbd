// PlaceOptions: how a network is placed. Step: a layer where it is placed.
#pragma once

#include <lamina/layers/layer.hpp>
#include <lamina/network/memory.hpp>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lamina {

class PlacedNetwork;

/// Equal parts of a batch, each with batch norm statistics and random numbers of its own, which
/// ranks share out and run in turn. Nothing that a worker computes depends on the ranks, and their
/// gradients are added up in an order that depends on their number alone: on 2^i ranks, of which
/// each runs as many, the bits of a step are the same for all i.
struct Workers {
  int count = 0;            ///< over all ranks; 0 = the batch is not cut so
  Communicator ranks = {};  ///< that run them, each a part, by rank
  Part mine = {};           ///< those of this rank: one or more

  int turns() const { return int(mine.size); }
  /// How many are added up one after the other: what is odd of their number (layers/parameter.hpp).
  int in_row() const { return count / (count & -count); }
};

/// How a network is placed on the ranks.
struct PlaceOptions {
  std::int64_t batch = 1;  ///< samples of the global batch, over all ranks
  std::shared_ptr<const Backend> backend = {};
  Communicator ranks = {};
  /// Of each vertex of the graph, the input first; empty = all samples over all ranks.
  std::vector<Split> splits = {};
  /// Of each vertex, whether y is computed once more in backward instead of being kept until then;
  /// empty = none. It costs the layer's forward time again, for those whose y backward reads.
  std::vector<bool> recompute = {};
  Precision dtype = DType::f32;                ///< a DType, or with other types for some uses
  double bucket_mb = 25, first_bucket_mb = 1;  ///< gradient buckets; 0 = one per layer
  /// In which gradients go from node to node: bf16 for gradients in f32 (Communicator::narrow());
  /// by default as they are. It is an Error with workers, whose sums are the same on any number of
  /// ranks, and where the back end has a memory of its own.
  std::optional<DType> sent_gradients = {};
  /// Of the gradient of the loss, so that small gradients do not vanish in f16. It is an Error
  /// where the network ends in a loss that does not scale (Layer::scales_gradient). Of no effect in
  /// inference.
  LossScaling loss_scaling = {};
  /// Each of the ranks that hold the same parameters keeps the optimizer's states of a part of
  /// them, updates that and sends it to the others.
  bool shard_optimizer = false;
  bool training = true;  ///< false: no gradients are kept, only forward may run
  /// Parameters that are not trained, by name ("conv1.weight"), or by pattern (base/pattern.hpp).
  /// They have no gradient, no state of an optimizer, and are in no reduction; where no layer below
  /// has any that is trained, backward ends. It is an Error if one matches none of the parameters
  /// that the layers train, or if nothing is left to train. Batch norm that is frozen goes on
  /// taking the batch's statistics. Of no effect in inference.
  std::vector<std::string> frozen = {};
  /// A step takes so many batches, one after the other: backward adds up their gradients, and sums
  /// them over the ranks in that of the last one (Context::micro_batch).
  int micro_batches = 1;
  /// Where such a batch is the part of a worker, which needs no other rank: `ranks` is this rank
  /// alone, and there are as many micro-batches as workers. See PlacedNetwork::share().
  Workers workers = {};
  /// Whether kernels take over the layers behind them where they can: see network/fusion.hpp.
  bool fuse = false;
  /// Ranks compute with unlike back ends: weights lie plain, layers are fused where all of them
  /// fuse these, and after an update those who have the same weights get them from one. It is found
  /// out of `ranks`; with workers it must be said, and the same on all: each may fuse others then.
  bool unlike_backends = false;
  /// For inference: has the parameters of this network, which is of the same layers, instead of its
  /// own. See PlacedNetwork::refresh().
  const PlacedNetwork* parameters_of = nullptr;

  /// How many batches this rank runs in a step.
  int turns() const { return workers.count > 0 ? workers.turns() : micro_batches; }
  /// Whether gradients are rounded where they go from node to node.
  bool narrow() const {
    return sent_gradients && size_of(*sent_gradients) < size_of(dtype.gradients);
  }
};

/// The addresses of what a step reads and writes.
struct Buffers {
  std::vector<View> x, dx;   ///< dx is absent where nobody needs it
  View y, dy;                ///< dy is absent for the last step
  std::vector<View> kept_x;  ///< x and y as backward sees them: elsewhere where they are recomputed
  View kept_y;
  std::vector<View> parts;  ///< gradients from several consumers, which `sum` adds into dy
  std::unique_ptr<NaryKernel> sum;
  View more;  ///< the second part of dy, where the layer adds them up itself
};

/// A layer where it is placed: the row of a profile. Inserted reorders and reshards are steps, too.
struct Step {
  enum class Kind { input, layer, reorder, reshard };

  Kind kind = Kind::layer;
  const Layer* layer = nullptr;  ///< null for step 0, the input
  std::string name = {};
  int vertex = 0;                ///< number in the graph; an inserted step has that of its consumer
  std::vector<int> inputs = {};  ///< steps
  std::vector<Shape> input_shapes = {};  ///< whole, across all ranks
  Spec output = {};
  Blocks blocks = {};  ///< of y, by rank
  Placement placement = {};
  bool needs_grad = false;
  double trained = 1;       ///< part of the elements that the layer trains which is not frozen
  Epilogue epilogue = {};   ///< of its kernel; what that adds is its last input
  int absorber = -1;        ///< the step whose kernel makes y in its stead; -1 = none
  bool recomputed = false;  ///< backward reads y, which is computed once more instead of kept
  std::vector<int> recomputes =
      {};              ///< steps whose forward runs once more before this one's backward
  Memory memory = {};  ///< that it brings
  Buffers buffers = {};

  /// Whether this rank takes part.
  bool active() const { return placement.layer != nullptr; }
  /// Whether it stands between layers of the network.
  bool inserted() const { return kind == Kind::reorder || kind == Kind::reshard; }
  /// Whether another layer's kernel does its work.
  bool absorbed() const { return absorber >= 0; }
  /// Whether x number i is what the epilogue adds, which backward does not read.
  bool adds(std::size_t i) const { return epilogue.add && i + 1 == inputs.size(); }
  /// That of the layer, which says what it costs. In a reshard all ranks take part.
  Split split() const {
    return kind == Kind::reshard ? Split{.batch = blocks.ranks()} : output.split;
  }
  /// The layer's, without what is frozen, with what it absorbs and without what absorbs it: on a
  /// rank that has so many samples, and the largest part of each.
  Cost cost(const Precision& precision, std::int64_t samples) const;
  /// On the rank that has most of them.
  Cost cost(const Precision& precision) const {
    return cost(precision, split().largest(Axis::batch, input_shapes[0].n));
  }
  /// Of this rank; none where it takes no part.
  std::vector<Parameter*> parameters() const {
    return active() ? placement.layer->parameters() : std::vector<Parameter*>();
  }
};

/// For each step, who reads y: the step, and which of its inputs.
struct Reader {
  int step, slot;
};
std::vector<std::vector<Reader>> readers(const std::vector<Step>& steps);

}  // namespace lamina
