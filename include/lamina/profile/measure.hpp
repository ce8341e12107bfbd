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
/// placed. There is no update: give profile_steps() your own step for that. Throws Error if the
/// network does not end in a loss.
inline Profile profile(Network& network, const Communicator& ranks, ProfileOptions options = {}) {
  if (!network.placed()) {
    check(options.batch > 0, "profile: the network is not placed, so a batch is needed");
    network.place({.batch = options.batch,
                   .backend = make_backend(options.backend, options.dtype),
                   .ranks = ranks,
                   .dtype = options.dtype});
    network.initialize(0);
  }
  const Step& loss = network.steps().back();
  check(loss.layer->type() == "SoftmaxCrossEntropy", "profile: the network ends in ", loss.name,
        " (", loss.layer->type(), "): expected a loss, SoftmaxCrossEntropy");

  const Random random(1, std::uint64_t(ranks.rank()));
  const View x = network.x();
  for (std::int64_t i = 0; i < x.shape.size(); ++i)
    if (x.dtype == DType::f64)
      x.as<double>()[i] = random.uniform(std::uint64_t(i)) - 0.5;
    else
      x.as<float>()[i] = random.uniform(std::uint64_t(i)) - 0.5f;
  const Tensor labels({x.shape.n, 1, 1, 1}, DType::i32);
  for (std::int64_t i = 0; i < x.shape.n; ++i)
    labels.as<std::int32_t>()[i] = std::int32_t(i % loss.input_shapes[0].c);

  Stream stream;
  Context context{.stream = stream,
                  .first = network.rows().begin,
                  .rows = double(network.placing().batch),
                  .labels = labels};
  const auto step = [&] {
    network.forward(context);
    network.backward(context);
    for (const auto& named : network.parameters())
      if (named.parameter->trained) named.parameter->wait(stream);
    ++context.step;
  };
  return profile_steps(network, stream, ranks, {}, options, step);
}

}  // namespace lamina
