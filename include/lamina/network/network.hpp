// Network: a directed acyclic graph of layers. Placing it makes what runs: placed.hpp.
#pragma once

#include <lamina/layers/layer.hpp>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace lamina {

class Network;
class PlacedNetwork;
struct PlaceOptions;

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

/// A graph of layers, as a description: names, options, shapes. A value: a copy shares the layers,
/// of which nothing ever changes, and can be added to by itself.
class Network {
 public:
  /// `sample` is the shape of one sample: {.c = 3, .h = 32, .w = 32}.
  explicit Network(Shape sample);
  Network(const Network&);
  Network(Network&&) noexcept;
  Network& operator=(const Network&);
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

  struct Vertex {
    std::shared_ptr<const Layer> layer;  ///< null for the input
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
  /// comm/alike.hpp). The description stays as it is, and may go.
  PlacedNetwork place(PlaceOptions options) const;

 private:
  template <class L>
  Node insert(std::vector<int> inputs, typename L::Options options, std::string name);
  Node append(std::vector<int> inputs, std::unique_ptr<Layer> layer, std::string name);
  std::string unique_name(std::string_view type) const;

  std::vector<Vertex> graph_;
};

/// How the input lies: split by samples over all ranks, or over as many as there are samples. It
/// may have shares, too.
Split input_split(std::int64_t batch, int ranks);
/// Throws Error unless there are as many shares as parts, all positive, along each axis that has
/// any.
void check_shares(const Split& split);
/// Throws Error where there is not one sample for each rank.
void check_batch(std::int64_t batch, int ranks);

/// Why a layer with inputs of these whole shapes cannot be split so over `ranks` ranks, in one
/// line; empty where it can.
std::string why_illegal(const Layer& layer, std::span<const Shape> xs, const Split& split,
                        int ranks, bool training = true);

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
