// MPI in this process, from its start to its end, and processes that are started while it runs.
//
// Those are a job of their own for Open MPI, which mpirun started none of: rank 0 alone starts
// them, so that only rank 0 fails where that fails. Then those that were there and those that are
// new make a communicator of both.
#pragma once

#include "comm/mpi_calls.hpp"

#include <memory>

namespace lamina::detail {

class JobNote;

class MpiProcess {
 public:
  MpiProcess(int& argc, char**& argv);
  MpiProcess(const MpiProcess&) = delete;
  MpiProcess& operator=(const MpiProcess&) = delete;
  ~MpiProcess();

  /// The ranks there are when this process comes.
  MPI_Comm ranks() const { return ranks_; }
  /// Whether it was started by start_more().
  bool late() const { return late_; }
  /// How many ranks the launcher started, before any came later; of those, how many are left.
  int started() const { return started_; }
  /// The others are lost: from now on so many were started, this one among them.
  void go_on_with(int ranks) { started_ = ranks, late_ = false, hurry = true; }

  /// `ranks`, and behind them so many that are started by it: as this process was, in the same
  /// folder. On all ranks at once, on any thread while others call MPI. Throws Error, on all ranks,
  /// where that fails, or takes longer than so many seconds.
  MPI_Comm start_more(MPI_Comm ranks, int more, double seconds, Lookout& lookout);

  /// Notes what there is of the job outside of its processes. To be called when that is made.
  void write_note();

  int status = 0;      ///< with which the process ends
  bool hurry = false;  ///< peers may have gone without a word

 private:
  bool owner_ = false, late_ = false, grown_ = false, threads_ = false;
  bool stuck_ = false;  ///< processes that were to be started never came, and may come yet
  MPI_Comm ranks_ = MPI_COMM_NULL;
  int started_ = 1;
  std::unique_ptr<JobNote> note_;
};

}  // namespace lamina::detail
