// Network: a directed acyclic graph of layers; places them, owns the buffers between them, and runs
// them forward and backward. It knows no plan, no optimizer and no data.
#pragma once

#include <lamina/base/random.hpp>
#include <lamina/layers/layer.hpp>
#include <lamina/layers/reorder.hpp>
#include <lamina/layers/reshard.hpp>
#include <lamina/network/memory.hpp>

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace lamina {

class Network;

namespace detail {
// What takes the calls of add() and join() where L is no type of layer, so that the compiler's
// error is one that says so, and not a list of all that does not fit.
template <class L>
concept NoLayerType = !LayerType<L>;
template <class L>
struct NoNode;
struct AnyOptions {
  AnyOptions(auto&&...) {}
};
}  // namespace detail

/// The output of a layer while a network is built. Valid as long as the network is not moved.
class Node {
 public:
  /// Appends a layer that reads this output; returns that layer's output.
  template <LayerType L>
  Node add(typename L::Options options = {}, std::string name = {}) const;
  template <detail::NoLayerType L>
  detail::NoNode<L> add(detail::AnyOptions = {}, std::string = {}) const;
  /// Of one sample.
  const Shape& shape() const;

 private:
  friend class Network;
  Node(Network* network, int index) : network_(network), index_(index) {}
  Network* network_;
  int index_;
};

template <class L>
struct detail::NoNode : Node {
  static constexpr bool is_layer_type = LayerType<L>;
  static_assert(is_layer_type, "expected a class derived from lamina::Layer, with its Options");
};

/// How a network is placed on the ranks.
struct PlaceOptions {
  std::int64_t batch = 1;  ///< samples of the global batch, over all ranks
  std::shared_ptr<const Backend> backend;
  Communicator ranks = {};
  /// Of each vertex of the graph, the input first; empty = all samples over all ranks.
  std::vector<Split> splits = {};
  /// Of each vertex, whether y is computed once more in backward instead of being kept until then;
  /// empty = none. It costs the layer's forward time again, for those whose y backward reads.
  std::vector<bool> recompute = {};
  DType dtype = DType::f32;
  double bucket_mb = 25, first_bucket_mb = 1;  ///< gradient buckets; 0 = one per layer
  /// Each of the ranks that hold the same parameters keeps the optimizer's states of a part of
  /// them, updates that and sends it to the others.
  bool shard_optimizer = false;
  bool training = true;  ///< false: no gradients are kept, only forward may run
};

/// A layer as it was placed: the row of a profile. Inserted reorders and reshards are steps too.
struct Step {
  Layer* layer = nullptr;  ///< null for step 0, the input
  std::string name;
  int vertex = 0;           ///< number in the graph; an inserted step has that of its consumer
  std::vector<int> inputs;  ///< steps
  std::vector<Shape> input_shapes;  ///< whole, across all ranks
  Spec output;
  Blocks blocks;  ///< of y, by rank
  Placement placement;
  bool active = true;  ///< whether this rank takes part
  bool needs_grad = false;
  bool recomputed = false;      ///< backward reads y, which is computed once more instead of kept
  std::vector<int> recomputes;  ///< steps whose forward runs once more before this one's backward
  Memory memory;                ///< that it brings

  std::vector<View> x, dx;   ///< dx is absent where nobody needs it
  View y, dy;                ///< dy is absent for the last step
  std::vector<View> kept_x;  ///< x and y as backward sees them: elsewhere where they are recomputed
  View kept_y;
  std::vector<View> parts;  ///< gradients from several consumers, which `sum` adds into dy
  std::unique_ptr<NaryKernel> sum;
};

class Network {
 public:
  /// `sample` is the shape of one sample: {.c = 3, .h = 32, .w = 32}.
  explicit Network(Shape sample);
  Network(Network&&) noexcept;
  Network& operator=(Network&&) noexcept;
  ~Network();

  Node input() { return {this, 0}; }

  /// Appends a layer after the last one. Throws Error if its input does not fit or the name is
  /// taken.
  template <LayerType L>
  Node add(typename L::Options options = {}, std::string name = {}) {
    return insert<L>({int(graph_.size()) - 1}, std::move(options), std::move(name));
  }
  /// Adds a layer with several inputs.
  template <LayerType L>
  Node join(std::vector<Node> inputs, typename L::Options options = {}, std::string name = {}) {
    std::vector<int> indices;
    for (const Node& n : inputs) {
      check(n.network_ == this, "join: an input belongs to another network");
      indices.push_back(n.index_);
    }
    return insert<L>(std::move(indices), std::move(options), std::move(name));
  }
  template <detail::NoLayerType L>
  detail::NoNode<L> add(detail::AnyOptions = {}, std::string = {});
  template <detail::NoLayerType L>
  detail::NoNode<L> join(std::vector<Node>, detail::AnyOptions = {}, std::string = {});

  // The graph, before and after placing.

  struct Vertex {
    std::unique_ptr<Layer> layer;
    std::string name;
    std::vector<int> inputs;
    Shape shape;  ///< of y for one sample
  };
  const std::vector<Vertex>& graph() const { return graph_; }
  const Shape& sample() const { return graph_[0].shape; }
  /// Whole input shapes of a vertex for a batch of n samples.
  std::vector<Shape> input_shapes(const Vertex& v, std::int64_t n) const;

  /// Makes kernels and buffers. All shapes are checked before anything is allocated. Collective
  /// over the ranks: it is an Error, on all of them, if they have unlike networks or options (see
  /// comm/alike.hpp).
  void place(PlaceOptions options) { prepare(std::move(options)), allocate(); }
  /// The first half of it: makes the layers' kernels, with their workspace, and plans all other
  /// buffers. From here on steps() and memory() say exactly what allocate() will take.
  void prepare(PlaceOptions options);
  /// The second half: allocates parameters, gradients and activations.
  void allocate();
  bool placed() const { return placed_; }
  const PlaceOptions& placing() const { return options_; }

  // Only after place().

  const std::vector<Step>& steps() const { return steps_; }
  /// This rank's part of the batch, as it is given to x(): rows [begin, begin + size). Where there
  /// are fewer samples than ranks, the last ranks have none.
  const Part& rows() const { return rows_; }
  /// Where the caller puts the samples: plain {rows, c, h, w} in the network's dtype.
  /// Forward may use the memory for other things once the samples are read.
  const View& x() const { return steps_[0].y; }
  /// Output of the last layer.
  const View& y() const { return steps_.back().y; }
  /// Of this rank, the optimizer's states apart; Step::memory has that of each layer.
  const Memory& memory() const { return memory_; }

  /// A parameter under its full name ("conv1.weight") and the step it belongs to.
  struct Named {
    std::string name;
    Parameter* parameter;
    int step;
    int number = 0;      ///< in all_parameters()
    bool counts = true;  ///< no rank before this one holds the same block: a sum over all counts it
  };
  /// Those of which this rank holds a block.
  const std::vector<Named>& parameters() const { return parameters_; }

  /// A parameter across all ranks.
  struct Spread {
    std::string name;
    int vertex = 0;                       ///< of the graph, whose layer has it
    std::vector<std::int64_t> dims = {};  ///< as files hold it
    Shape whole = {};
    DType dtype = DType::f32;
    bool trained = true;
    std::vector<Box> blocks = {};   ///< by rank; {} where a rank holds nothing of it
    int variants = 1;               ///< how many ranks have values of their own of each element
    std::vector<int> variant = {};  ///< by rank: which of them it holds
    Parameter* mine = nullptr;      ///< null where this rank holds nothing of it

    bool held_whole(int rank) const { return blocks[std::size_t(rank)] == Box::of(whole); }
    /// Whether every rank has all of it.
    bool everywhere() const {
      return std::count(blocks.begin(), blocks.end(), Box::of(whole)) ==
             std::ptrdiff_t(blocks.size());
    }
  };
  /// All parameters, in the order of the graph: the same list on all ranks.
  const std::vector<Spread>& all_parameters() const { return all_parameters_; }
  /// f64, two values for each of them, for who needs sums over whole parameters; absent where every
  /// rank has all parameters.
  const View& sums() const { return sums_.view(); }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  std::vector<Bucket>& buckets() { return buckets_; }

  /// Draws all parameters from the seed and their names: the same on all ranks and back ends.
  void initialize(std::uint64_t seed);

  void forward(Context& context);
  /// Writes all gradients and starts their sums over the ranks; see Parameter::wait.
  void backward(Context& context);

 private:
  template <class L>
  Node insert(std::vector<int> inputs, typename L::Options options, std::string name);
  Node append(std::vector<int> inputs, std::unique_ptr<Layer> layer, std::string name);
  void check_ends() const;
  void compare_ranks(const PlaceOptions& options) const;
  void place_layers();
  const Site& site_of(const Split& split);
  Spec spec_of(const Form& form, const Blocks& blocks, const Split& split) const;
  int insert_reshard(const Step& step, std::size_t input, const Blocks& wanted);
  void insert_reorders(Step& step, const Site& site);
  int insert_step(const Step& step, std::size_t input, std::unique_ptr<Layer> layer,
                  std::string_view kind, Blocks blocks, Split split, const Site& site);
  struct Edge {
    int step, slot;
  };
  std::vector<std::vector<Edge>> consumers() const;
  void plan_recomputation(const std::vector<std::vector<Edge>>& consumers);
  void plan_activations();
  void allocate_activations();
  void plan_parameters();
  void spread_parameters();
  void plan_sums();
  void plan_bucket(Bucket& bucket);
  void allocate_parameters();
  Form sums_form() const;
  std::string unique_name(std::string_view type) const;
  void recompute(Context& context, const Step& step);
  void run_forward(Context& context, std::size_t i, std::span<const View> xs, const View& y,
                   LayerRun::Phase phase);

  std::vector<Vertex> graph_;
  PlaceOptions options_;
  Part rows_;
  std::vector<Step> steps_;
  std::vector<std::unique_ptr<Layer>> inserted_;
  std::vector<std::unique_ptr<Site>> sites_;
  /// Buffers of the arena, and which of them each step's y, kept_y, dy, dx and parts are; -1 =
  /// none.
  struct Arena {
    std::vector<Lifetime> storages;
    std::vector<int> y, kept, dy;
    std::vector<std::vector<int>> dx, parts;
  };
  Arena arena_;
  std::vector<Named> parameters_;
  std::vector<Spread> all_parameters_;
  std::vector<Bucket> buckets_;
  Tensor activations_, values_, gradients_, parts_, sums_;
  Memory memory_;
  bool placed_ = false;
};

/// How the input lies: split by samples over all ranks, or over as many as there are samples.
Split input_split(std::int64_t batch, int ranks);
/// Throws Error where there is not one sample for each rank.
void check_batch(std::int64_t batch, int ranks);

/// Why a layer with inputs of these whole shapes cannot be split so over `ranks` ranks, in one
/// line; empty where it can.
std::string why_illegal(const Layer& layer, std::span<const Shape> xs, const Split& split,
                        int ranks);

template <LayerType L>
Node Node::add(typename L::Options options, std::string name) const {
  return network_->join<L>({*this}, std::move(options), std::move(name));
}

template <class L>
Node Network::insert(std::vector<int> inputs, typename L::Options options, std::string name) {
  std::unique_ptr<Layer> layer;
  try {
    layer = std::make_unique<L>(std::move(options));
  } catch (const Error& e) {
    throw Error(text(name.empty() ? "new layer" : name, ": ", e.what()), e.where());
  }
  return append(std::move(inputs), std::move(layer), std::move(name));
}

}  // namespace lamina
