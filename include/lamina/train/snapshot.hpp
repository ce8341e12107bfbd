// Snapshots: checkpoints in the memory of `lamina launch`, which outlives the ranks, so that a
// training goes on when some of them are lost (docs/elastic.md).
#pragma once

#include <lamina/train/checkpoint.hpp>

#include <cstdint>
#include <memory>
#include <string>

namespace lamina {

/// Of one training. All ranks have one, rank 0 alone reads and writes. Trainer::fit() does what is
/// to be done; see Trainer::recover() for loops of one's own.
class Snapshots {
 public:
  /// Null where no launcher asks for any. Collective where one does; throws Error, on all ranks,
  /// where rank 0 cannot reach the launcher's memory.
  static std::shared_ptr<Snapshots> find(const Communicator& ranks);

  virtual ~Snapshots() = default;

  /// The newest whole one of this training as a file for load_checkpoint(); "" where there is none.
  /// Collective.
  virtual std::string newest() const = 0;
  /// What is known of those whose snapshot newest() is.
  struct Before {
    int ranks = 0;         ///< that trained when it was taken
    double seconds = 0;    ///< since the last step of whoever came last
    double bytes = 0;      ///< of the snapshot
    std::string why = {};  ///< others go on from it: all that has happened since
  };
  /// Where newest() is a file. Collective.
  virtual Before before() const = 0;
  /// Goes on with other ranks, of which rank 0 is the same as before. Collective over them.
  virtual void go_on(const Communicator& ranks) = 0;
  /// That the training goes on from this step.
  virtual void begin(std::int64_t step) = 0;
  /// That a step is done, or after it one of an evaluation. Takes some stores.
  virtual void done(std::int64_t step) = 0;
  /// Whether one is to be taken after this step: the same on all ranks.
  virtual bool due(std::int64_t step) const = 0;
  /// Takes one. The one before it stays whole. Throws Error as save_checkpoint() does. Collective.
  virtual void take(const PlacedNetwork&, const Progress&) = 0;
};

}  // namespace lamina
