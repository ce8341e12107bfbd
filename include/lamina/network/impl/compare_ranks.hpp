// What ranks must agree on before a network is placed on them: its graph, and how it is placed.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/base/pattern.hpp>
#include <lamina/base/version.hpp>
#include <lamina/comm/alike.hpp>
#include <lamina/network/detail/compare_ranks.hpp>

namespace lamina::detail {

inline std::string in_words(const Network& network, const Network::Vertex& v) {
  if (!v.layer) return text("samples of ", v.shape);
  std::string s(v.layer->type());
  if (const std::string options = v.layer->options(); !options.empty())
    append(s, text(" (", options, ')'));
  for (const int input : v.inputs)
    append(s, text(input == v.inputs[0] ? " of " : ", ", network.graph()[std::size_t(input)].name));
  return s;
}

/// Threads and instruction sets may differ: layouts that do not fit each other are found later.
LAMINA_INLINE void compare_ranks(const Network& network, const PlaceOptions& o) {
  if (o.ranks.size() == 1) return;
  const auto& graph = network.graph();
  std::vector<Fact> facts = {{"the version of Lamina", std::string(version)},
                             {"the back end", o.backend->name()},
                             {"the type of numbers", o.dtype.text()},
                             {"the global batch", text(o.batch)},
                             {"bucket_mb", exact(o.bucket_mb)},
                             {"first_bucket_mb", exact(o.first_bucket_mb)},
                             {"sent_gradients", o.narrow() ? "bf16" : ""},
                             {"loss_scaling", o.loss_scaling.text()},
                             {"shard_optimizer", text(o.shard_optimizer)},
                             {"training", text(o.training)},
                             {"frozen", lamina::in_words(o.frozen)},
                             {"fuse", text(o.fuse)},
                             {"micro_batches", text(o.micro_batches)},
                             {"parameters_of", o.parameters_of ? "given" : ""}};
  for (const Network::Vertex& v : graph) facts.push_back({v.name, in_words(network, v)});
  for (std::size_t i = 0; i < o.splits.size(); ++i)
    facts.push_back(
        {text("the split of ", i < graph.size() ? graph[i].name : "no layer"), o.splits[i].text()});
  for (std::size_t i = 0; i < o.recompute.size(); ++i)
    facts.push_back({text("recompute of ", i < graph.size() ? graph[i].name : "no layer"),
                     text(bool(o.recompute[i]))});
  check_alike(o.ranks, facts);
}

}  // namespace lamina::detail
