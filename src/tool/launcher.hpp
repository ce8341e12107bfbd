// Launcher: watches over a job under mpirun, and goes on without the ranks that are lost.
#pragma once

#include "comm/board.hpp"
#include "hosts.hpp"
#include "mpi_job.hpp"
#include "signals.hpp"

#include <lamina/base/file.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lamina::cli {

struct LaunchOptions {
  int min = 1, max = 0;    ///< ranks; max 0: as many as there are processors, or slots of the hosts
  std::int64_t every = 0;  ///< steps between snapshots; 0: so that they take 1 % of the time
  double regrow = 60;      ///< seconds after which a lost slot is used again
  std::string hosts, mpirun = "mpirun";
  std::vector<std::string> program;
};

/// Memory that outlives the ranks, as files that they open by way of this process.
class LaunchMemory {
 public:
  /// Throws Error.
  LaunchMemory();

  const lamina::detail::Board& board() const { return *board_; }
  /// As it is when ranks are started.
  void begin();
  /// Whether a training that writes checkpoints has a snapshot that is newer than the last one.
  bool unsaved() const;
  /// Where unsaved(), writes it to a file beside the checkpoint, and says so.
  void keep_unsaved() const;
  /// Why others are to be started than those before.
  void note(const std::string& why);
  /// "/proc/PID/fd/N,...": the board, two snapshots.
  std::string where() const;

 private:
  MemoryFile files_[3];
  lamina::detail::BoardMap board_;
  std::string why_;          ///< all that was noted since the newest snapshot, ...
  std::int64_t why_of_ = 0;  ///< ... the last one of so many
};

class Launcher {
 public:
  /// Throws Error where mpirun or the program is not found, or the hosts are not understood.
  explicit Launcher(LaunchOptions options);
  /// The exit status of the job.
  int run();

 private:
  /// How far training has come: number of the training within the program, step.
  using Reached = std::pair<std::int64_t, std::int64_t>;

  /// How a job ended.
  struct Ended {
    int status = 0;
    bool told = false;  ///< to end, by a signal to us; nothing else ended it
    bool cut = false;   ///< by a signal, with no time to save what is in memory
    std::optional<Lost> lost = {};
    std::string notice = {};  ///< of mpirun, where no host was lost
    bool mpirun_killed = false;
    bool to_grow = false;  ///< ended from here, to go on with more ranks
    bool made_steps = false;
    bool anew = false;          ///< ranks were to go on in place, but did not, or are too few
    std::string given_up = {};  ///< why, where that ended it
  };
  struct Verdict {
    bool again = false;
    std::string why;
  };
  /// What is said when the ranks that there are now have made a step.
  struct Restart {
    std::string why;
    Reached reached;  ///< by those before
    double last = 0;  ///< when they made their last step: seconds of now()
  };

  /// As run(), with what is in memory left there.
  int supervise();
  Ended watch(int ranks);
  /// Whether there is room for more ranks, once hosts that did not answer were asked again.
  bool can_grow(int ranks);
  /// Where they have made a step, or are `done`.
  void announce(int ranks, bool done);

  /// Whether ranks have been waiting for one that was lost before they had met, which they would
  /// for ever where mpirun lets them go on; or for one that does not come.
  bool waits_for_lost(const MpiJob& job, int ranks);
  /// Where some of `ranks` are lost, and the others have gone on in place: whether that is to be.
  Verdict follow_losses(int& ranks);
  Verdict judge(const Ended& ended);
  Verdict judge_loss(const std::string& what);
  Verdict judge_error(const Ended& ended, bool further);
  /// Closes what was lost, and says what it was; "" where nothing was. Hosts are asked at `again`.
  std::string close_lost(const Ended& ended, double again);
  void note_restart(const std::string& why, Reached reached, double last);

  Reached reached() const;
  /// Whether a job that has ended made a step.
  bool has_steps() const { return furthest_ != Reached(); }
  std::vector<std::string> command(int ranks) const;
  std::string program() const { return options_.program[0]; }

  LaunchOptions options_;
  Hosts hosts_;
  LaunchMemory memory_;
  StopSignals signals_;
  const double time_limit_;    ///< seconds in which ranks must have met
  bool outlive_ = false;       ///< mpirun lets ranks go on when others are lost
  std::int64_t followed_ = 0;  ///< losses of this job after which they did
  bool all_here_ = false;      ///< each rank is to run on this host
  int most_here_ = 0;          ///< ranks of this job that were seen here
  double missing_since_ = 0;   ///< seconds of now(): a rank of this host; 0: none
  std::optional<Restart> restart_;
  /// Where ranks were, and when they were started: of the job that is under way, and of that which
  /// ended to go on with more, up to their first step.
  struct Start {
    Hosts hosts;
    double time = 0;
  };
  std::optional<Start> start_, before_growth_;
  Reached furthest_;
  bool cut_ = false;        ///< a job was: the next one is to save what there is
  int failed_growths_ = 0;  ///< in a row
  int stalled_ = 0;         ///< jobs in a row that came no further than those before
  int errors_ = 0;          ///< of the program, in a row
  double last_error_ = 0;   ///< seconds of now()
  double next_look_ = 0;    ///< for more room
};

}  // namespace lamina::cli
