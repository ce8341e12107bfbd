// Board: what the ranks of a job and the launcher that watches over it tell each other.
#pragma once

#include "base/descriptor.hpp"

#include <lamina/base/error.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

namespace lamina::detail {

/// Lies in memory that the launcher and rank 0 have mapped, all zero at first. It outlives the
/// ranks, who may be killed between any two stores: `newest` is stored last.
struct Board {
  struct Snapshot {
    std::atomic<std::int64_t> training;  ///< number, within the program, of what it is of
    std::atomic<std::int64_t> step;
    std::atomic<std::int64_t> ranks;  ///< that trained
    std::atomic<std::int64_t> lost;   ///< before it was taken. The launcher clears it
  };
  std::array<Snapshot, 2> snapshots;
  std::atomic<std::int64_t> newest;  ///< of these, from 1; 0: there is none
  std::atomic<std::int64_t> taken;   ///< how many snapshots were
  /// Null where there is none.
  const Snapshot* newest_snapshot() const {
    const std::int64_t number = newest;
    return number > 0 ? &snapshots[std::size_t(number - 1)] : nullptr;
  }

  std::array<char, 256> why;         ///< there are other ranks, which the launcher started, ...
  std::atomic<std::int64_t> why_of;  ///< ... than before this snapshot: so many were taken then

  std::atomic<std::int64_t> saves;   ///< the training that writes checkpoints to files; 0: none
  std::atomic<std::int64_t> saved;   ///< the step of the last one; 0: there is none yet
  std::array<char, 4096> save_path;  ///< whole; "" where it is longer

  // Of the ranks that there are now. The launcher clears these before it starts others.
  std::atomic<double> begun;         ///< when rank 0 was about to start MPI: seconds of now()
  std::atomic<std::int64_t> met;     ///< whether MPI has come up on all of them
  std::atomic<std::int64_t> made;    ///< steps, also of evaluations, since they met or lost some
  std::atomic<std::int64_t> ended;   ///< whether all have ended with status 0
  std::atomic<std::int64_t> failed;  ///< whether any has ended with an error of its own

  std::atomic<std::int64_t> training;  ///< number, within the program, from 1
  std::atomic<std::int64_t> from;      ///< the step that they went on from
  std::atomic<std::int64_t> step;      ///< the last one done
  std::atomic<double> first, last;     ///< when the first and the last was done: seconds of now()

  /// Of a rank that others go on without, in place. They clear `made` then.
  struct Lost {
    std::atomic<std::int64_t> rank;  ///< its number among those that there were
    std::array<char, 256> host;
  };
  std::array<Lost, 256> losses;
  struct {
    std::atomic<std::int64_t> made, training, step;
    std::atomic<double> last;
  } before;                        ///< how far all had come when the last ones were lost
  std::atomic<std::int64_t> lost;  ///< how many; stored last. The launcher clears it, too.
};
static_assert(std::atomic<std::int64_t>::is_always_lock_free &&
              std::atomic<double>::is_always_lock_free);

/// A file of at least that size, mapped.
class BoardMap {
 public:
  BoardMap() = default;
  /// Throws Error, which names `path`.
  explicit BoardMap(const char* path) {
    const Descriptor file(open(path, O_RDWR | O_CLOEXEC));
    struct stat status = {};
    check(file && fstat(file.get(), &status) == 0, path, ": cannot open: ", std::strerror(errno));
    // On another host than the launcher's that path may be anybody's file.
    check(fcntl(file.get(), F_GET_SEALS) >= 0, path, ": is no file in memory");
    check(std::size_t(status.st_size) >= sizeof(Board), path, ": is too small");
    void* const at =
        mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    check(at != MAP_FAILED, path, ": cannot map: ", std::strerror(errno));
    board_ = static_cast<Board*>(at);
  }
  BoardMap(BoardMap&& other) noexcept : board_(std::exchange(other.board_, nullptr)) {}
  BoardMap& operator=(BoardMap&& other) noexcept {
    std::swap(board_, other.board_);
    return *this;
  }
  ~BoardMap() {
    if (board_) munmap(board_, sizeof(Board));
  }

  explicit operator bool() const { return board_ != nullptr; }
  Board* operator->() const { return board_; }
  Board& operator*() const { return *board_; }

 private:
  Board* board_ = nullptr;
};

// In the environment of ranks that a launcher watches over.
inline constexpr const char* snapshot_variable = "LAMINA_SNAPSHOT";     ///< board and two snapshots
inline constexpr const char* every_variable = "LAMINA_SNAPSHOT_EVERY";  ///< steps; or not given

/// Where the launcher keeps the board and the snapshots; null where none watches over the job.
inline const char* launcher_memory() {
  const char* const where = std::getenv(snapshot_variable);
  return where && *where ? where : nullptr;
}

/// The launcher's; none where no launcher watches over the job, or it cannot be reached: whoever
/// wants snapshots says so.
inline BoardMap reach_board() {
  const char* const where = launcher_memory();
  if (!where) return {};
  const std::string path(where, std::strcspn(where, ","));
  try {
    return BoardMap(path.c_str());
  } catch (const Error&) {
    return {};
  }
}

}  // namespace lamina::detail
