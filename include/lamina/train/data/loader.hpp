// Loader: shuffled, augmented, prefetched batches of a Dataset, for one of several ranks.
#pragma once

#include <lamina/cost/split.hpp>
#include <lamina/train/data/dataset.hpp>

#include <cstdint>
#include <memory>
#include <utility>

namespace lamina {

struct LoaderOptions {
  std::int64_t global_batch = 32;  ///< images per step, over all ranks
  int rank = 0, ranks = 1;         ///< this loader serves part `rank` of `ranks` of every batch
  Shares shares = {};              ///< of the first ranks in it, all others get none; empty: alike
  int micro_batches = 1;           ///< or of each of so many equal parts of it, one after the other
  std::uint64_t seed = 0;          ///< of the order and of the augmentation
  bool shuffle = true;             ///< a new order every epoch
  bool augment = true;             ///< false: not even where the data set's transform asks for it
  /// Images as bytes, in batches whose samples have pixels and not planes: a quarter of the memory,
  /// and of what goes to a device. Pixels that are resampled are rounded then.
  bool bytes = false;

  /// The last, incomplete batch of an epoch is dropped, or (true) filled up with black images
  /// whose targets do not count (-1, or not a number), so that every image is served exactly once.
  bool pad_last = false;

  int depth = 3;    ///< batches in memory; two at least
  int threads = 1;  ///< that decode, each a batch of its own; at most depth - 1 are of use
};

/// This rank's part of a global batch. Valid until the next call of the loader.
struct Batch {
  const float* images = nullptr;      ///< size x c x h x w, normalised; null: see LoaderOptions
  Pixels pixels = {};                 ///< in their place
  const void* targets = nullptr;      ///< size x Dataset::target(), one after the other
  std::int64_t size = 0;              ///< rows, padded ones included; the same in every batch
  std::int64_t valid = 0;             ///< rows that hold an image; they come first
  std::int64_t first = 0;             ///< place of row 0 in the order of the epoch
  std::int64_t global_valid = 0;      ///< images in the batch of all ranks
  std::int64_t epoch = 0, index = 0;  ///< index: of the batch in its epoch
  int rank = 0, ranks = 0;            ///< whose part it is; of 0 ranks: nobody says

  /// Where the targets are classes: below zero, a row does not count.
  const std::int32_t* labels() const { return static_cast<const std::int32_t*>(targets); }
};

/// Serves the batches of epoch after epoch without end. Batch b of an epoch is images b*B to
/// (b+1)*B-1 of the epoch's order, and rank r of R serves part(B, R, r) of it (cost/split.hpp), or
/// by shares: the order is the same for any number of ranks, and no image is served twice. What is
/// served depends on (data set, seed, global batch) alone, not on threads or ranks.
///
/// Memory is constant: `depth` batches and one decoded image per thread. Once the loader has seen
/// its largest image it allocates nothing (JPEG and PNG decoders do, inside).
class Loader {
 public:
  /// `data` must outlive the loader. Throws Error: a global batch smaller than the ranks, or larger
  /// than the data set and not padded; a rank out of range; more shares than ranks; an empty data
  /// set.
  Loader(const Dataset& data, const LoaderOptions& options);
  ~Loader();
  Loader(Loader&&) noexcept;
  Loader& operator=(Loader&&) noexcept;

  /// Batches in an epoch; the same on all ranks.
  std::int64_t batches() const;
  /// Images of the data set.
  std::int64_t images() const;

  /// The next batch; waits for it. Throws Error, naming the file, if an image of it cannot be read;
  /// every later call throws the same until seek().
  const Batch& next();

  /// Epoch and index of the batch that next() serves.
  std::pair<std::int64_t, std::int64_t> position() const;

  /// Continues at batch `index` of `epoch`, as if all before had been served; index may be
  /// batches(), which is the start of the next epoch.
  void seek(std::int64_t epoch, std::int64_t index = 0);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lamina
