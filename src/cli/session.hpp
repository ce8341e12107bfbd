// Session: a run as the flags describe it: back end, data, model, optimizer, trainer; and the lines
// that say so before it starts.
#pragma once

#include "options.hpp"
#include "plan.hpp"

#include <lamina/profile/profile.hpp>
#include <lamina/profile/trace.hpp>
#include <lamina/train/trainer.hpp>

#include <memory>
#include <string>
#include <vector>

namespace lamina::cli {

/// A file that is to be written at the end, or during training.
struct OutputFile {
  const char* flag;
  std::string path;      // empty: none
  bool replaced = true;  // by a new file in the same folder; otherwise appended to
};

/// Refuses what is not built in or does not fit together, and files that could not be written: the
/// profile's and `outputs`. Sets the threads of this rank, and its GPU. Collective, but on a rank
/// that came late.
void prepare(RunOptions& o, World& world, std::vector<OutputFile> outputs = {});

/// Of a run that is to record so many steps. Throws Error where flags want what is then not known.
void check_recorded(const RunOptions& o, int steps);

/// A data set in the shape that the model takes. Synthetic data have as many classes as the model.
std::unique_ptr<Dataset> open(const RunOptions& o, DataOptions data);

/// The model with as many outputs as the data set has classes, unless a flag says otherwise.
Network make_network(const RunOptions& o, const Dataset& data);

/// The model with as many outputs and of such an input as flags say, without data.
Network model_of(const RunOptions& o);

Optimizer make_optimizer(const RunOptions& o);
TrainerOptions trainer_options(const RunOptions& o, std::int64_t batch, const RunPlan& plan);
/// What --nvtx has listen to the trainer's stream, which it must outlive; null without.
std::unique_ptr<Listener> ranges(const RunOptions& o);

/// The `#` line that names a back end and its library; benchmarks/compare_pytorch reads it.
std::string back_end_line(const Backend&);

/// The `#` lines: version, model, back end, a line per rank, batch, buckets, plan, environment. As
/// wide as this rank's terminal; collective.
std::string preamble(const std::string& program, const RunOptions& o, const Trainer& trainer,
                     const RunPlan& plan, const World& world);

/// The file of --trace, of this rank.
class RunTrace {
 public:
  RunTrace(const RunOptions& o, const World& world, const PlacedNetwork& network);
  /// Adds the step that the profiler has just ended.
  void step(const Profiler& profiler);

 private:
  TraceWriter writer_;
  std::vector<std::string> layers_;
};

/// Null without --trace. The network must be placed.
std::unique_ptr<RunTrace> open_trace(const RunOptions& o, const World& world,
                                     const PlacedNetwork& network);

/// Looks the ceilings up, or measures them, as the flags say; fills in what the profile cannot
/// know; rank 0 prints the table and writes the files that the flags name. Collective.
void show_profile(Profile profile, const RunOptions& o, const RunPlan& plan,
                  const PlacedNetwork& network, const World& world);

/// Where --list-models asks for it, rank 0 prints the models, one a line; whether it was asked.
bool lists_models(const RunOptions& o, const World& world);

}  // namespace lamina::cli
