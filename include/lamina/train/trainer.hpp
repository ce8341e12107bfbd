// Trainer: where a network, its ranks, an optimizer and data meet.
#pragma once

#include <lamina/base/naming.hpp>
#include <lamina/comm/world.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/layers/softmax_cross_entropy.hpp>
#include <lamina/network/placed.hpp>
#include <lamina/train/checkpoint.hpp>
#include <lamina/train/data/loader.hpp>
#include <lamina/train/kept.hpp>
#include <lamina/train/labels.hpp>
#include <lamina/train/optimizer.hpp>
#include <lamina/train/schedule.hpp>

#include <cmath>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lamina {

struct TrainerOptions {
  std::int64_t batch = 32;  ///< global, over all ranks
  /// Samples that run at once, over all ranks, where memory does not hold a whole batch, which must
  /// be a multiple; 0 = all. Gradients add up over the micro-batches of a step. Each has batch norm
  /// statistics of its own; without batch norm all is as if the batch ran at once.
  std::int64_t micro_batch = 0;
  /// Of an evaluation, over all ranks. If it is another one, the network is placed once more, for
  /// inference, with the same parameters; 0 = what runs at once in training.
  std::int64_t evaluation_batch = 0;
  std::string backend = "auto";  ///< see make_backend()
  DType dtype = DType::f32;
  std::vector<Split> splits = {};    ///< see PlaceOptions
  std::vector<bool> recompute = {};  ///< see PlaceOptions
  bool communicate = true;  ///< false: collectives do nothing; wrong results, for timing only
  double bucket_mb = 25, first_bucket_mb = 1;
  bool shard_optimizer = false;  ///< see PlaceOptions
  Schedule schedule = {};
  std::uint64_t seed = 1;  ///< of initial weights, order of the data, augmentation, dropout
};

/// One training step, over the global batch.
struct StepResult {
  std::int64_t step = 0;              ///< steps done, this one included
  std::int64_t epoch = 0;             ///< from 0
  std::int64_t index = 0, count = 0;  ///< this step's number in the epoch, and steps in an epoch
  double loss = 0, top1 = 0;          ///< mean loss and fraction of hits before the update
  double rate = 0;                    ///< learning rate of the update
  double seconds = 0;                 ///< that the step took, waiting for data included
  double images_per_second = 0;
  bool stop = false;  ///< a rank had asked to stop when the step began: all ranks know at this step
};

/// Means over all samples of a data set that have a label.
struct Evaluation {
  double loss = 0, top1 = 0, top5 = 0;
  std::int64_t samples = 0;
};

/// What an epoch brought.
struct Epoch {
  std::int64_t number = 0;    ///< from 1
  double loss = 0, top1 = 0;  ///< means over its steps, those before a resumed run included
  double seconds = 0, images_per_second = 0;  ///< of the steps of this run; 0 where it made none
  std::optional<Evaluation> validation = {};

  std::string text() const {
    std::string s =
        format("epoch %lld  loss %.4f  top-1 %.2f %%", (long long)(number), loss, 100 * top1);
    if (validation)
      s += format("  validation: loss %.4f  top-1 %.2f %%  top-5 %.2f %%", validation->loss,
                  100 * validation->top1, 100 * validation->top5);
    return s + (seconds > 0 ? format("  %.1f images/s\n", images_per_second) : "\n");
  }
};

struct FitOptions {
  std::int64_t epochs = 1;
  std::int64_t steps = 0;               ///< end after this many steps in all, if above 0
  const Dataset* validation = nullptr;  ///< evaluated after each epoch
  bool shuffle = true, augment = true;
  int loader_threads = 1;
  std::string save = {};        ///< checkpoint after each epoch and at the end
  std::int64_t save_every = 0;  ///< and after every so many steps
  int keep = 0;                 ///< how many of the checkpoints before it stay (train/kept.hpp)
  bool keep_best = false;       ///< and the one that evaluated best (train/kept.hpp)
  std::function<void(const StepResult&)> on_step = {};
  /// Asked before each step and each batch of an evaluation, on every rank: where any of them says
  /// true, all ranks end after that step (a rank alone before it), with the checkpoint written, or
  /// leave the evaluation. See Trainer::request_stop().
  std::function<bool()> stop = {};
};

class Trainer;

namespace detail {

// Throw, on all ranks the same Error, where those have other options, or another state, than rank 0
// (comm/alike.hpp). In src/train/alike.cpp.
void check_alike(const Communicator&, const Optimizer&, const TrainerOptions&);
void check_alike(const Communicator&, const FitOptions&, const Progress&);
/// Compares some of the images, too.
void check_alike(const Communicator&, const Dataset&, const LoaderOptions&);

/// Throws, on all ranks the same Error, where a parameter is not finite on one of them.
void check_finite(const PlacedNetwork&, const std::string& path, std::int64_t step);

}  // namespace detail

class Trainer {
 public:
  /// Places the network, with SoftmaxCrossEntropy behind it if it does not end in a loss, and draws
  /// its initial weights. Collective over `ranks`, which may be a World; throws Error, on all of
  /// them, where they have unlike networks or options.
  Trainer(Network network, const Communicator& ranks, Optimizer optimizer,
          TrainerOptions options = {})
      : ranks_(ranks),
        optimizer_(std::move(optimizer)),
        options_(std::move(options)),
        network_(place(std::move(network))) {
    states_ = optimizer_.attach(network_);
    network_.initialize(options_.seed);
    labels_ = Labels(network_);
    if (options_.evaluation_batch != 0 && options_.evaluation_batch != at_once())
      evaluation_.emplace(*this);
    stream_.silence(!options_.communicate);
    progress_.seed = options_.seed;
  }

  /// With its loss.
  PlacedNetwork& network() { return network_; }
  const PlacedNetwork& network() const { return network_; }
  const Optimizer& optimizer() const { return optimizer_; }
  /// What all takes on this rank: the network, the optimizer's states and, where an evaluation has
  /// a batch of its own, the network for that.
  Memory memory() const {
    Memory m = optimizer_.memory(network_);
    if (evaluation_) m += evaluation_->network.memory();
    return m;
  }
  /// Bytes of the optimizer's state on this rank.
  std::size_t state_bytes() const { return states_.bytes(); }
  const TrainerOptions& options() const { return options_; }
  const Communicator& ranks() const { return ranks_; }
  Stream& stream() { return stream_; }
  /// Where training stands; what a checkpoint carries beside tensors.
  Progress& progress() { return progress_; }

  /// Asks all ranks to end the training after the next step, whose StepResult::stop they find set:
  /// it is known with its loss, so that they agree and no step takes longer. Where ranks do not
  /// communicate (TrainerOptions) each has its own way.
  void request_stop(bool on = true) { stop_ = on; }

  /// A loader of this rank's part of the global batches, or of what an evaluation runs at once.
  /// Collective; throws Error, on all ranks, where they have unlike data.
  Loader loader(const Dataset& data, bool training, const FitOptions& o = {}) const {
    const Network& network = network_.network();
    const std::int64_t classes = network.input_shapes(network.graph().back(), 1)[0].c;
    check(data.classes() <= classes, data.name(), ": has ", data.classes(),
          " classes, but the network ends in ", classes);
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

  /// Forward, backward and update on the loader's next batch. `total` is the number of steps that
  /// training will take, for the schedule.
  StepResult step(Loader& loader, std::int64_t total) {
    const double begin = now();
    const Batch& batch = next(loader);
    StepResult r = step(batch, loader.batches(), total);
    r.seconds = now() - begin;
    r.images_per_second = double(batch.global_valid) / r.seconds;
    return r;
  }

  /// The same on a batch of the caller's, with `per_epoch` batches in an epoch. Throws Error if the
  /// loss is not finite.
  StepResult step(const Batch& batch, std::int64_t per_epoch, std::int64_t total) {
    const double begin = now();
    StepResult r;
    r.count = per_epoch;
    r.rate = options_.schedule.at(optimizer_.rate(), progress_.step, per_epoch, total);
    const Outcome found = run(batch, r.rate);
    r.loss = found.loss, r.top1 = found.top1 / std::max(found.rows, 1.0), r.stop = found.stop;
    advance(r);
    r.seconds = now() - begin;
    r.images_per_second = double(batch.global_valid) / r.seconds;
    check(std::isfinite(r.loss) || stream_.silent(), "step ", r.step, ": the loss is ",
          std::isnan(r.loss) ? "not a number" : "infinite",
          ": a lower learning rate, warm-up or gradient clipping may help");
    return r;
  }

  /// Over all samples of a data set that have a label, each counted once, without dropout and with
  /// running statistics. Training goes on as if it had not been.
  Evaluation evaluate(const Dataset& data) {
    return *evaluate_unless(data, [] { return false; });
  }
  /// The same, but nothing where `stop`, which is asked before each batch, says true on any rank.
  std::optional<Evaluation> evaluate_unless(const Dataset& data,
                                            const std::function<bool()>& stop) {
    Loader loader = this->loader(data, false);
    PlacedNetwork& network = evaluation_ ? evaluation_->network : network_;
    Labels& labels = evaluation_ ? evaluation_->labels : labels_;
    if (evaluation_) network.refresh();
    Evaluation e;
    for (std::int64_t i = 0; i < loader.batches(); ++i) {
      Context context = load(next(loader), network, labels, stop());
      context.training = false;
      network.forward(context);
      const Outcome found = outcome(network, stream_, context.stop);
      if (found.stop) return std::nullopt;
      e.loss += found.loss * found.rows, e.top1 += found.top1, e.top5 += found.top5;
      e.samples += std::int64_t(found.rows);
    }
    check(e.samples > 0, data.name(), ": has no image with a label to evaluate");
    for (double* sum : {&e.loss, &e.top1, &e.top5}) *sum /= double(e.samples);
    return e;
  }

  /// Everything that resuming needs. On failure the file is what it was, and all ranks throw: also
  /// where a parameter is not finite, since what is ruined must not replace what is not. `score` is
  /// what the network reached, where that is to be remembered.
  void save(const std::string& path, std::optional<Score> score = {}) {
    if (!stream_.silent()) detail::check_finite(network_, path, progress_.step);
    describe();
    progress_.score = score;
    save_checkpoint(path, network_, progress_, ranks_);
  }
  /// Continues from a checkpoint of the same model, optimizer, global batch and seed. Throws Error,
  /// before anything has changed, if it is of others. Returns Resumed::averaged.
  std::vector<std::string> resume(const std::string& path) {
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

  class Fit;
  /// Trains epoch by epoch as the result is iterated:
  /// `for (const Epoch& epoch : trainer.fit(data, {.epochs = 10})) ...`
  /// The data must outlive the result.
  Fit fit(const Dataset& data, FitOptions options = {});
  Fit fit(std::unique_ptr<Dataset> data, FitOptions options = {});

 private:
  const Batch& next(Loader& loader) {
    const Batch* batch = nullptr;
    stream_.run(Pass::forward, "wait for data", [&] { batch = &loader.next(); });
    return *batch;
  }

  /// Forward, backward and update on a batch.
  Outcome run(const Batch& batch, double rate) {
    Outcome all;
    for (int i = 0; i < micro_batches(); ++i) {
      Context context = load(batch, network_, labels_, stop_, i, micro_batches());
      network_.forward(context);
      if (micro_batches() == 1) {
        network_.backward(context);  // nobody waits for the loss before the update
        optimizer_.update(network_, stream_, rate, progress_.step + 1);
        return outcome(network_, stream_, context.stop);
      }
      const Outcome found = outcome(network_, stream_, context.stop);
      network_.backward(context);
      all.loss += found.loss * found.rows, all.top1 += found.top1, all.top5 += found.top5;
      all.rows += found.rows, all.stop |= found.stop;
    }
    const double rows = std::max(all.rows, 1.0);
    all.loss /= rows;
    optimizer_.update(network_, stream_, rate, progress_.step + 1, double(options_.batch) / rows);
    return all;
  }
  /// Samples over all ranks.
  std::int64_t at_once() const {
    return options_.micro_batch > 0 ? options_.micro_batch : options_.batch;
  }
  int micro_batches() const { return int(options_.batch / at_once()); }

  PlaceOptions placing(std::int64_t batch) const {
    return {.batch = batch,
            .backend = make_backend(options_.backend, options_.dtype),
            .ranks = ranks_,
            .splits = options_.splits,
            .recompute = options_.recompute,
            .dtype = options_.dtype,
            .bucket_mb = options_.bucket_mb,
            .first_bucket_mb = options_.first_bucket_mb,
            .shard_optimizer = options_.shard_optimizer,
            .micro_batches = micro_batches()};
  }
  PlacedNetwork place(Network network) {
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

  /// The network once more, for evaluation.
  struct Evaluator {
    explicit Evaluator(const Trainer& of) : network(place(of)), labels(network) {}

    PlacedNetwork network;
    Labels labels;

   private:
    static PlacedNetwork place(const Trainer& of) {
      PlaceOptions o = of.placing(of.options_.evaluation_batch);
      const Split input = input_split(o.batch, o.ranks.size());
      if (!o.splits.empty() && o.splits[0].batch != input.batch) o.splits[0] = input;
      o.backend = of.network_.placing().backend;
      o.recompute.clear(), o.shard_optimizer = false;
      o.training = false, o.parameters_of = &of.network_, o.micro_batches = 1;
      return naming("evaluation batch", [&] { return of.network_.network().place(std::move(o)); });
    }
  };

  /// Moves a batch, or a micro-batch of it, into a network.
  Context load(const Batch& batch, const PlacedNetwork& network, Labels& labels, bool stop,
               int micro_batch = 0, int micro_batches = 1) {
    const View& x = network.x();
    const std::int64_t rows = x.shape.n;
    check(batch.size == micro_batches * rows, "the batch has ", batch.size, " rows, expected ",
          micro_batches * rows);
    const View images = on_host(batch.images + micro_batch * x.shape.size(), x.shape);
    stream_.run(Pass::forward, "copy batch", [&] {
      if (x.dtype == DType::f32)
        copy_bytes(images, x);
      else
        network.placing().backend->copy(images, x);
      copy_bytes(on_host(batch.labels + micro_batch * rows, {rows, 1, 1, 1}), labels.loaded());
    });
    return {.stream = stream_,
            .seed = options_.seed,
            .step = progress_.step,
            .labels = labels.move(stream_),
            .stop = stop};
  }

  /// One step is done: says which.
  void advance(StepResult& r) {
    Progress& p = progress_;
    if (p.batch == 0) p.loss = p.top1 = 0;
    p.loss += r.loss, p.top1 += r.top1, p.evaluation_due = false;
    r.epoch = p.epoch, r.index = ++p.batch, r.step = ++p.step;
    if (p.batch >= r.count) ++p.epoch, p.batch = 0;
  }

  /// What a checkpoint must agree on with the run that continues it.
  void describe() {
    progress_.rate = optimizer_.rate();
    progress_.settings["optimizer"] = optimizer_.name();
    progress_.settings["global_batch"] = text(options_.batch);
  }

  Communicator ranks_;
  Optimizer optimizer_;
  TrainerOptions options_;
  PlacedNetwork network_;
  Stream stream_;
  Tensor states_;
  Labels labels_;
  std::optional<Evaluator> evaluation_;
  Progress progress_;
  bool stop_ = false;
};

/// A single-pass range of epochs; incrementing trains the next one.
class Trainer::Fit {
 public:
  Fit(Trainer& trainer, std::unique_ptr<Dataset> owned, const Dataset& data, FitOptions options)
      : trainer_(trainer),
        owned_(std::move(owned)),
        options_(std::move(options)),
        loader_(trainer.loader(data, true, options_)),
        total_(loader_.batches() * options_.epochs) {
    check(loader_.batches() > 0, data.name(), ": has fewer images than the global batch of ",
          trainer.options_.batch);
    if (options_.steps > 0) total_ = options_.steps;
    detail::check_alike(trainer.ranks_, options_, trainer.progress_);
    if (options_.validation) {
      check(options_.validation->size() > 0, options_.validation->name(), ": has no images");
      trainer.loader(*options_.validation, false);  // fail now, not after an epoch
    }
    prepare_saving();
    loader_.seek(trainer.progress_.epoch, trainer.progress_.batch);
  }

  std::int64_t total_steps() const { return total_; }
  /// Whether it has ended because a rank asked for it: the same on all ranks.
  bool stopped() const { return stopped_; }

  class iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Epoch;
    using difference_type = std::ptrdiff_t;
    using pointer = const Epoch*;
    using reference = const Epoch&;

    explicit iterator(Fit* fit) : fit_(fit) { ++*this; }
    const Epoch& operator*() const { return fit_->epoch_; }
    const Epoch* operator->() const { return &fit_->epoch_; }
    iterator& operator++() {
      if (fit_ && !fit_->next()) fit_ = nullptr;
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return fit_ == nullptr; }

   private:
    Fit* fit_;
  };
  iterator begin() { return iterator(this); }
  std::default_sentinel_t end() const { return {}; }

 private:
  bool next() {
    const bool another = more() && !stopped_;
    stopped_ = stopped_ || (another && alone() && asked());
    if (another && !stopped_) {
      epoch_ = {};
      if (!awaited()) train();
      sum_up();
      if (!stopped_) evaluate();
    }
    if (stopped_) trainer_.request_stop(false);  // it is done: another fit() trains on
    return another;
  }
  bool more() const { return at().step < total_ || awaited(); }
  /// Whether an evaluation comes next: that which a run before this one did not come to.
  bool awaited() const {
    return at().evaluation_due && (options_.validation || options_.keep_best);
  }
  Progress& at() const { return trainer_.progress_; }

  /// Up to the end of the epoch, or of the training.
  void train() {
    std::int64_t images = 0;
    for (bool last = false; !last;) {
      trainer_.request_stop(asked());
      const StepResult r = trainer_.step(loader_, total_);
      epoch_.seconds += r.seconds, images += trainer_.options_.batch;
      if (options_.on_step) options_.on_step(r);
      stopped_ = r.stop || (alone() && asked());
      at().evaluation_due = r.index == r.count || r.step == total_;
      last = at().evaluation_due || stopped_;
      const bool due = options_.save_every > 0 && r.step % options_.save_every == 0;
      if (!options_.save.empty() && (due || last)) save();
    }
    epoch_.images_per_second = double(images) / epoch_.seconds;
  }
  void sum_up() {
    const auto steps = double(at().batch > 0 ? at().batch : loader_.batches());
    epoch_.number = at().epoch + (at().batch > 0);
    epoch_.loss = at().loss / steps, epoch_.top1 = at().top1 / steps;
  }
  void evaluate() {
    if (options_.validation) {
      epoch_.validation =
          trainer_.evaluate_unless(*options_.validation, [this] { return asked(); });
      stopped_ = !epoch_.validation;
      if (stopped_) return;
    }
    if (options_.keep_best) save_best();
    at().evaluation_due = false;
  }
  bool asked() const { return trainer_.stop_ || (options_.stop && options_.stop()); }
  /// With others to ask, it takes a step more to agree.
  bool alone() const { return trainer_.ranks_.size() == 1; }

  /// Everything that saving needs is there: tried now, not after an epoch.
  void prepare_saving() {
    check(options_.keep >= 0, "keep must not be negative, got ", options_.keep);
    check(!options_.save.empty() || (options_.keep == 0 && !options_.keep_best),
          "keep and keep_best need a file to save to");
    if (options_.save.empty()) return;
    try_checkpoint(options_.save, trainer_.network_, trainer_.ranks_);
    if (options_.keep_best)
      best_ = read_score(best_checkpoint(options_.save), options_.validation != nullptr,
                         trainer_.progress_, trainer_.ranks_);
  }
  void save() {
    if (options_.keep > 0) keep_checkpoint(options_.save, trainer_.ranks_);
    trainer_.save(options_.save);
    if (options_.keep > 0) drop_checkpoints(options_.save, options_.keep, trainer_.ranks_);
  }
  void save_best() {
    const Score score = epoch_.validation
                            ? Score{true, epoch_.validation->loss, epoch_.validation->top1}
                            : Score{false, epoch_.loss, epoch_.top1};
    if (!std::isfinite(score.loss) || (best_ && !score.better_than(*best_))) return;
    trainer_.save(best_checkpoint(options_.save), score);
    best_ = score;
  }

  Trainer& trainer_;
  std::unique_ptr<Dataset> owned_;
  FitOptions options_;
  Loader loader_;
  std::int64_t total_ = 0;
  Epoch epoch_;
  bool stopped_ = false;
  std::optional<Score> best_;
};

inline Trainer::Fit Trainer::fit(const Dataset& data, FitOptions options) {
  return Fit(*this, nullptr, data, std::move(options));
}
inline Trainer::Fit Trainer::fit(std::unique_ptr<Dataset> data, FitOptions options) {
  const Dataset& d = *data;
  return Fit(*this, std::move(data), d, std::move(options));
}

}  // namespace lamina
