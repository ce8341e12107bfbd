// Measures: runs steps under a profiler and makes a profile of them.
#pragma once

#include <lamina/kernels/backends.hpp>
#include <lamina/profile/profile.hpp>

#include <utility>

namespace lamina {

struct ProfileOptions {
  int warmup = 2;                ///< steps before the measured ones
  int steps = 10;                ///< measured
  std::int64_t batch = 0;        ///< global; for a network that is not placed yet, else 0
  std::string backend = "auto";  ///< likewise
  DType dtype = DType::f32;      ///< likewise
};

/// Calls `step()` for the warm-up and then, recording `stream`, for the measured steps. Whatever
/// `step` runs on `stream` gets a row: forward, backward, update. It must wait for its collectives.
/// Collective: every rank calls it.
template <class Step>
Profile profile_steps(const Network& network, Stream& stream, const Communicator& ranks,
                      const UpdateRule& rule, const ProfileOptions& options, Step&& step) {
  check(options.steps > 0, "profile: steps must be positive, got ", options.steps);
  Profiler profiler(4096, std::size_t(options.steps));
  for (int i = 0; i < options.warmup; ++i) step();
  struct Attached {
    Stream& stream;
    Recorder* before;
    ~Attached() { stream.record_to(before); }
  } attached{stream, stream.recorder()};
  stream.record_to(&profiler);
  ranks.barrier();  // nobody's first step waits for another's warm-up
  for (int i = 0; i < options.steps; ++i) {
    profiler.begin_step();
    step();
    profiler.end_step();
  }
  return make_profile(network, profiler, rule, ranks);
}

/// Forward and backward of `network` on made-up samples; places and initializes it if it is not
/// placed. Parameters and running statistics stay as they are. There is no update: give
/// profile_steps() your own step for that. Throws Error if the network does not end in a loss.
Profile profile(Network& network, const Communicator& ranks, ProfileOptions options = {});

}  // namespace lamina
