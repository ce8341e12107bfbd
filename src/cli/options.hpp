// The command line flags that the tool and the benchmarks share.
#pragma once

#include <lamina/base/error.hpp>
#include <lamina/comm/world.hpp>
#include <lamina/kernels/step_values.hpp>

#include <CLI/CLI.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace lamina::cli {

/// What is trained, on what. Defaults are those of bench_network.
struct RunOptions {
  std::string model = "resnet50";
  bool list_models = false;
  std::int64_t image_size = 0, classes = 0;  // 0 = the model's, or the data's
  bool global_norm = false;
  double label_smoothing = 0;

  std::int64_t batch_size = 0, global_batch = 0, micro_batch = 0;
  int workers = 0;
  std::string balance = "even";
  bool fits_memory = false;  // --micro-batch auto
  double memory = 0;         // bytes of a host or GPU; 0 = what is free
  std::string scaling = "weak";
  std::string data = "synthetic";

  std::string dtype = "f32", device = "auto", backend = "auto", comm = "auto";
  std::string grad_dtype = "auto", loss_scale = "auto";
  std::optional<int> loss_scale_steps;  // by default LossScaling's
  std::string agreed;  // no flag: what prepare() has to say about the ranks' instruction sets
  double bucket_mb = 25, first_bucket_mb = 1;
  std::vector<std::string> recompute;  // layers or patterns
  std::vector<std::string> frozen;     // parameters or patterns
  std::vector<std::string> param_groups;
  bool shard_optimizer = false;
  bool fuse = false;
  bool deterministic = false;
  double workspace = 0;  // bytes; 0 = no limit
  std::string graph = "on";
  bool nvtx = false;
  std::string plan = "data", plan_out;
  std::vector<std::string> split;
  bool allow_fallback = false;
  int threads = 0;
  std::uint64_t seed = 1;

  std::string optimizer = "sgd", schedule = "constant", decay = "all";
  std::optional<double> lr;        // by default the optimizer's
  std::optional<double> momentum;  // by default 0.9
  double weight_decay = 0;
  bool nesterov = false;
  double warmup_epochs = 0, clip_norm = 0;

  std::int64_t evaluation_batch = 0;
  int loader_threads = 1;

  std::string json, csv, trace, report;
  bool wide = false;
  int top = 0;
  std::string sort = "order", group = "layer";
  std::string ceilings = "auto";  // or "cached", which no flag says: measure nothing

  /// Of --grad-dtype; none for auto.
  std::optional<DType> sent_gradients() const;
  /// Of --loss-scale and --dtype. Throws Error for what is no number, and for --loss-scale-steps
  /// where nothing is doubled.
  LossScaling loss_scaling() const;
  /// Samples of the global batch; `fallback` per rank where no flag says.
  std::int64_t batch(int ranks, std::int64_t fallback) const;
  /// Those of it that run at once, all where --micro-batch is no number. Throws Error where it does
  /// not divide them.
  std::int64_t at_once(std::int64_t batch) const;
};

void add_model_flags(CLI::App& app, RunOptions& o);
void add_run_flags(CLI::App& app, RunOptions& o);
/// Part of these: where and with what types kernels run.
void add_kernel_flags(CLI::App& app, RunOptions& o);
/// Parts of these, and of the optimizer's, that also say what is planned.
void add_batch_flags(CLI::App& app, RunOptions& o);
void add_balance_flag(CLI::App& app, RunOptions& o);
void add_bucket_flags(CLI::App& app, RunOptions& o);
void add_memory_flags(CLI::App& app, RunOptions& o);
void add_rule_flags(CLI::App& app, RunOptions& o);
void add_optimizer_flags(CLI::App& app, RunOptions& o);
void add_output_flags(CLI::App& app, RunOptions& o);

/// Parses and runs a command on all ranks: --help and --version print on rank 0; a wrong flag is
/// one line that suggests the nearest one, and exit status 2. `body` runs when parsing succeeded
/// and no subcommand's callback ended the program; its result is the exit status.
int run(CLI::App& app, int argc, char** argv, const std::function<int(World&)>& body);

}  // namespace lamina::cli
