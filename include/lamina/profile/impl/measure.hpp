// How steps are measured: clean and recorded in pairs, then without communication.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/base/median.hpp>
#include <lamina/base/random.hpp>
#include <lamina/profile/detail/made_up.hpp>
#include <lamina/profile/measure.hpp>

#include <array>
#include <numeric>

namespace lamina {

namespace detail {

/// Takes a stream's recorder away, and restores it whatever happens, when a device has recorded
/// what it has.
class Detached {
 public:
  explicit Detached(Stream& stream)
      : stream_(stream), recorder_(stream.recorder()), silent_(stream.silent()) {
    stream.record_to(nullptr);
  }
  ~Detached() {
    try {
      stream_.wait();
    } catch (...) {  // whoever wants to know asks the stream
    }
    stream_.record_to(recorder_), stream_.silence(silent_);
  }

 private:
  Stream& stream_;
  Recorder* recorder_;
  bool silent_;
};

/// Steps by turns: clean and recorded. Where they are started `ahead`, which all ranks do or none,
/// the device itself notes when each of them has ended; the host may come late.
struct Turns {
  struct End {
    double at = 0;
    Event past = {};
  };
  Stream& stream;
  Profiler& recorded;
  const ProfileOptions& options;
  const Halves& step;
  const bool ahead;
  std::vector<double> clean = {}, overheads = {};
  std::array<End, 2> ends = {};  // of the steps that are under way
  double begin = 0;

  /// Number 0 is of no pair: where steps are started ahead, the first one is while it runs.
  static bool records(int number) { return number > 0 && number % 2 == 0; }

  void run() {
    const int last = 2 * options.steps;
    if (ahead) start(0);
    for (int i = 1; i <= last; ++i) start(i), finish(ahead ? i - 1 : i);
    if (ahead) finish(last);
  }
  void start(int number) {
    if (records(number)) stream.record_to(&recorded), recorded.begin_step();
    if (!ahead) begin = now();
    step.start();
    if (!ahead) return;
    stream.record_to(nullptr);
    End& end = ends[std::size_t(number % 2)];
    stream.then([&end] { end.at = now(); });
    end.past = stream.event();
  }
  /// When it was.
  double finish_half(int number) {
    step.finish();
    const End& end = ends[std::size_t(number % 2)];
    ahead ? end.past.wait() : stream.wait();
    return ahead ? end.at : now();
  }
  void finish(int number) {
    const double end = finish_half(number);
    if (records(number)) {
      recorded.end_step(end);
      stream.record_to(nullptr);
      overheads.push_back(recorded.seconds().back() / clean.back() - 1);
      if (options.on_step) options.on_step(recorded);
    } else if (number > 0) {
      clean.push_back(end - begin);
    }
    if (ahead && records(number + 1)) recorded.time_from(end);
    begin = end;
  }
};

}  // namespace detail

LAMINA_INLINE Profile detail::profile_steps(const PlacedNetwork& network, Stream& stream,
                                            const Communicator& ranks, const UpdateRule& rule,
                                            const ProfileOptions& options, const Halves& step) {
  check(options.steps > 0, "profile: steps must be positive, got ", options.steps);
  check(options.warmup >= 0, "profile: warmup must not be negative, got ", options.warmup);
  {
    const detail::Detached detached(stream);
    for (int i = 0; i < options.warmup; ++i) step.start(), step.finish();
    stream.wait();
  }
  const auto counters = open_counters();  // now that the kernels' threads are there
  Profiler recorded(4096, std::size_t(options.steps), counters.get());
  Profiler alone(4096, std::size_t(options.steps));
  const detail::Detached detached(stream);
  const bool ahead = step.ahead && stream.queue() && !network.placing().unlike_backends;
  detail::Turns turns{stream, recorded, options, step, ahead};
  ranks.barrier();  // nobody's first step waits for another's warm-up
  turns.run();
  Profile p = make_profile(network, recorded, rule, ranks);
  const double sum = std::accumulate(turns.clean.begin(), turns.clean.end(), 0.0);
  p.clean = Spread::of(ranks.all_gather_value(sum / options.steps));
  p.step_spread.clean = deviation(turns.clean);
  p.overhead = ranks.all_reduce_value(median(turns.overheads)) / ranks.size();
  if (!options.alone || ranks.size() == 1 || stream.silent()) return p;

  stream.silence(true);
  step.start(), step.finish();
  ranks.barrier();
  stream.record_to(&alone);
  for (int i = 0; i < options.steps; ++i)
    alone.begin_step(), step.start(), step.finish(), stream.wait(), alone.end_step();
  add_alone(p, network, alone, ranks);
  return p;
}

LAMINA_INLINE Profile profile(const Network& network, const Communicator& ranks,
                              const ProfileOptions& options) {
  check(options.batch > 0, "profile: the network is not placed, so a batch is needed");
  PlacedNetwork placed = network.place({.batch = options.batch,
                                        .backend = make_backend(options.backend, options.dtype),
                                        .ranks = ranks,
                                        .dtype = options.dtype});
  placed.initialize(0);
  return profile(placed, ranks, options);
}

namespace detail {

LAMINA_INLINE Tensor fill_made_up(const PlacedNetwork& network) {
  const PlaceOptions& o = network.placing();
  const Step& loss = network.steps().back();
  check(loss.layer->is_loss(), "profile: the network ends in ", loss.name, " (", loss.layer->type(),
        "): expected a loss, SoftmaxCrossEntropy");
  const Random random(1, std::uint64_t(o.ranks.rank()));
  const Tensor x(network.x().form());
  visit(x.view().dtype, [&]<Floating T>(T) {
    std::uint64_t i = 0;
    for (T& v : x.elements<T>()) v = T(random.uniform(i++) - 0.5);
  });
  copy_bytes(x, network.x());
  const Blocks blocks =
      loss.layer->target_blocks(loss.input_shapes, o.splits.back(), o.ranks.size());
  const Box& mine = blocks.box[std::size_t(o.ranks.rank())];
  const Tensor made(mine.shape(), loss.layer->targets(loss.input_shapes).dtype);
  if (made.view().dtype == DType::i32)
    for (std::int64_t i = 0; i < mine.size(); ++i)
      made.as<std::int32_t>()[i] = std::int32_t(i % loss.input_shapes[0].c);
  Tensor targets(made.view(), o.backend->memory());
  copy_bytes(made, targets);
  return targets;
}

}  // namespace detail

LAMINA_INLINE Profile profile(PlacedNetwork& network, const Communicator& ranks,
                              const ProfileOptions& options) {
  check(network.allocated(), "profile: the network has no buffers yet");
  const Tensor targets = detail::fill_made_up(network);
  MemorySpace& memory = network.placing().backend->memory();

  // Running averages would move towards those of the made-up samples, and so those of workers.
  std::vector<std::pair<View, Tensor>> kept;
  const auto keep = [&](const View& v) {
    copy_bytes(v, kept.emplace_back(v, Tensor(v.form(), memory)).second);
  };
  for (const auto& named : network.parameters())
    if (!named.parameter->trained) keep(named.parameter->value);
  const bool by_worker = network.knows_kept(), of_one = network.changes()->of_one_worker;
  if (const View& all = network.all_kept(); all && by_worker) keep(all);

  Stream stream;
  Context context{.stream = stream, .targets = targets};
  const auto step = [&] {
    for (int i = 0; i < network.placing().turns(); ++i)
      network.forward(context), network.backward(context);
    for (const auto& named : network.parameters())
      if (named.parameter->trained) named.parameter->wait(stream);
    ++context.step;
  };
  Profile result = profile_steps(network, stream, ranks, {}, options, step);
  for (const auto& [value, before] : kept) copy_bytes(before, value);
  if (!of_one) network.values_are_new();
  if (!of_one && by_worker) network.kept_is_known();
  network.drop_gradients();
  return result;
}

}  // namespace lamina
