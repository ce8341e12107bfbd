// MpiJob: a program under mpirun, and what mpirun says of its end.
#pragma once

#include "child.hpp"

#include <signal.h>

#include <optional>
#include <string>
#include <vector>

namespace lamina::cli {

/// A rank, or a whole host, that went without having ended.
struct Lost {
  int rank = -1;   ///< -1: all those of the host; without one, it is not known which
  int signal = 0;  ///< that ended the rank; 0: not known
  std::string host = {};
  bool all = false;  ///< none is left, and it is not known where they were

  /// "rank 2 was lost (signal 9)"
  std::string text() const;
};

/// Passes on what ranks and mpirun say, but for mpirun's notices of how ranks have ended: those it
/// reads.
class Notices {
 public:
  void take(const std::string& said);
  /// What was no whole line or notice yet.
  void flush();
  /// Notices that are not passed on, since they may follow from the loss of a host.
  const std::string& held() const { return held_; }
  const std::optional<Lost>& lost() const { return lost_; }

 private:
  void line(std::string_view line);
  void notice(const std::string& words);

  std::string rest_, box_;  ///< of a line; lines since a rule
  std::string held_;
  int lines_ = 0;  ///< of the box
  std::optional<Lost> lost_;
};

class MpiJob {
 public:
  explicit MpiJob(const std::vector<std::string>& command) : child_(command) {}
  ~MpiJob() {
    child_.end();
    end_orphans();  // where mpirun was killed
  }

  /// Returns after `seconds` at the latest: whether the job has ended. Kills mpirun where it hangs.
  bool wait(double seconds);
  /// To the ranks of this host, which tell the others if they are Lamina's; where there are none
  /// yet, to mpirun. Where they have been there, mpirun is ending the job, and crashes at times if
  /// it gets a signal then: false.
  bool pass_on(int signal, bool were_there);
  /// Whether any rank of this host has a handler for what was passed on to it.
  bool heard() const { return heard_; }
  /// How many ranks run on this host.
  int ranks_here() const { return child_.count_children(rank_variable); }
  /// Has mpirun end all ranks.
  void end() const { child_.signal(SIGTERM); }
  int status() const { return child_.status(); }
  /// Where it did not end by itself; by its status alone, where what mpirun noticed is known.
  std::optional<Lost> lost(bool as_noticed) const;
  /// See Notices.
  const std::string& held() const { return notices_.held(); }
  /// Whether mpirun itself was killed.
  bool killed() const { return child_.killed(); }

 private:
  static constexpr const char* rank_variable = "OMPI_COMM_WORLD_RANK";

  void kill_if_stuck();

  Child child_;
  Notices notices_;
  double next_look_ = 0;  ///< seconds of now()
  bool forgot_ = false;   ///< at the last look
  bool heard_ = false;
};

}  // namespace lamina::cli
