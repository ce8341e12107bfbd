// Measures: runs steps under a profiler and makes a profile of them.
#pragma once

#include <lamina/kernels/backends.hpp>
#include <lamina/profile/profile.hpp>

#include <functional>
#include <utility>

namespace lamina {

struct ProfileOptions {
  int warmup = 2;     ///< steps before the measured ones
  int steps = 10;     ///< measured
  bool alone = true;  ///< and as many without communication, where there are ranks
  std::function<void(const Profiler&)> on_step = {};  ///< after each recorded step: last_step()
  std::int64_t batch = 0;        ///< global; of a Network, which is placed for it
  std::string backend = "auto";  ///< likewise
  Precision dtype = DType::f32;  ///< likewise
};

namespace detail {
struct Halves {
  std::function<void()> start, finish;
  bool ahead;  ///< a step may be started before the one before it is finished
};
Profile profile_steps(const PlacedNetwork& network, Stream& stream, const Communicator& ranks,
                      const UpdateRule& rule, const ProfileOptions& options, const Halves& step);
}  // namespace detail

/// Calls `step()` for the warm-up, and then in pairs: once as it is, for the time of a clean step,
/// and once while recording `stream`. Whatever `step` runs on `stream` gets a row: forward,
/// backward, update. It must wait for its collectives. Collective: every rank calls it.
///
/// With `options.alone` steps in which collectives on `stream` do nothing follow, to tell what
/// overlapping costs the kernels. They leave ranks with different parameters if `step` updates any:
/// switch that off in the middle of a training.
template <class Step>
Profile profile_steps(const PlacedNetwork& network, Stream& stream, const Communicator& ranks,
                      const UpdateRule& rule, const ProfileOptions& options, Step&& step) {
  return detail::profile_steps(network, stream, ranks, rule, options,
                               {[&] { step(); }, [&] { stream.wait(); }, false});
}
/// The same of steps in two halves, as those of a Trainer: start() puts one in, finish() waits for
/// the one that was started first. Where a device runs behind its caller each is started before the
/// one before it is finished, as training does; so batches arrive meanwhile, and no kernel waits
/// for being launched.
template <class Start, class Finish>
Profile profile_steps(const PlacedNetwork& network, Stream& stream, const Communicator& ranks,
                      const UpdateRule& rule, const ProfileOptions& options, Start&& start,
                      Finish&& finish) {
  return detail::profile_steps(network, stream, ranks, rule, options,
                               {[&] { start(); }, [&] { finish(); }, true});
}

/// Forward and backward of `network` on made-up samples. Parameters and running statistics stay as
/// they are. There is no update: give profile_steps() your own step for that. Throws Error if the
/// network does not end in a loss.
Profile profile(PlacedNetwork& network, const Communicator& ranks,
                const ProfileOptions& options = {});
/// The same of a network that is placed and initialized for it.
Profile profile(const Network& network, const Communicator& ranks, const ProfileOptions& options);

}  // namespace lamina
