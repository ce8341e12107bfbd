// Processors and threads, also where OpenMP binds its threads. libgomp reads OMP_PROC_BIND before a
// program starts, so CTest runs the tag [bound] a second time in a process of its own.
#include "../../src/cpu/processors.hpp"
#include "catch.hpp"

#include <lamina/base/signal_thread.hpp>
#include <lamina/base/threads.hpp>
#include <lamina/comm/threads.hpp>
#include <lamina/train/data/loader.hpp>

#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

using namespace lamina;

namespace {

int processors_of(pid_t process) {
  cpu_set_t set;
  CPU_ZERO(&set);
  REQUIRE(sched_getaffinity(process, sizeof set, &set) == 0);
  return CPU_COUNT(&set);
}

/// Notes how many processors those that read it may run on.
struct Watching final : Dataset {
  Watching() : Dataset("watching", 2, Transform{.shape = {1, 1, 2, 2}}) {}
  std::int64_t size() const override { return 8; }
  void read(std::int64_t, Sample& to) const override {
    to.planes.assign(4, 0.0f), to.channels = 1, to.height = to.width = 2, to.label = 0;
    least = std::min(least.load(), processors_of(0));
  }
  mutable std::atomic<int> least = 1 << 20;
};

std::atomic<pid_t> handled_by{0};
static_assert(std::atomic<pid_t>::is_always_lock_free);

}  // namespace

TEST_CASE("all processors are counted, and threads beside the kernels' may run on them",
          "[bound]") {
  const int all = processors_of(getppid());  // nobody binds what starts the tests
  CHECK(processors() == std::min(all, detail::whole_quota()));

  std::atomic<int> beside = 0;
  std::thread([&] {
    unbind_thread();
    beside = processors_of(0);
  }).join();
  CHECK(beside == all);

  run_ranks(2, [&](World&) {
    if (processors_of(0) != all) beside = -1;
  });
  CHECK(beside == all);

  const Watching data;
  Loader loader(data, {.global_batch = 4, .threads = 2});
  loader.next();
  CHECK(data.least == all);
}

TEST_CASE("each of the kernels' threads is bound to a processor, and others are let go") {
  const int all = processors_of(getppid());
  if (detail::processor_quota() < all) {
    WARN("a control group has a quota: nothing to test");
    return;
  }
  const auto bound = [] {
    std::vector<int> counts;
    cpu_set_t together;
    CPU_ZERO(&together);
#pragma omp parallel
#pragma omp critical
    {
      cpu_set_t mine;
      sched_getaffinity(0, sizeof mine, &mine);
      counts.push_back(CPU_COUNT(&mine));
      CPU_OR(&together, &together, &mine);
    }
    counts.push_back(CPU_COUNT(&together));
    return counts;
  };
  std::vector<int> few, once, again, free;
  int beside = 0, counted = 0;
  const int before = processors();
  bool refused = true, taken = false;
  std::thread([&] {  // which ends with what it has bound
    set_threads(all + 1);
    refused = !bind_threads();
    few = bound();
    set_threads(all);
    taken = bind_threads();
    once = bound();
    set_threads(1), set_threads(all);
    again = bound();
    counted = processors();
    std::thread([&] {
      unbind_thread();
      beside = processors_of(0);
    }).join();
  })
      .join();
  CHECK(refused);
  CHECK(few == std::vector<int>(std::size_t(all) + 2, all));
  std::vector<int> each(std::size_t(all), 1);
  each.push_back(all);
  CHECK(taken);
  CHECK(once == each);
  CHECK(again == each);
  CHECK(counted == before);
  CHECK(beside == all);
}

TEST_CASE("ranks that share processors are bound to their parts of them") {
  const int all = processors_of(getppid()), each = all / 2;
  if (detail::processor_quota() < all) {
    WARN("a control group has a quota: nothing to test");
    return;
  }
  cpu_set_t of_rank[2];
  bool taken[2] = {}, refused = true;
  for (const int rank : {0, 1})
    std::thread([&] {
      set_threads(each + 1);
      refused = refused && !bind_threads(rank, 2);
      set_threads(std::max(1, each));
      taken[rank] = bind_threads(rank, 2);
      cpu_set_t& together = of_rank[rank];
      CPU_ZERO(&together);
#pragma omp parallel
#pragma omp critical
      {
        cpu_set_t mine;
        sched_getaffinity(0, sizeof mine, &mine);
        CPU_OR(&together, &together, &mine);
      }
    }).join();
  int left = 0;
  std::thread([&] {  // a job that goes on with other ranks
    set_threads(std::max(1, each));
    bind_threads(1, 2);
    set_threads(all + 1);
    refused = refused && !bind_threads(1, 2);
    left = processors_of(0);
  })
      .join();
  CHECK(refused);
  CHECK(left == all);
  const bool even = all == 2 * each;
  CHECK(taken[0] == even);
  CHECK(taken[1] == even);
  if (!even) return;
  CHECK(CPU_COUNT(&of_rank[0]) == each);
  CHECK(CPU_COUNT(&of_rank[1]) == each);
  cpu_set_t both;
  CPU_OR(&both, &of_rank[0], &of_rank[1]);
  CHECK(CPU_COUNT(&both) == all);
}

TEST_CASE("handlers run on the thread for signals, and again anywhere once it has gone") {
  struct sigaction noting = {}, before = {};
  noting.sa_handler = [](int) { handled_by = gettid(); };
  sigaction(SIGUSR1, &noting, &before);
  std::atomic<pid_t> started = 0;
  std::vector<pid_t> by;
  {
    const SignalThread apart;
    std::thread([&] {
      started = gettid();
      for (int i = 0; i < 20; ++i) {
        handled_by = 0;
        kill(getpid(), SIGUSR1);
        while (handled_by == 0) std::this_thread::yield();
        by.push_back(handled_by);
      }
    }).join();
  }
  handled_by = 0;
  raise(SIGUSR1);
  CHECK(handled_by == gettid());
  sigaction(SIGUSR1, &before, nullptr);
  CHECK(std::ranges::count(by, gettid()) == 0);
  CHECK(std::ranges::count(by, started.load()) == 0);
}

TEST_CASE("a thread gives way together with those of its kernels, and no other does") {
  const auto niceness = [] { return getpriority(PRIO_PROCESS, 0); };  // of a thread, on Linux
  const int before = niceness();
  std::vector<int> behind;
  std::thread([&] {
    give_way();
    set_threads(2);
#pragma omp parallel
#pragma omp critical
    behind.push_back(niceness());
  }).join();
  CHECK(behind == std::vector<int>(2, std::min(19, before + 5)));
  CHECK(niceness() == before);
}

TEST_CASE("ranks that are threads share the threads of their caller's kernels") {
  std::vector<int> counts;
  int all = 0;
  std::thread([&] {
    set_threads(5);
    all = threads();  // or fewer, by OMP_THREAD_LIMIT
    for (const int ranks : {1, 2, 6}) {
      std::atomic<int> together = 0;
      run_ranks(ranks, [&](World&) { together += threads(); });
      counts.push_back(together);
    }
    counts.push_back(threads());
  }).join();
  CHECK(counts == std::vector<int>{all, 2 * std::max(1, all / 2), 6, all});
}
