// largest_micro_batch: how many samples of a batch run at once where memory does not hold them all.
#pragma once

#include <lamina/comm/world.hpp>
#include <lamina/cost/update_rule.hpp>
#include <lamina/train/trainer.hpp>

#include <cstdint>
#include <functional>

namespace lamina {

struct MicroBatchOptions {
  double memory = 0;  ///< bytes that there are for a rank
  /// The part of them that is left for what is not predicted: what the kernels of a back end need
  /// for themselves, the program, images that are being decoded.
  double reserve = 0.2;
  int loader_threads = 1;  ///< see FitOptions
};

struct MicroBatch {
  std::int64_t samples = 0;  ///< over all ranks, that run at once: see TrainerOptions::micro_batch
  double bytes = 0;          ///< that this takes, on the rank that it takes the most of
  double memory = 0;         ///< bytes that there are for a rank, with the reserve
};

/// Bytes that a training is predicted to take on the rank that it takes the most of, with the
/// states of an optimizer of that rule: as predict_memory() says, with the network once more where
/// an evaluation has a batch of its own, and with the batches that loaders hold where the back end
/// has the host's memory. Allocates none of it. Throws Error where the network cannot be placed so.
double predict_training(const Network& network, const TrainerOptions& options,
                        const UpdateRule& rule, int ranks, int loader_threads = 1);

/// The largest micro-batch that fits into memory: it divides the batch, and each rank has a sample
/// of it. Found from predict_training() alone, from the whole batch on downwards: nothing is
/// allocated or timed. The same on every rank that asks. Throws Error where nothing fits, which
/// says what the smallest takes and what there is; and where the whole batch cannot be placed.
MicroBatch largest_micro_batch(const Network& network, const TrainerOptions& options,
                               const UpdateRule& rule, int ranks, const MicroBatchOptions& within);
/// The same where the splits depend on it: `with` says how it is trained with so many samples at
/// once. Where it throws Error, these are not taken.
MicroBatch largest_micro_batch(const Network& network, std::int64_t batch,
                               const std::function<TrainerOptions(std::int64_t)>& with,
                               const UpdateRule& rule, int ranks, const MicroBatchOptions& within);
/// On the ranks of this job, within what is free (memory_per_rank) unless `within` says how much:
///
///   options.micro_batch = largest_micro_batch(net, world, optimizer, options).samples;
///   lamina::Trainer trainer(net, world, optimizer, options);
///
/// Collective, the same on all ranks.
MicroBatch largest_micro_batch(const Network& network, const World& world,
                               const Optimizer& optimizer, const TrainerOptions& options,
                               MicroBatchOptions within = {});

}  // namespace lamina
