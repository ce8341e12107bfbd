// Signals that ask a run to end: SIGTERM, SIGINT and SIGUSR1, as people and batch systems send
// them.
#pragma once

namespace lamina::cli {

/// As long as it lives, the first of these signals is only noted: the run ends when it is ready to,
/// and nothing is lost. A second one ends the process at once. One at a time.
///
/// What comes within a quarter of a second counts as one signal: `timeout` sends each twice. And
/// where mpirun started the process, its signal and that of anybody else count as one: batch
/// systems send theirs to all processes, and mpirun passes on its own.
///
/// Where layers run, there must be a SignalThread before it.
class StopSignals {
 public:
  StopSignals();
  StopSignals(const StopSignals&) = delete;
  ~StopSignals();

  /// Number of the first that came; 0 = none. Cheap.
  int received() const;
};

/// "SIGTERM"
const char* name_of_signal(int number);

}  // namespace lamina::cli
