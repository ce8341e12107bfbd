// Plan: how each layer of a network is split and what is kept of it, as data: built in, made by
// hand, or read from a file.
#pragma once

#include <lamina/network/network.hpp>
#include <lamina/plan/layer_times.hpp>
#include <lamina/profile/planned_step.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lamina {

/// "height:2,batch:3:1", as Split::text() writes it: a number of parts, or their shares; "none" is
/// one part, so rank 0 alone. Throws Error for an unknown axis, with the nearest one, and for parts
/// or shares that are no whole numbers.
Split parse_split(std::string_view s);

/// What was predicted of a step under a plan, when that was found.
struct PlanPrediction {
  struct Layer {
    std::string name = {};
    Split split = {};
    Shape output = {};          ///< of one sample
    LayerSeconds passes = {};   ///< kernels, and waiting for all but redistribution
    double redistribution = 0;  ///< waiting for inputs, and for the way back of their gradients

    double seconds() const { return passes.total() + redistribution; }
  };

  std::string cluster = {};        ///< by name
  std::string dtype = {};          ///< as placed_dtype() has it
  std::int64_t batch = 1;          ///< samples of a step
  double seconds = 0;              ///< of a step: all layers together
  std::vector<Layer> layers = {};  ///< of each vertex, the input first
};

/// "bf16"; where gradients go from node to node in less, "f32, gradients sent in bf16".
std::string placed_dtype(const PlaceOptions& placing);

/// Rules, of which the later ones win; a layer that none of them matches is split as the input is,
/// by samples (input_split), which is the plan `data`. A rule for "input", by that very name, gives
/// the samples other shares.
struct Plan {
  struct Rule {
    std::string layers;  ///< a name, or a pattern
    Split split;
    std::vector<Split> otherwise = {};  ///< the first that is legal, where `split` is not
    std::string origin = {};            ///< who says so, for messages: a file or a flag
  };

  /// Layers whose y is not kept for backward but computed once more: PlaceOptions::recompute.
  struct Recompute {
    std::string layers;       ///< a name, or a pattern
    std::string origin = {};  ///< see Rule
  };

  std::string model = {};  ///< it is for this one only; empty = for any
  int ranks = 1;
  std::vector<Rule> rules = {};
  std::vector<Recompute> recomputed = {};
  bool shard_optimizer = false;  ///< see PlaceOptions
  int micro_batches = 1;         ///< likewise

  // Why it was chosen. It says nothing about what runs.
  std::vector<PlanTime> timed = {};  ///< this one first, if any was timed
  std::optional<PlanPrediction> prediction = {};

  /// Adds a rule: `plan.split("conv*", {.batch = 2, .height = 2})`.
  Plan& split(std::string layers, const Split& split, std::string origin = {}) {
    rules.push_back({std::move(layers), split, {}, std::move(origin)});
    return *this;
  }
  /// `plan.recompute("*.relu*")`.
  Plan& recompute(std::string layers, std::string origin = {}) {
    recomputed.push_back({std::move(layers), std::move(origin)});
    return *this;
  }
};

/// `data`, `owt`, `spatial` and `filter`; docs/plans.md says what they are.
std::vector<std::string_view> plan_names();
/// One of them. Where its wish for a layer is impossible it has others, at last that of `data`.
/// Throws Error for an unknown name, with the nearest one.
Plan built_in_plan(std::string_view name, const Network& net, std::int64_t batch, int ranks);

/// A plan as JSON, a line per rule. Throws Error, naming the layer, for what is damaged or no plan.
Plan parse_plan(const std::string& json);
std::string plan_json(const Plan& plan);
/// The same from and to a file, which is named in messages.
Plan read_plan(const std::string& path);
void write_plan(const std::string& path, const Plan& plan);

/// What a plan made of a layer.
struct Decision {
  std::string layer;
  Split requested, used;
  std::string reason = {};  ///< why the two differ; empty where they do not
  bool recompute = false;
};

/// Of each vertex of the graph, the input first, for a global batch of that many samples. Throws
/// Error where a rule matches no layer, with the nearest name, and where a rule that has nothing
/// else to offer is impossible; with `allow_fallback` such a layer is split by samples instead.
std::vector<Decision> decide(const Plan& plan, const Network& net, std::int64_t batch,
                             bool allow_fallback = false);

/// Of each vertex, as if `splits` had been asked for, and what `recompute` marks, which may be
/// empty.
std::vector<Decision> decisions_of(const Network& net, const std::vector<Split>& splits,
                                   const std::vector<bool>& recompute = {});

/// What is used: `splits` and `recompute` of PlaceOptions and TrainerOptions.
std::vector<Split> splits_of(const std::vector<Decision>& decisions);
std::vector<bool> recompute_of(const std::vector<Decision>& decisions);
/// The same as a plan, with a rule for each layer.
Plan plan_of(const std::vector<Decision>& decisions, std::string model, int ranks);

struct PlanTableOptions {
  int width = 120;    ///< columns of the terminal; what does not fit goes on in the next line
  bool wide = false;  ///< a line per layer, as wide as it gets
};

/// Layer, requested, used, reason, and what is sent in a step: all messages of the layer, with
/// those that bring its inputs ("reshard"). Bytes of a halo or a reshard are what the rank that
/// sends the most sends, those of a collective its larger buffer; all of plain layouts. Where
/// layers are to be recomputed, also which are, and which need not be since backward does not read
/// what they make. `net` must be prepared or placed by these decisions. Neighbours that agree in
/// all but bytes share a row.
std::string plan_table(const std::vector<Decision>& decisions, const PlacedNetwork& net,
                       const PlanTableOptions& options = {});

}  // namespace lamina
