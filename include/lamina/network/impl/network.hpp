// A network as a description: what is added to it, and what it checks.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/base/naming.hpp>
#include <lamina/network/detail/title.hpp>
#include <lamina/network/placed.hpp>

#include <algorithm>

namespace lamina {

LAMINA_INLINE const Shape& Node::shape() const {
  return network_->graph()[std::size_t(index_)].shape;
}

LAMINA_INLINE std::string Network::unique_name(std::string_view type) const {
  std::string base;  // "BatchNorm" -> "batchnorm"
  for (const char c : type) base += char(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  for (int i = 1;; ++i) {
    const std::string name = text(base, i);
    if (std::none_of(graph_.begin(), graph_.end(), [&](auto& v) { return v.name == name; }))
      return name;
  }
}

LAMINA_INLINE Network::Network(Shape sample) {
  sample.n = 1;
  check(sample.c > 0 && sample.h > 0 && sample.w > 0, "input shape ", sample, " is empty");
  graph_.push_back({nullptr, "input", {}, sample});
}

// Here, so that not every program has to compile them.
LAMINA_INLINE Network::Network(const Network&) = default;
LAMINA_INLINE Network::Network(Network&&) noexcept = default;
LAMINA_INLINE Network& Network::operator=(const Network&) = default;
LAMINA_INLINE Network& Network::operator=(Network&&) noexcept = default;
LAMINA_INLINE Network::~Network() = default;

LAMINA_INLINE std::vector<Shape> Network::input_shapes(const Vertex& v, std::int64_t n) const {
  std::vector<Shape> xs;
  for (const int i : v.inputs) {
    xs.push_back(graph_[std::size_t(i)].shape);
    xs.back().n = n;
  }
  return xs;
}

LAMINA_INLINE Node Network::append(std::vector<int> inputs, std::unique_ptr<Layer> layer,
                                   std::string name) {
  if (name.empty()) name = unique_name(layer->type());
  for (const Vertex& v : graph_) check(v.name != name, "two layers are named '", name, "'");
  detail::check_one_line("layer", name);
  check(!inputs.empty(), "layer '", name, "': expected an input or more, got none");
  Vertex vertex{std::move(layer), std::move(name), std::move(inputs), {}};
  vertex.shape =
      naming(detail::title(vertex), [&] { return vertex.layer->output(input_shapes(vertex, 1)); });
  graph_.push_back(std::move(vertex));
  return {this, int(graph_.size()) - 1};
}

LAMINA_INLINE PlacedNetwork Network::place(PlaceOptions options) const {
  PlacedNetwork placed(*this, std::move(options));
  placed.allocate();
  return placed;
}

LAMINA_INLINE Split input_split(std::int64_t batch, int ranks) {
  check(batch > 0, "the global batch must be positive, got ", batch);
  return {.batch = int(std::min<std::int64_t>(batch, ranks))};
}

LAMINA_INLINE void check_batch(std::int64_t batch, int ranks) {
  check(batch >= ranks, "a global batch of ", batch, " is smaller than the ", ranks,
        " ranks: expected at least one sample per rank, or a plan that cuts something else");
}

}  // namespace lamina
