// Where handlers of signals run.
#pragma once

#include <initializer_list>
#include <memory>

namespace lamina {

/// While it lives, these signals come to a thread of its own, or to one that was there before:
/// neither the thread that made it nor any that this one starts meanwhile runs their handlers. Make
/// it before anything of Lamina but the World, so that OpenMP has not started its threads yet, and
/// where no process is forked after it: that would begin with the signals blocked.
///
/// A program that has a handler and trains on the CPU needs it. In some of its products in f32
/// oneDNN up to 3.11 sets the stack pointer into the heap (its issue 4845), and there the kernel
/// would write what a handler begins with over whatever lies below.
class SignalThread {
 public:
  SignalThread();  // SIGTERM, SIGINT and SIGUSR1
  explicit SignalThread(std::initializer_list<int> signals);
  SignalThread(const SignalThread&) = delete;
  ~SignalThread();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lamina
