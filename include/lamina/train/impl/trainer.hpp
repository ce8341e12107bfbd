// How a network is trained, step by step, and what a training takes from a checkpoint.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/base/naming.hpp>
#include <lamina/base/pattern.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/layers/softmax_cross_entropy.hpp>
#include <lamina/train/trainer.hpp>

#include <algorithm>

namespace lamina {

LAMINA_INLINE Trainer::Trainer(Network network, const Communicator& ranks, Optimizer optimizer,
                               TrainerOptions options)
    : ranks_(ranks),
      optimizer_(std::move(optimizer)),
      options_(std::move(options)),
      network_(place(std::move(network))) {
  states_ = optimizer_.attach(network_);
  network_.initialize(options_.seed);
  targets_ = Targets(network_);
  if (options_.evaluation_batch != 0 && options_.evaluation_batch != at_once())
    evaluation_.emplace(*this);
  stream_.silence(!options_.communicate);
  under_way_.reserve(outcomes_.size());
  progress_.seed = options_.seed;
}

LAMINA_INLINE Loader Trainer::loader(const Dataset& data, bool training,
                                     const FitOptions& o) const {
  const Network& network = network_.network();
  const Network::Vertex& loss = network.graph().back();
  const std::vector<Shape> xs = network.input_shapes(loss, 1);
  const Form target = loss.layer->targets(xs);
  check(data.target() == target, data.name(), ": its targets are ", data.target(), ", but ",
        loss.name, " takes ", target);
  check(target.dtype != DType::i32 || data.classes() <= xs[0].c, data.name(), ": has ",
        data.classes(), " classes, but the network ends in ", xs[0].c);
  check(data.shape() == network.sample(), data.name(), ": its images are ", data.shape(),
        ", but the network takes ", network.sample());
  const PlacedNetwork& placed = training || !evaluation_ ? network_ : evaluation_->network;
  const std::int64_t batch = training      ? options_.batch
                             : evaluation_ ? options_.evaluation_batch
                                           : at_once();
  const LoaderOptions options{.global_batch = batch,
                              .rank = ranks_.rank(),
                              .ranks = ranks_.size(),
                              .shares = placed.placing().splits[0].shares.batch,
                              .micro_batches = training ? micro_batches() : 1,
                              .seed = options_.seed,
                              .shuffle = training && o.shuffle,
                              .augment = training && o.augment,
                              .pad_last = !training,
                              .depth = std::max(3, o.loader_threads + 1),
                              .threads = o.loader_threads};
  detail::check_alike(ranks_, data, options);
  return Loader(data, options);
}

LAMINA_INLINE void Trainer::start(const Batch& batch, std::int64_t per_epoch, std::int64_t total) {
  check(under_way() < int(outcomes_.size()), "start: ", under_way(),
        " steps are under way: expected finish()");
  UnderWay step{.result = {}, .begin = now(), .samples = batch.global_valid};
  StepResult& r = step.result;
  r.count = per_epoch;
  r.rate = options_.schedule.at(optimizer_.rate(), progress_.step, per_epoch, total);
  stream_.begin_step();
  run(batch, r.rate);
  advance(r);
  outcomes_[std::size_t(r.step) % outcomes_.size()].ask(network_, stream_);
  under_way_.push_back(step);
}

LAMINA_INLINE StepResult Trainer::finish() {
  check(under_way() > 0, "finish: no step is under way: expected start()");
  const UnderWay step = under_way_.front();
  under_way_.erase(under_way_.begin());
  StepResult r = step.result;
  const Outcome found = outcomes_[std::size_t(r.step) % outcomes_.size()].get();
  r.loss = found.loss, r.top1 = found.top1 / std::max(found.rows, 1.0), r.stop = found.stop;
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
  return r;
}

LAMINA_INLINE void Trainer::check_finished(const char* what) const {
  check(under_way() == 0, what, ": a step is under way: expected finish()");
}

LAMINA_INLINE std::optional<Evaluation> Trainer::evaluate_unless(
    const Dataset& data, const std::function<bool()>& stop) {
  check_finished("evaluate");
  Loader loader = this->loader(data, false);
  PlacedNetwork& network = evaluation_ ? evaluation_->network : network_;
  Targets& targets = evaluation_ ? evaluation_->targets : targets_;
  if (evaluation_) network.refresh();
  Evaluation e;
  for (std::int64_t i = 0; i < loader.batches(); ++i) {
    Context context = load(next(loader), network, targets, stop());
    context.training = false;
    network.forward(context);
    const Outcome found = outcome(network, stream_);
    if (found.stop) return std::nullopt;
    e.loss += found.loss * found.rows, e.top1 += found.top1, e.top5 += found.top5;
    e.samples += std::int64_t(found.rows);
  }
  check(e.samples > 0, data.name(), ": has no image with a label to evaluate");
  for (double* sum : {&e.loss, &e.top1, &e.top5}) *sum /= double(e.samples);
  return e;
}

LAMINA_INLINE void Trainer::save(const std::string& path, std::optional<Score> score) {
  check_finished("save");
  if (!stream_.silent()) detail::check_finite(network_, path, progress_.step);
  describe();
  progress_.score = score;
  save_checkpoint(path, network_, progress_, ranks_);
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
  check(p.seed == options_.seed, path, ": was saved with seed ", p.seed, ", but this run has ",
        options_.seed);
  Resumed resumed = load_checkpoint(path, network_, ranks_);
  progress_ = resumed;
  return std::move(resumed.averaged);
}

LAMINA_INLINE bool Trainer::recover() {
  if (snapshots_) return false;
  snapshots_ = Snapshots::find(ranks_);
  if (!snapshots_) return false;
  const std::string path = snapshots_->newest();
  const bool ahead = !path.empty() && read_progress(path, ranks_).step > progress_.step;
  if (ahead) naming("snapshot of lamina launch", [&] { resume(path); });
  snapshots_->begin(progress_.step);
  return ahead;
}

LAMINA_INLINE void Trainer::snapshot() {
  check_finished("snapshot");
  if (!snapshots_) return;
  if (!stream_.silent()) detail::check_finite(network_, "snapshot", progress_.step);
  describe();
  progress_.score = {};
  snapshots_->take(network_, progress_);
}

LAMINA_INLINE void Trainer::run(const Batch& batch, double rate) {
  for (int i = 0; i < micro_batches(); ++i) {
    Context context = load(batch, network_, targets_, stop_, i, micro_batches());
    network_.forward(context);
    network_.backward(context);
  }
  optimizer_.update(network_, stream_, rate, progress_.step + 1);
}

LAMINA_INLINE PlaceOptions placing_of(const TrainerOptions& o) {
  const std::int64_t at_once = o.micro_batch > 0 ? o.micro_batch : o.batch;
  return {.batch = at_once,
          .recompute = o.recompute,
          .dtype = o.dtype,
          .bucket_mb = o.bucket_mb,
          .first_bucket_mb = o.first_bucket_mb,
          .shard_optimizer = o.shard_optimizer,
          .frozen = o.frozen,
          .micro_batches = int(o.batch / at_once)};
}

LAMINA_INLINE PlaceOptions Trainer::placing(std::int64_t batch) const {
  PlaceOptions o = placing_of(options_);
  o.batch = batch, o.ranks = ranks_, o.splits = options_.splits;
  o.backend = make_backend(options_.backend, options_.dtype), o.fuse = options_.fuse;
  return o;
}

LAMINA_INLINE PlacedNetwork Trainer::place(Network network) {
  detail::check_alike(ranks_, optimizer_, options_);
  const std::int64_t batch = options_.batch, micro_batch = options_.micro_batch;
  check(batch > 0, "the global batch must be positive, got ", batch);
  check(micro_batch >= 0 && batch % at_once() == 0, "a global batch of ", batch,
        " is no multiple of the micro-batch of ", micro_batch);
  const Layer* last = network.graph().back().layer.get();
  if (!last || !last->is_loss()) {
    network.add<SoftmaxCrossEntropy>({}, "loss");
    if (!options_.splits.empty()) options_.splits.push_back(options_.splits[0]);
    if (!options_.recompute.empty()) options_.recompute.push_back(false);
  }
  const auto placed = [&] { return network.place(placing(at_once())); };
  return micro_batch > 0 ? naming("micro-batch", placed) : placed();
}

LAMINA_INLINE PlacedNetwork Trainer::Evaluator::place(const Trainer& of) {
  PlaceOptions o = of.placing(of.options_.evaluation_batch);
  const Split input = input_split(o.batch, o.ranks.size());
  if (!o.splits.empty() && o.splits[0].batch != input.batch) o.splits[0] = input;
  o.backend = of.network_.placing().backend;
  o.recompute.clear(), o.shard_optimizer = false;
  o.training = false, o.parameters_of = &of.network_, o.micro_batches = 1;
  return naming("evaluation batch", [&] { return of.network_.network().place(std::move(o)); });
}

LAMINA_INLINE Context Trainer::load(const Batch& batch, const PlacedNetwork& network,
                                    Targets& targets, bool stop, int micro_batch,
                                    int micro_batches) {
  const View& x = network.x();
  const std::int64_t rows = x.shape.n;
  check(batch.size == micro_batches * rows, "the batch has ", batch.size, " rows, expected ",
        micro_batches * rows);
  const View images = on_host(batch.images + micro_batch * x.shape.size(), x.shape);
  stream_.run(Pass::forward, "copy batch", [&] {
    if (rows > 0) load_images(images, network);
    targets.load(stream_, static_cast<const char*>(batch.targets) +
                              std::size_t(micro_batch) * targets.loaded().bytes());
  });
  return {.stream = stream_,
          .seed = options_.seed,
          .step = progress_.step,
          .targets = targets.move(stream_),
          .stop = stop};
}

LAMINA_INLINE void Trainer::load_images(const View& images, const PlacedNetwork& network) {
  const View& x = network.x();
  const Backend& backend = *network.placing().backend;
  if (x.dtype == images.dtype) return put_bytes(stream_, images.data, x);
  if (backend.memory().on_host()) return backend.copy(images, x);
  if (images_.bytes() < images.bytes()) images_ = Tensor(images.form(), backend.memory());
  const View here = images_.view().at(0, images.form());
  put_bytes(stream_, images.data, here);
  backend.convert(stream_, Pass::forward, "convert batch", here, x);
}

LAMINA_INLINE void Trainer::advance(StepResult& r) {
  Progress& p = progress_;
  p.evaluation_due = false;
  r.epoch = p.epoch, r.index = ++p.batch, r.step = ++p.step;
  if (p.batch >= r.count) ++p.epoch, p.batch = 0;
}

LAMINA_INLINE void Trainer::describe() {
  progress_.rate = optimizer_.rate();
  progress_.settings["optimizer"] = optimizer_.name();
  progress_.settings["global_batch"] = text(options_.batch);
  if (!options_.frozen.empty()) progress_.settings["frozen"] = in_words(options_.frozen);
}

}  // namespace lamina
