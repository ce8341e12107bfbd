// How a network is trained, step by step, and what a training takes from a checkpoint.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/base/naming.hpp>
#include <lamina/base/pattern.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/kernels/samples.hpp>
#include <lamina/layers/softmax_cross_entropy.hpp>
#include <lamina/network/agree.hpp>
#include <lamina/train/detail/values.hpp>
#include <lamina/train/trainer.hpp>

#include <algorithm>
#include <utility>

namespace lamina {

LAMINA_INLINE Trainer::Instance::Instance(PlacedNetwork placed)
    : network(std::move(placed)), targets(network), turns(std::size_t(network.placing().turns())) {}

LAMINA_INLINE void Trainer::Instance::share(Workers workers) {
  network.share(std::move(workers));
  turns.clear(), turns.resize(std::size_t(network.placing().turns()));
  steady_from = 0;
}

LAMINA_INLINE Trainer::Trainer(Network network, const Communicator& ranks, Optimizer optimizer,
                               TrainerOptions options)
    : all_(ranks),
      ranks_(ranks),
      optimizer_(std::move(optimizer)),
      options_(std::move(options)),
      network_(std::move(network)) {
  settle();
  settle_shares();
  most_ = std::max(options_.most, all_.size());
  gather_teams();
  std::optional<PlacedNetwork> placed;
  if (all_.rank() < ranks_.size()) placed = prepare(placing(ranks_));
  if (options_.workers > 0 && !options_.late) share_gradients(placed ? &*placed : nullptr);
  if (placed) {
    here_ = allocate(std::move(*placed));
    here().network.initialize(options_.seed);
    place_evaluator();
  }
  stream_.silence(!options_.communicate);
  under_way_.reserve(2);
  progress_.seed = options_.seed;
}

LAMINA_INLINE Memory Trainer::memory() const {
  Memory m = optimizer_.memory(network());
  if (here().evaluation) m += here().evaluation->network.memory();
  return m;
}

LAMINA_INLINE Loader Trainer::loader(const Dataset& data, bool training,
                                     const FitOptions& o) const {
  here();  // a parked rank has no part of a batch
  const Network::Vertex& loss = network_.graph().back();
  const std::vector<Shape> xs = network_.input_shapes(loss, 1);
  const Form target = loss.layer->targets(xs);
  check(data.target() == target, data.name(), ": its targets are ", data.target(), ", but ",
        loss.name, " takes ", target);
  check(target.dtype != DType::i32 || data.classes() <= xs[0].c, data.name(), ": has ",
        data.classes(), " classes, but the network ends in ", xs[0].c);
  check(data.shape() == network_.sample(), data.name(), ": its images are ", data.shape(),
        ", but the network takes ", network_.sample());
  const LoaderOptions options = loading(training, o, ranks_.rank(), ranks_.size());
  detail::check_alike(ranks_, data, options);
  Loader loader(data, options);
  if (training && progress_.step > 0) loader.seek(progress_.epoch, progress_.batch);
  return loader;
}

LAMINA_INLINE void Trainer::start(Loader& loader, std::int64_t total) {
  const double begin = now();
  check_room();
  Progress& at = progress_;
  if (at.batch == loader.batches()) ++at.epoch, at.batch = 0;  // in data of another size
  const auto [epoch, index] = loader.position();
  check(epoch == at.epoch && index == at.batch, "start: expected batch ", at.batch, " of epoch ",
        at.epoch, ", got a loader at batch ", index, " of epoch ", epoch,
        ": one that loader() makes now begins where training stands, as does Loader::seek()");
  const std::int64_t images = loader.images();
  check(at.batch == 0 || at.images == 0 || at.images == images, "start: ", images,
        " images, but training stands at batch ", at.batch, " of ", at.images,
        " images: expected as many, or to go on from an epoch's end");
  start(next(loader), loader.batches(), total);
  at.images = images;
  under_way_.back().begin = begin;
}

LAMINA_INLINE LoaderOptions Trainer::loading(bool training, const FitOptions& o, int rank,
                                             int ranks) const {
  const bool apart = !training && here().evaluation, workers = options_.workers > 0;
  const auto split = splits(ranks);
  return {.global_batch = training || workers ? options_.batch
                          : apart             ? options_.evaluation_batch
                                              : at_once(),
          .rank = rank,
          .ranks = ranks,
          .shares = workers         ? shares(ranks)
                    : apart         ? here().evaluation->network.placing().splits[0].shares.batch
                    : split.empty() ? Shares()
                                    : split[0].shares.batch,
          .micro_batches = training && !workers ? micro_batches() : 1,
          .seed = options_.seed,
          .shuffle = training && o.shuffle,
          .augment = training && o.augment,
          .bytes = true,
          .pad_last = !training,
          .depth = std::max(3, o.loader_threads + 1),
          .threads = o.loader_threads};
}

LAMINA_INLINE void Trainer::start(const Batch& batch, std::int64_t per_epoch, std::int64_t total) {
  check_room();
  before_.reset();       // of no use any more
  progress_.images = 0;  // nobody says
  auto& outcomes = here().outcomes;
  UnderWay step{.result = {}, .begin = now(), .samples = batch.global_valid};
  StepResult& r = step.result;
  r.count = per_epoch;
  // In steps of these data: epochs on other data may have had another number of them.
  const std::int64_t position =
      progress_.epoch * std::max<std::int64_t>(per_epoch, 1) + progress_.batch;
  r.rate = options_.schedule.at(optimizer_.rate(), position, per_epoch,
                                position + total - progress_.step);
  stream_.begin_step();
  train_turns(batch, r.rate);
  advance(r);
  outcomes[std::size_t(r.step) % outcomes.size()].ask(here().found, here().network.loss_scale(),
                                                      stream_);
  under_way_.push_back(step);
}

LAMINA_INLINE StepResult Trainer::finish() {
  check(under_way() > 0, "finish: no step is under way: expected start()");
  const UnderWay step = under_way_.front();
  under_way_.erase(under_way_.begin());
  StepResult r = step.result;
  Instance& on = here();
  const Outcome found = on.outcomes[std::size_t(r.step) % on.outcomes.size()].get();
  // Two steps may be under way: all ranks have heard of this one before they start that.
  if (found.steady && on.steady_from == 0) on.steady_from = r.step + 2;
  r.loss = found.loss, r.top1 = found.top1 / std::max(found.rows, 1.0);
  r.stop = found.stop, r.resize = found.resize, r.loss_scale = found.loss_scale;
  if (r.index == 1) progress_.loss = progress_.top1 = 0;
  progress_.loss += r.loss, progress_.top1 += r.top1;
  const double end = now();
  r.seconds = end - std::max(step.begin, finished_);
  r.images_per_second = double(step.samples) / r.seconds;
  finished_ = end;
  if (snapshots_) snapshots_->done(r.step);
  check(std::isfinite(r.loss) || stream_.silent(), "step ", r.step, ": the loss is ",
        std::isnan(r.loss) ? "not a number" : "infinite",
        ": a lower learning rate, warm-up or gradient clipping may help");
  check(!r.loss_scale || r.loss_scale->stuck < LossScaling::patience, "step ", r.step,
        ": gradients have overflowed in ", LossScaling::patience,
        " steps in a row, with a loss scale of ", r.loss_scale ? r.loss_scale->scale : 1,
        ": a lower learning rate, warm-up, gradient clipping or bf16 may help");
  return r;
}

LAMINA_INLINE void Trainer::check_room() const {
  check(under_way() < int(here().outcomes.size()), "start: ", under_way(),
        " steps are under way: expected finish()");
}

LAMINA_INLINE void Trainer::check_finished(const char* what) const {
  check(under_way() == 0, what, ": a step is under way: expected finish()");
}

LAMINA_INLINE std::optional<Evaluation> Trainer::evaluate_unless(const Dataset& data,
                                                                 const std::function<bool()>& stop,
                                                                 int loader_threads) {
  check_finished("evaluate");
  Loader loader = this->loader(data, false, {.loader_threads = loader_threads});
  auto& apart = here().evaluation;
  PlacedNetwork& network = apart ? apart->network : here().network;
  if (apart) network.refresh();
  network.average_kept(stream_);
  Evaluation e;
  const Form& form = data.target();
  const std::int64_t targets =
      data.labels_pixels() || form.dtype == DType::i32 ? form.shape.size() : 1;
  for (std::int64_t i = 0; i < loader.batches(); ++i) {
    const Batch& batch = next(loader);
    const std::int64_t most = batch.global_valid * targets;
    evaluate_turns(batch, stop());
    const Outcome found = outcome(network, stream_);
    if (found.stop) return std::nullopt;
    check(found.rows <= double(most), network.network().graph().back().name, ": counts ",
          found.rows, " rows of a batch of which ", most, " have a target: expected those alone");
    e.loss += found.loss * found.rows, e.top1 += found.top1, e.top5 += found.top5;
    e.samples += std::int64_t(found.rows);
    if (snapshots_) snapshots_->done(progress_.step);
  }
  check(e.samples > 0, data.name(), ": has no image with a label to evaluate");
  for (double* sum : {&e.loss, &e.top1, &e.top5}) *sum /= double(e.samples);
  return e;
}

LAMINA_INLINE void Trainer::save(const std::string& path, std::optional<Score> score) {
  check_finished("save");
  network().average_kept(stream_);
  if (!stream_.silent()) detail::check_saved(network(), path, progress_.step);
  describe();
  progress_.score = score;
  save_checkpoint(path, network(), progress_, ranks_);
}

LAMINA_INLINE std::vector<std::string> Trainer::resume(const std::string& path) {
  check_finished("resume");
  const Progress p = read_progress(path, ranks_);
  describe();
  for (const auto& [key, mine] : progress_.settings) {
    const auto saved = p.settings.find(key);
    check(saved == p.settings.end() || saved->second == mine, path, ": was saved with ", key, ' ',
          saved == p.settings.end() ? "" : saved->second, ", but this run has ", mine);
  }
  const auto of = [](const Progress& a) {
    const auto frozen = a.settings.find("frozen");
    return frozen == a.settings.end() ? "nothing" : frozen->second;
  };
  check(of(p) == of(progress_) || !p.settings.contains("optimizer"), path, ": was saved with ",
        of(p), " frozen, but this run has ", of(progress_));
  check(p.seed == options_.seed, path, ": was saved with seed ", p.seed, ", but this run has ",
        options_.seed);
  Resumed resumed = load_checkpoint(path, network(), ranks_);
  progress_ = resumed;
  take_loss_scale();
  return std::move(resumed.averaged);
}

LAMINA_INLINE bool Trainer::recover() {
  if (snapshots_) return false;
  snapshots_ = Snapshots::find(all_);
  if (!snapshots_) return false;
  const std::string path = snapshots_->newest();
  if (!active()) return false;
  snapshots_->go_on(ranks_);
  const bool ahead = !path.empty() && read_progress(path, ranks_).step > progress_.step;
  if (ahead) {
    before_ = snapshots_->before();
    before_at_ = now();
    naming("snapshot of lamina launch", [&] { resume(path); });
  }
  snapshots_->begin(progress_.step);
  return ahead;
}

LAMINA_INLINE void Trainer::snapshot() {
  check_finished("snapshot");
  if (!snapshots_) return;
  network().average_kept(stream_);
  if (!stream_.silent()) detail::check_saved(network(), "snapshot", progress_.step);
  describe();
  progress_.score = {};
  snapshots_->take(network(), progress_);
}

/// What differs from step to step goes ahead of what may have been recorded. What rank 0 announces
/// it says once.
LAMINA_INLINE void Trainer::train_turns(const Batch& batch, double rate) {
  Instance& on = here();
  PlacedNetwork& network = on.network;
  const std::int64_t step = progress_.step + 1;
  const bool records = options_.graph && on.steady_from > 0 && step >= on.steady_from;
  const bool steady = this->steady();
  const int turns = int(on.turns.size());
  const bool compared = network.compared();
  if (!compared) detail::check_weights(network, stream_);
  for (int i = 0; i < turns; ++i) {
    const double says = Outcome::says(stop_, std::exchange(announced_, 0), steady);
    Context context = load(batch, network, on.targets, says, i, turns);
    network.begin_turn(context);
    const bool last = i + 1 == turns;
    if (last) optimizer_.begin_update(network, stream_, rate, step);
    const double begin = now();
    on.turns[std::size_t(i)].run(stream_, records, [&] {
      context.targets = on.targets.move(stream_);
      network.run_turn(context);
      network.note_seconds(i, now() - begin);  // which the update has all ranks know
      if (!last) return;
      if (!compared) detail::check_loss(network, stream_);
      optimizer_.run_update(network, stream_);
      on.found = network.found(stream_);
    });
    network.end_turn();
  }
  network.drop_gradients(), network.note_compared();
}

LAMINA_INLINE void Trainer::evaluate_turns(const Batch& batch, bool stop) {
  Instance& on = here();
  PlacedNetwork& network = on.evaluation ? on.evaluation->network : on.network;
  Targets& targets = on.evaluation ? on.evaluation->targets : on.targets;
  const int turns = options_.workers == 0 ? 1 : network.placing().turns();
  for (int i = 0; i < turns; ++i) {
    const double says = Outcome::says(stop, std::exchange(announced_, 0), false);
    Context context = load(batch, network, targets, says, i, turns);
    context.targets = targets.move(stream_);
    context.training = false;
    const double begin = now();
    network.forward(context);
    network.note_seconds(i, now() - begin);
  }
}

/// Whether the last step could have been recorded here.
LAMINA_INLINE bool Trainer::steady() const {
  return options_.graph && std::ranges::none_of(here().turns, &Repeated::why_not);
}

LAMINA_INLINE std::string Trainer::graph() const {
  if (!active() || !stream_.queue()) return "";
  const Instance& on = here();
  if (!options_.graph) return "steps are not recorded: that was not asked for";
  if (std::ranges::all_of(on.turns, &Repeated::recorded)) return "steps are recorded";
  const auto at = std::ranges::find_if(on.turns, &Repeated::why_not);
  const bool watched = stream_.recorder() || stream_.listener();
  if (watched || at == on.turns.end() || progress_.step < 4) return "";  // it may come to that yet
  return text("steps are not recorded: a step has ", at->why_not());
}

LAMINA_INLINE PlaceOptions placing_of(const TrainerOptions& o) {
  const std::int64_t at_once = o.micro_batch > 0 ? o.micro_batch : o.batch;
  return {.batch = at_once,
          .recompute = o.recompute,
          .dtype = o.dtype,
          .bucket_mb = o.bucket_mb,
          .first_bucket_mb = o.first_bucket_mb,
          .sent_gradients = o.sent_gradients,
          .loss_scaling = o.loss_scaling.value_or(LossScaling::usual(o.dtype)),
          .shard_optimizer = o.shard_optimizer,
          .frozen = o.frozen,
          .micro_batches = int(o.batch / at_once)};
}

/// Workers need no other rank: one that is to join places them before it knows the others.
LAMINA_INLINE PlaceOptions Trainer::placing(const Communicator& ranks) const {
  PlaceOptions o = placing_of(options_);
  o.backend = make_backend(options_.backend, options_.dtype), o.fuse = options_.fuse;
  o.unlike_backends = unlike_backends_;
  if (options_.workers > 0) {
    o.batch = options_.batch / options_.workers, o.micro_batches = options_.workers;
    const bool joined = all_.rank() < ranks.size();
    o.workers = joined ? workers_of(ranks) : Workers{options_.workers, {}, {0, 1}};
  } else {
    o.ranks = ranks, o.splits = splits(ranks.size());
  }
  return o;
}

/// What can be said without placing anything; the network gets its loss.
LAMINA_INLINE void Trainer::settle() {
  detail::check_alike(all_, optimizer_, options_);
  if (!options_.late) {
    agree_on_instruction_set(all_, options_.backend, options_.dtype);
    unlike_backends_ =
        detail::unlike_backends(all_, backend_name(options_.backend, options_.dtype));
  }
  const std::int64_t batch = options_.batch, micro_batch = options_.micro_batch;
  const int workers = options_.workers;
  check(batch > 0, "the global batch must be positive, got ", batch);
  check(micro_batch >= 0 && batch % at_once() == 0, "a global batch of ", batch,
        " is no multiple of the micro-batch of ", micro_batch);
  check(workers >= 0 && (workers == 0 || batch % workers == 0), "a global batch of ", batch,
        " cannot be cut into equal parts for ", workers, " workers");
  if (workers > 0) {
    check(micro_batch == 0,
          "workers and a micro-batch: expected one of the two, since what runs at "
          "once is a worker's part");
    check(!options_.shard_optimizer, "workers: a sharded optimizer is not for them");
    check(options_.evaluation_batch == 0,
          "workers: an evaluation runs as training does: expected no "
          "evaluation batch");
    for (const Split& s : options_.splits)
      check(s.ways() == s.batch && s.shares.batch.empty(),
            "workers: all layers are split by samples, "
            "got ",
            s);
  }
  detail::add_loss(network_, options_);
}

LAMINA_INLINE PlacedNetwork Trainer::prepare(PlaceOptions options) const {
  const auto prepare = [&] { return PlacedNetwork(network_, std::move(options)); };
  return options_.micro_batch > 0 ? naming("micro-batch", prepare) : prepare();
}

LAMINA_INLINE std::unique_ptr<Trainer::Instance> Trainer::allocate(PlacedNetwork placed) const {
  constexpr const char* states = "states of the optimizer";
  MemorySpace& memory = placed.placing().backend->memory();
  Tensor aside;  // so that the batch which is said to fit does so beside the states
  if (const auto bytes = std::int64_t(optimizer_.memory(placed).optimizer); !memory.on_host())
    aside = naming(states, [&] { return Tensor({1, bytes / 8, 1, 1}, DType::f64, memory); });
  const bool there = gradients_.view() && memory.on_host();
  there ? placed.allocate(gradients_) : placed.allocate();
  auto made = std::make_unique<Instance>(std::move(placed));
  aside = Tensor();
  made->states = naming(states, [&] { return optimizer_.attach(made->network); });
  return made;
}

LAMINA_INLINE void detail::add_loss(Network& network, TrainerOptions& options) {
  const Layer* last = network.graph().back().layer.get();
  if (last && last->is_loss()) return;
  network.add<SoftmaxCrossEntropy>({}, "loss");
  if (!options.splits.empty()) options.splits.push_back(options.splits[0]);
  if (!options.recompute.empty()) options.recompute.push_back(false);
}

LAMINA_INLINE PlaceOptions detail::evaluating(PlaceOptions o, std::int64_t batch, int ranks) {
  o.batch = batch, o.micro_batches = 1;
  o.training = o.shard_optimizer = false, o.recompute.clear();
  const Split input = input_split(batch, ranks);
  if (!o.splits.empty() && o.splits[0].batch != input.batch) o.splits[0] = input;
  return o;
}

LAMINA_INLINE void Trainer::place_evaluator() {
  if (evaluates_apart()) here().evaluation.emplace(*this);
}

LAMINA_INLINE PlacedNetwork Trainer::Evaluator::place(const Trainer& of) {
  PlaceOptions o =
      detail::evaluating(of.placing(of.ranks_), of.options_.evaluation_batch, of.ranks_.size());
  o.backend = of.network().placing().backend, o.parameters_of = &of.network();
  return naming("evaluation batch", [&] { return of.network_.place(std::move(o)); });
}

LAMINA_INLINE Context Trainer::load(const Batch& batch, const PlacedNetwork& network,
                                    Targets& targets, double stop, int micro_batch,
                                    int micro_batches) {
  const View& x = network.x();
  const std::int64_t rows = x.shape.n;
  check(batch.size == micro_batches * rows, "the batch has ", batch.size, " rows, expected ",
        micro_batches * rows);
  check(batch.ranks == 0 || (batch.rank == ranks_.rank() && batch.ranks == ranks_.size()),
        "expected the part of rank ", ranks_.rank(), " of ", ranks_.size(),
        " of the batch, got that of rank ", batch.rank, " of ", batch.ranks);
  check(rows == 0 || batch.images || batch.pixels, "the batch has no images");
  stream_.run(Pass::forward, "copy batch", [&] {
    if (rows > 0) load_images(batch, micro_batch * x.shape.size(), network);
    targets.load(stream_, static_cast<const char*>(batch.targets) +
                              std::size_t(micro_batch) * targets.loaded().bytes());
  });
  return {.stream = stream_, .seed = options_.seed, .step = progress_.step, .stop = stop};
}

/// From that element on.
LAMINA_INLINE void Trainer::load_images(const Batch& batch, std::int64_t first,
                                        const PlacedNetwork& network) {
  const View& x = network.x();
  const Backend& backend = *network.placing().backend;
  if (batch.pixels)
    return backend.put_pixels(stream_, {batch.pixels.bytes + first, batch.pixels.values}, x);
  const View images = on_host(batch.images + first, x.shape);
  if (!backend.memory().on_host()) return put_samples(stream_, images.as<const float>(), x);
  if (x.dtype == images.dtype) return put_bytes(stream_, images.data, x);
  backend.copy(images, x);
}

LAMINA_INLINE void Trainer::advance(StepResult& r) {
  Progress& p = progress_;
  p.evaluation_due = false;
  r.epoch = p.epoch, r.index = ++p.batch, r.step = ++p.step;
  if (p.batch >= r.count) ++p.epoch, p.batch = 0;
}

LAMINA_INLINE void Trainer::note_loss_scale() {
  progress_.loss_scale.reset();
  if (network().loss_scale()) progress_.loss_scale = network().loss_scale_now();
}

/// As Progress has it; of a scale that stays, how many updates were skipped.
LAMINA_INLINE void Trainer::take_loss_scale() {
  if (!progress_.loss_scale || !here_) return;
  LossScale scale = *progress_.loss_scale;
  const LossScaling& how = network().placing().loss_scaling;
  if (how.double_after == 0) scale = {.scale = how.start, .skipped = scale.skipped};
  network().set_loss_scale(scale);
}

LAMINA_INLINE void Trainer::describe() {
  note_loss_scale();
  progress_.rate = optimizer_.rate();
  progress_.settings["optimizer"] = optimizer_.name();
  progress_.settings["global_batch"] = text(options_.batch);
  progress_.settings.erase("frozen");
  if (!options_.frozen.empty()) progress_.settings["frozen"] = in_words(options_.frozen);
  for (const auto& [key, mine] : own_options()) progress_.options[key] = mine;
}

LAMINA_INLINE std::map<std::string, std::string> Trainer::own_options() const {
  return {{"optimizer", optimizer_.text()}, {"schedule", detail::in_words(options_.schedule)}};
}

}  // namespace lamina
