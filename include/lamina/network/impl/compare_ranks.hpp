// What ranks must agree on before a network is placed on them: its graph, and how it is placed.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/base/pattern.hpp>
#include <lamina/base/random.hpp>
#include <lamina/base/version.hpp>
#include <lamina/comm/alike.hpp>
#include <lamina/network/detail/compare_ranks.hpp>

#include <algorithm>

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
                             {"unlike_backends", text(o.unlike_backends)},
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

LAMINA_INLINE bool unlike_backends(const Communicator& ranks, const std::string& name) {
  if (ranks.imagined()) return false;
  const std::uint64_t mine = key_of(name);
  const auto all = ranks.all_gather_value(mine);
  return std::ranges::count(all, mine) != std::ssize(all);
}

LAMINA_INLINE void check_said(const Communicator& ranks, const std::string& name, bool said) {
  const bool unlike = unlike_backends(ranks, name);
  const auto all = ranks.all_gather_value(int(said));
  const auto say = std::ranges::count(all, 1);
  check(say == std::ssize(all) || (say == 0 && !unlike), "workers run on ",
        unlike ? "unlike" : "like", " back ends, but of ", all.size(), " ranks ", say,
        " were placed with unlike_backends: expected all", unlike ? "" : " or none");
}

LAMINA_INLINE void check_carrier(const Communicator& ranks, const MemorySpace& memory) {
  const auto all = ranks.all_gather_value(int(ranks.reach(memory)));
  check(std::ranges::count(all, all[0]) == std::ssize(all),
        "ranks compute in unlike memories, which ", ranks.carrier(),
        " does not reach on all of them: expected MPI");
}

}  // namespace lamina::detail
