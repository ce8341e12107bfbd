// Board: what the ranks of a job and the launcher that watches over it tell each other.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <utility>

namespace lamina::detail {

/// Lies in memory that the launcher and rank 0 have mapped, all zero at first. It outlives the
/// ranks, who may be killed between any two stores: `newest` is stored last.
struct Board {
  struct Snapshot {
    std::atomic<std::int64_t> training;  ///< number, within the program, of what it is of
    std::atomic<std::int64_t> step;
  };
  std::array<Snapshot, 2> snapshots;
  std::atomic<std::int64_t> newest;  ///< of these, from 1; 0: there is none
  std::atomic<std::int64_t> taken;   ///< how many snapshots were

  // Of the ranks that there are now. The launcher clears `made` before it starts others.
  std::atomic<std::int64_t> training;  ///< number, within the program, from 1
  std::atomic<std::int64_t> from;      ///< the step that they went on from
  std::atomic<std::int64_t> step;      ///< the last one done
  std::atomic<std::int64_t> made;      ///< how many
  std::atomic<double> first, last;     ///< when the first and the last was done: seconds of now()
};
static_assert(std::atomic<std::int64_t>::is_always_lock_free &&
              std::atomic<double>::is_always_lock_free);

/// A file of at least that size, mapped.
class BoardMap {
 public:
  BoardMap() = default;
  /// Throws Error, which names `path`.
  explicit BoardMap(const char* path);
  BoardMap(BoardMap&& other) noexcept : board_(std::exchange(other.board_, nullptr)) {}
  BoardMap& operator=(BoardMap&& other) noexcept {
    std::swap(board_, other.board_);
    return *this;
  }
  ~BoardMap();

  Board* operator->() const { return board_; }
  Board& operator*() const { return *board_; }

 private:
  Board* board_ = nullptr;
};

// In the environment of ranks that a launcher watches over.
inline constexpr const char* snapshot_variable = "LAMINA_SNAPSHOT";     ///< board and two snapshots
inline constexpr const char* every_variable = "LAMINA_SNAPSHOT_EVERY";  ///< steps; or not given

}  // namespace lamina::detail
