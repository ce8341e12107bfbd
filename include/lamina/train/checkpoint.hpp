// Checkpoints: a network's parameters, running statistics and optimizer state, and how far the
// training had come, as one safetensors file that PyTorch can read (docs/checkpoints.md).
#pragma once

#include <lamina/comm/communicator.hpp>
#include <lamina/kernels/step_values.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lamina {

class PlacedNetwork;

/// What a network had reached when it was saved.
struct Score {
  bool validated = false;  ///< on data that it had not seen; otherwise on those of the epoch
  double loss = 0, top1 = 0;

  /// More hits, or as many with less loss; by what was seen in training, less loss.
  bool better_than(const Score& other) const {
    return validated && top1 != other.top1 ? top1 > other.top1 : loss < other.loss;
  }
  bool operator==(const Score&) const = default;
};

/// Where a training stands, beside its tensors.
struct Progress {
  std::int64_t step = 0;    ///< updates done
  std::int64_t epoch = 0;   ///< the data's and the schedule's position: the current epoch,
  std::int64_t batch = 0;   ///< and how many of its batches are done
  std::int64_t images = 0;  ///< of the data of that epoch; 0 = not known
  double loss = 0,
         top1 = 0;  ///< sums over these batches, or over the epoch before if there is none
  bool evaluation_due = false;  ///< training has come to where an evaluation follows, which has not
  std::uint64_t seed = 0;
  double rate = 0;                           ///< learning rate, without its schedule
  std::optional<LossScale> loss_scale = {};  ///< where there is one
  /// Whatever must be the same when the run is resumed: "model", "optimizer", "global_batch", ...
  std::map<std::string, std::string> settings = {};
  /// What may be otherwise then: "optimizer", "schedule", with all that they were told, and what
  /// a program adds.
  std::map<std::string, std::string> options = {};
  std::optional<Score> score = {};  ///< of what is kept as the best

  bool operator==(const Progress&) const = default;
};

/// A training that goes on from a checkpoint.
struct Resumed : Progress {
  /// Running statistics that go on from their mean, since the checkpoint does not have those of
  /// each rank (or worker), or of another number of them. All else is as it was saved.
  std::vector<std::string> averaged = {};
};

/// Writes everything a resumed run needs, each tensor whole, however the ranks share it. Rank 0
/// writes what the others send it, one tensor at a time; if it fails, the previous file is intact
/// and all ranks throw the same Error. The same state gives the same bytes under every plan.
/// `ranks` are those of the network. Of running statistics that each rank has of its own (local
/// batch norm) it writes their mean, which inference takes, and beside it each rank's; nothing of
/// the network changes. Of those of workers it writes what PlacedNetwork::average_kept() found.
void save_checkpoint(const std::string& path, const PlacedNetwork&, const Progress&,
                     const Communicator& ranks = {});

/// Whether a checkpoint could be saved here: makes the file that would be renamed, with all the
/// room that it takes, and removes it. Throws Error, on all ranks, where not. Collective.
void try_checkpoint(const std::string& path, const PlacedNetwork&, const Communicator& ranks = {});

/// Restores what save_checkpoint wrote, bit by bit where the dtype is the same, and returns how far
/// it had come. Every tensor of the network, its optimizer states included, must be in the file and
/// vice versa; under which plan it was saved does not matter. Rank 0 reads and sends to the others;
/// all ranks throw the same Error if the file does not fit, before anything of the network has
/// changed. The network must be placed, the states made.
Resumed load_checkpoint(const std::string& path, PlacedNetwork&, const Communicator& ranks = {});

/// The Progress alone, for what must be known before a network is made.
Progress read_progress(const std::string& path, const Communicator& ranks = {});

/// What load_parameters could not use.
struct Unmatched {
  std::vector<std::string> missing;     ///< in the network only
  std::vector<std::string> unexpected;  ///< in the file only
  std::vector<std::string> reshaped;    ///< in both, with different shapes; as "name file/network"

  bool empty() const { return missing.empty() && unexpected.empty() && reshaped.empty(); }
  /// "2 missing (fc.weight, fc.bias), 1 unexpected (...)"; of many names the first three.
  std::string text() const;
};

/// Loads parameters and running statistics from any safetensors file with torchvision's names.
/// Optimizer states and `num_batches_tracked` in it are ignored. With `strict`, anything unmatched
/// is an Error; without, it is left as it was and returned (it is an Error if nothing fits).
Unmatched load_parameters(const std::string& path, PlacedNetwork&, bool strict = true,
                          const Communicator& ranks = {});

}  // namespace lamina
