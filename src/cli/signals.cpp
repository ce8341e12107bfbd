#include "signals.hpp"

#include <lamina/comm/world.hpp>

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <iterator>

namespace lamina::cli {

namespace {

constexpr int caught[] = {SIGTERM, SIGINT, SIGUSR1};
struct sigaction before[std::size(caught)];

// The handler, which may run on any thread that runs no layers, does nothing but look at these.
std::atomic<int> first{0};
std::atomic<std::int64_t> first_of[2];  // milliseconds of the clock: from anybody, from mpirun
std::atomic<bool> under_mpirun{false};
static_assert(std::atomic<int>::is_always_lock_free &&
              std::atomic<std::int64_t>::is_always_lock_free);

constexpr std::int64_t one_signal = 250;  // milliseconds

std::int64_t milliseconds() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return std::int64_t(t.tv_sec) * 1000 + t.tv_nsec / 1'000'000 + 1;
}

void note(int number, siginfo_t* info, void*) {
  int none = 0;
  first.compare_exchange_strong(none, number);
  const bool launcher = under_mpirun && info && info->si_pid == getppid();
  std::int64_t never = 0;
  const std::int64_t now = milliseconds();
  if (first_of[launcher].compare_exchange_strong(never, now) || now - never < one_signal) return;
  signal(number, SIG_DFL);
  raise(number);  // it is blocked until this returns
}

}  // namespace

StopSignals::StopSignals() {
  first = 0, first_of[0] = 0, first_of[1] = 0;
  under_mpirun = lamina::detail::launched();
  struct sigaction action = {};
  action.sa_sigaction = note;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < std::size(caught); ++i) sigaction(caught[i], &action, &before[i]);
}

StopSignals::~StopSignals() {
  for (std::size_t i = 0; i < std::size(caught); ++i) sigaction(caught[i], &before[i], nullptr);
}

int StopSignals::received() const { return first; }

const char* name_of_signal(int number) {
  return number == SIGTERM ? "SIGTERM" : number == SIGINT ? "SIGINT" : "SIGUSR1";
}

}  // namespace lamina::cli
