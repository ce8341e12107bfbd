// How the largest micro-batch that fits into memory is found.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/comm/memory_per_rank.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/network/agree.hpp>
#include <lamina/network/predict.hpp>
#include <lamina/train/micro_batch.hpp>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace lamina {

namespace detail::micro_batches {

/// What a training takes, rank by rank, of the network and the batches on their way to it.
class Training {
 public:
  Training(const Network& network, TrainerOptions options, const UpdateRule& rule, int ranks)
      : network_(network),
        options_(std::move(options)),
        rule_(rule),
        ranks_(ranks),
        backend_(make_backend(options_.backend, options_.dtype)) {
    detail::add_loss(network_, options_);  // as a Trainer does
  }

  /// Bytes of the fullest rank.
  double most(int loader_threads) const {
    const PlaceOptions placing = this->placing();
    std::vector<Memory> all = predict_memory(network_, placing, ranks_, rule_);
    const std::int64_t evaluated =
        options_.evaluation_batch > 0 ? options_.evaluation_batch : placing.batch;
    if (evaluated != placing.batch) add_evaluation(all);
    const double batches =
        backend_->memory().on_host() ? std::max(3, loader_threads + 1) * sample() : 0;
    double most = 0;
    for (int r = 0; r < ranks_; ++r) {
      const std::int64_t rows = placing.micro_batches * this->rows(placing.batch, r);
      most = std::max(most, double(all[std::size_t(r)].total()) +
                                batches * double(rows + this->rows(evaluated, r)));
    }
    return most;
  }

 private:
  PlaceOptions placing() const {
    PlaceOptions o = placing_of(options_);
    o.backend = backend_, o.splits = options_.splits, o.fuse = options_.fuse;
    return o;
  }

  /// Of the network that evaluates: it has the parameters of the other one.
  void add_evaluation(std::vector<Memory>& all) const {
    const PlaceOptions o = evaluating(placing(), options_.evaluation_batch, ranks_);
    const std::vector<Memory> more = predict_memory(network_, o, ranks_);
    for (std::size_t r = 0; r < all.size(); ++r) {
      all[r].activations += more[r].activations;
      all[r].workspace += more[r].workspace, all[r].messages += more[r].messages;
    }
  }

  /// Bytes of one in a loader: its image in f32 and its target.
  double sample() const {
    const Network::Vertex& loss = network_.graph().back();
    const Form target = loss.layer->targets(network_.input_shapes(loss, 1));
    return double(network_.sample().sample()) * sizeof(float) + double(target.bytes());
  }

  std::int64_t rows(std::int64_t batch, int rank) const {
    const Shares& shares = options_.splits.empty() ? Shares() : options_.splits[0].shares.batch;
    if (shares.empty()) return part(batch, ranks_, rank).size;
    return rank < int(shares.size()) ? part(batch, shares, rank).size : 0;
  }

  Network network_;
  TrainerOptions options_;
  const UpdateRule& rule_;
  int ranks_;
  std::shared_ptr<const Backend> backend_;
};

}  // namespace detail::micro_batches

LAMINA_INLINE double predict_training(const Network& network, const TrainerOptions& options,
                                      const UpdateRule& rule, int ranks, int loader_threads) {
  return detail::micro_batches::Training(network, options, rule, ranks).most(loader_threads);
}

LAMINA_INLINE MicroBatch
largest_micro_batch(const Network& network, std::int64_t batch,
                    const std::function<TrainerOptions(std::int64_t)>& with, const UpdateRule& rule,
                    int ranks, const MicroBatchOptions& within) {
  check(batch > 0, "the global batch must be positive, got ", batch);
  check(within.memory > 0, "there must be some memory, got ", within.memory, " bytes");
  check(within.reserve >= 0 && within.reserve < 1, "the reserve must be a part of the memory, got ",
        within.reserve);
  const double most = (1 - within.reserve) * within.memory;
  MicroBatch smallest{.memory = within.memory};
  // What a micro-batch takes need not grow with it: the whole batch has no gradients that add up.
  for (std::int64_t parts = 1; batch / parts >= std::min<std::int64_t>(batch, ranks); ++parts) {
    if (batch % parts != 0) continue;
    const std::int64_t samples = batch / parts;
    try {
      const double bytes =
          predict_training(network, with(samples), rule, ranks, within.loader_threads);
      smallest.samples = samples, smallest.bytes = bytes;
    } catch (const Error&) {
      if (parts == 1) throw;
      continue;  // cannot be cut so, or normalised: too few samples
    }
    if (smallest.bytes <= most) return smallest;
  }
  throw Error(text("no micro-batch fits into memory: the smallest, ", smallest.samples, " of ",
                   batch, " samples, takes ", in_bytes(smallest.bytes), " of a rank's ",
                   in_bytes(within.memory), ", of which ", 100 * within.reserve,
                   " % are kept in reserve; more ranks, a sharded optimizer or recomputation "
                   "would help"));
}

LAMINA_INLINE MicroBatch largest_micro_batch(const Network& network, const TrainerOptions& options,
                                             const UpdateRule& rule, int ranks,
                                             const MicroBatchOptions& within) {
  const auto with = [&](std::int64_t samples) {
    TrainerOptions o = options;
    o.micro_batch = samples;
    return o;
  };
  return largest_micro_batch(network, options.batch, with, rule, ranks, within);
}

LAMINA_INLINE MicroBatch largest_micro_batch(const Network& network, const World& world,
                                             const Optimizer& optimizer,
                                             const TrainerOptions& options,
                                             MicroBatchOptions within) {
  expect_one_backend("micro-batch", world.comm(), options.backend, options.dtype);
  if (within.memory == 0)
    within.memory = memory_per_rank(world, make_backend(options.backend, options.dtype)->memory());
  return largest_micro_batch(network, options, optimizer.rule(), world.size(), within);
}

}  // namespace lamina
