// How a program runs, as one rank, as one of several, or with ranks as threads.
#pragma once

#include <lamina/base/flush_denormals.hpp>
#include <lamina/base/inline.hpp>
#include <lamina/base/threads.hpp>
#include <lamina/comm/detail/time_limit.hpp>
#include <lamina/comm/threads.hpp>

#include <atomic>
#include <charconv>
#include <cstring>

namespace lamina::detail {

LAMINA_INLINE int thread_ranks() {
  const char* asked = std::getenv("LAMINA_RANKS");
  if (!asked || !*asked) return 0;
  const char* end = asked + std::strlen(asked);
  int ranks = 0;
  const auto [read, error] = std::from_chars(asked, end, ranks);
  check(error == std::errc() && read == end && ranks >= 1 && ranks <= 1024,
        "LAMINA_RANKS: expected a whole number of threads from 1 to 1024, got '", asked, "'");
  check(!launched(), "LAMINA_RANKS asks for ranks as threads, but an MPI launcher has started ",
        "ranks as processes: expected one of the two");
  return ranks;
}

/// Returns a status that is not 0 if a rank has one.
inline int run_threads(int ranks, int (*main)(World&, void*), void* of) {
  const double patience = time_limit(86400);  // a rank may evaluate or save for long
  std::atomic<int> status = 0;
  const auto body = [&](World& world) {
    if (const int code = main(world, of); code != 0) status = code;
  };
  run_ranks(ranks, body, patience);
  return status;
}

/// What came of a call of main().
struct Outcome {
  int code = 1;
  std::string error = {};
  bool failed = false;     ///< by an exception
  bool withdrawn = false;  ///< the job goes on without this rank
};

inline Outcome try_main(World& world, int (*main)(World&, void*), void* of) {
  try {
    const int code = main(world, of);
    if (world.withdraw("it ended before it had joined")) return {.code = 0, .withdrawn = true};
    if (code == 0) world.leave("", 0);
    return {.code = code};
  } catch (const PeerError&) {
    return {.failed = true};
  } catch (const std::exception& e) {
    return {.error = e.what(), .failed = true};
  }
}

/// As World's; where that throws, `o` says why.
inline bool outlive(World& world, Outcome& o) {
  try {
    return world.outlive();
  } catch (const PeerError&) {
    o.error.clear();
  } catch (const std::exception& e) {
    o.error = e.what();
  }
  return false;
}

LAMINA_INLINE int run(int argc, char** argv, int (*main)(World&, void*), void* of) {
  flush_denormals();
  set_threads(default_threads(1));  // OpenMP knows of no quotas
  try {
    if (const int ranks = thread_ranks(); ranks > 0) return run_threads(ranks, main, of);
    World world(argc, argv);
    Outcome o = try_main(world, main, of);
    while (o.failed && outlive(world, o)) o = try_main(world, main, of);
    if (o.withdrawn || world.withdraw(o.error)) return 0;  // the others say it
    if (o.code != 0) World::say(world.leave(o.error, o.code));
    return o.code;
  } catch (const std::exception& e) {
    World::say(e.what());
    return 1;
  }
}

}  // namespace lamina::detail
