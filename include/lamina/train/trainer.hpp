// Trainer: where a network, its ranks, an optimizer and data meet.
#pragma once

#include <lamina/comm/world.hpp>
#include <lamina/network/placed.hpp>
#include <lamina/tensor/repeated.hpp>
#include <lamina/train/balance.hpp>
#include <lamina/train/checkpoint.hpp>
#include <lamina/train/data/loader.hpp>
#include <lamina/train/kept.hpp>
#include <lamina/train/optimizer.hpp>
#include <lamina/train/schedule.hpp>
#include <lamina/train/snapshot.hpp>
#include <lamina/train/targets.hpp>

#include <array>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
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
  /// The batch is so many equal parts, each with batch norm statistics and dropout of its own,
  /// which the ranks share out and run in turn: losses and weights are the same bits on 1, 2, 4,
  /// ... ranks that run as many each, and may go on with more or fewer ranks (resize()). 0 = one
  /// part for each rank. All layers are split by samples then.
  int workers = 0;
  /// Of the ranks, so many train from the start, the first ones; the others are parked until
  /// resize() wants them. 0 = all of them, for good.
  int active = 0;
  /// With `active`: how many ranks there may be. Where that is more than there are,
  /// FitOptions::world starts them when resize() wants them. 0 = as many as there are.
  int most = 0;
  /// Of a rank that came so (World::late()): it is parked, and the others are training.
  bool late = false;
  /// How layers are split on another number of ranks than trains first, as `splits` says for those.
  /// Without it, resize() is for workers and for what is split by samples. The same on all ranks.
  /// Called when the Trainer is made, on all ranks, once for each number of them; where it throws
  /// Error, or layers cannot be split so, Trainer::why_not() says it.
  std::function<std::vector<Split>(int ranks)> splits_for = {};
  /// Workers of the ranks that train first, in proportion: {3, 1}. Empty: as many for each. What is
  /// not alike is added up in another order, and rounded otherwise.
  std::vector<int> balance = {};
  /// fit() moves workers from slow ranks to fast ones when that lasts and gains. Where the host
  /// does not know how long kernels take (devices), it does not.
  bool rebalance = false;
  /// Of an evaluation, over all ranks. If it is another one, the network is placed once more, for
  /// inference, with the same parameters; 0 = what runs at once in training.
  std::int64_t evaluation_batch = 0;
  std::string backend = "auto";          ///< see make_backend(); ranks may have unlike ones
  Precision dtype = DType::f32;          ///< see PlaceOptions
  std::vector<Split> splits = {};        ///< see PlaceOptions
  std::vector<bool> recompute = {};      ///< see PlaceOptions
  std::vector<std::string> frozen = {};  ///< see PlaceOptions
  bool fuse = false;                     ///< see PlaceOptions
  bool graph = true;        ///< a device that can records a step, and runs it as a whole
  bool communicate = true;  ///< false: collectives do nothing; wrong results, for timing only
  double bucket_mb = 25, first_bucket_mb = 1;
  std::optional<DType> sent_gradients = {};  ///< see PlaceOptions
  /// See PlaceOptions; by default LossScaling::usual().
  std::optional<LossScaling> loss_scaling = {};
  bool shard_optimizer = false;  ///< see PlaceOptions
  Schedule schedule = {};
  std::uint64_t seed = 1;  ///< of initial weights, order of the data, augmentation, dropout
};

/// How a network is placed that is trained so, apart from ranks, splits and back end, and from what
/// that fuses.
PlaceOptions placing_of(const TrainerOptions& options);

namespace detail {

/// SoftmaxCrossEntropy goes behind a network that does not end in a loss, and has the splits of the
/// input.
void add_loss(Network& network, TrainerOptions& options);

/// How the network is placed once more, for evaluation with a batch of its own on so many ranks.
PlaceOptions evaluating(PlaceOptions training, std::int64_t batch, int ranks);

}  // namespace detail

/// One training step, over the global batch.
struct StepResult {
  std::int64_t step = 0;              ///< steps done, this one included
  std::int64_t epoch = 0;             ///< from 0
  std::int64_t index = 0, count = 0;  ///< this step's number in the epoch, and steps in an epoch
  double loss = 0, top1 = 0;          ///< mean loss and fraction of hits before the update
  double rate = 0;                    ///< learning rate of the update
  std::optional<LossScale> loss_scale = {};  ///< after it; none without loss scaling
  double seconds = 0;                        ///< that the step took, waiting for data included
  double images_per_second = 0;
  bool stop = false;  ///< a rank had asked to stop when the step began: all ranks know at this step
  int resize = 0;     ///< rank 0 had announced that training goes on with so many ranks; 0 = not
};

/// How a training went on with other ranks, with workers shared out otherwise, or from a snapshot.
struct Resize {
  std::int64_t step = 0;  ///< steps done before
  int from = 0, to = 0;   ///< ranks
  double prepared = 0;    ///< seconds from when it was asked for until the pause began
  double pause = 0;       ///< seconds between two steps that it took, on rank 0
  double bytes = 0;       ///< of state that ranks sent to each other, summed over all
  std::string why = {};   ///< who asked for it; for whoever knows to fill in
  Shares workers = {};    ///< of each rank, from then on
  /// Where ranks are as before: the slowest rank's time over the mean, as it was and is to be.
  double imbalance = 0, expected = 0;
  /// Under `lamina launch`: ranks had ended, or some were lost, since a snapshot, and these have
  /// read it, which `from` had taken. The pause is since the last step, up to the first of these.
  bool restart = false;

  std::string text() const {
    if (restart)
      return format("restart at step %lld: %d -> %d ranks (", (long long)(step), from, to) + why +
             format("), pause %.1f s, %.1f MB read", pause, bytes / 1e6);
    if (from == to)
      return format("balance at step %lld: slowest over mean %.2f -> %.2f, pause %.1f ms, workers ",
                    (long long)(step), imbalance, expected, 1e3 * pause) +
             in_words(workers);
    return format("resize at step %lld: %d -> %d ranks", (long long)(step), from, to) +
           (why.empty() ? why : " (" + why + ")") +
           format(", pause %.1f ms, %.1f MB moved, prepared in %.2f s", 1e3 * pause, bytes / 1e6,
                  prepared);
  }
};

/// Means over all samples of a data set that have a target; where each pixel has one, over those.
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
  std::optional<LossScale> loss_scale = {};  ///< after its last step, where there is one

  std::string text() const {
    std::string s =
        format("epoch %lld  loss %.4f  top-1 %.2f %%", (long long)(number), loss, 100 * top1);
    if (validation)
      s += format("  validation: loss %.4f  top-1 %.2f %%  top-5 %.2f %%", validation->loss,
                  100 * validation->top1, 100 * validation->top5);
    if (loss_scale) s += "  " + loss_scale->text();
    return s + (seconds > 0 ? format("  %.1f images/s\n", images_per_second) : "\n");
  }
};

struct FitOptions {
  /// End after this many epochs or steps in all, whichever is earlier; 0 of one: there is only the
  /// other. Where both are 0, after an epoch.
  std::int64_t epochs = 0, steps = 0;
  const Dataset* validation = nullptr;  ///< evaluated after each epoch
  bool shuffle = true, augment = true;
  int loader_threads = 1;
  std::string save = {};        ///< checkpoint after each epoch and at the end
  std::int64_t save_every = 0;  ///< and after every so many steps
  int keep = 0;                 ///< how many of the checkpoints before it stay (train/kept.hpp)
  bool keep_best = false;       ///< and the one that evaluated best (train/kept.hpp)
  /// Called with each step's result: where a device runs behind its caller when the next step has
  /// been started, but for the last one before an evaluation or a checkpoint.
  std::function<void(const StepResult&)> on_step = {};
  /// Asked before each step and each batch of an evaluation, on every rank: where any of them says
  /// true, all ranks end after that step (a rank alone before it), with the checkpoint written, or
  /// leave the evaluation. See Trainer::request_stop().
  std::function<bool()> stop = {};
  /// With TrainerOptions::active, asked on rank 0 before each step while no resize is under way:
  /// with how many ranks training is to go on; 0 = as it is. What Trainer::why_not() objects to
  /// goes to on_refused; without it, that is an Error. The ranks that join make themselves ready
  /// while the others train on.
  std::function<int()> resize = {};
  /// Called on all ranks that trained before or train after; of Resize::restart on all that train.
  std::function<void(const Resize&)> on_resize = {};
  /// Starts ranks where resize() wants more than there are (TrainerOptions::most), while those that
  /// there are train on. It then is the larger one. On all ranks the one that the Trainer has.
  World* world = nullptr;
  /// Called on rank 0 where training cannot go on with as many as resize() wants, or a rank that
  /// was to join could not be started or make itself ready: training goes on without.
  std::function<void(const std::string&)> on_refused = {};
};

class Trainer;

namespace detail {

// Throw, on all ranks the same Error, where those have other options, or another state, than rank 0
// (comm/alike.hpp). In train/impl/alike.hpp.
void check_alike(const Communicator&, const Optimizer&, const TrainerOptions&);
void check_alike(const Communicator&, const FitOptions&, const Progress&);
/// Compares some of the images, too.
void check_alike(const Communicator&, const Dataset&, const LoaderOptions&);

}  // namespace detail

class Trainer {
 public:
  /// Places the network, with SoftmaxCrossEntropy behind it if it does not end in a loss, and draws
  /// its initial weights. Collective over `ranks`, which may be a World; throws Error, on all of
  /// them, where they have unlike networks or options.
  Trainer(Network network, const Communicator& ranks, Optimizer optimizer,
          TrainerOptions options = {});

  /// With its loss. Throws Error where this rank is parked.
  PlacedNetwork& network() { return here().network; }
  const PlacedNetwork& network() const { return here().network; }
  const Optimizer& optimizer() const { return optimizer_; }
  /// What all takes on this rank: the network, the optimizer's states and, where an evaluation has
  /// a batch of its own, the network for that.
  Memory memory() const;
  /// Bytes of the optimizer's state on this rank.
  std::size_t state_bytes() const { return here().states.bytes(); }
  const TrainerOptions& options() const { return options_; }
  /// Those that train; this rank alone where it is parked.
  const Communicator& ranks() const { return ranks_; }
  /// Whether this rank trains now, and is not parked.
  bool active() const { return here_ != nullptr; }
  /// Why training cannot go on with so many ranks, in one line; empty where it can. To be called
  /// on any thread.
  std::string why_not(int ranks) const;
  /// Training goes on with the first `ranks` of those that were given to the constructor. To be
  /// called between two steps, on all ranks that train before or after: the last ones join, and get
  /// the state from those that have it, or leave, and give back their memory. What batches a rank
  /// takes is other then: loaders are to be made anew. fit() does all that when it is asked to.
  /// `from`: how many train now, which a parked rank cannot know. Throws Error, on all of them,
  /// where why_not() says so.
  Resize resize(int ranks, int from);
  Resize resize(int ranks) { return resize(ranks, ranks_.size()); }
  /// How many workers each rank that trains runs; empty without workers.
  Shares workers() const { return options_.workers > 0 ? shares(ranks_.size()) : Shares(); }
  /// From the next step on it is so many, one at least for each. To be called between two steps, on
  /// all ranks that train. Loaders are to be made anew.
  void rebalance(Shares workers);
  /// On a parked rank: makes kernels and memory, so that resize(ranks) finds them. Others train on.
  void prepare(int ranks);
  Stream& stream() { return stream_; }
  /// Where training stands; what a checkpoint carries beside tensors.
  Progress& progress() { return progress_; }
  const Progress& progress() const { return progress_; }
  /// Progress::options of this run; those of progress() are of whoever saved last.
  std::map<std::string, std::string> own_options() const;

  /// Asks all ranks to end the training after the next step to be started, whose StepResult::stop
  /// they find set: it is known with its loss, so that they agree and no step takes longer. Where
  /// ranks do not communicate (TrainerOptions) each has its own way.
  void request_stop(bool on = true) { stop_ = on; }

  /// A loader of this rank's part of the global batches, from where training stands on, or of what
  /// an evaluation runs at once. Collective; throws Error, on all ranks, where they have unlike
  /// data.
  Loader loader(const Dataset& data, bool training, const FitOptions& o = {}) const;

  /// Forward, backward and update on the loader's next batch, which must be the one where training
  /// stands (progress(), which may be set). `total` is the number of steps that training will take,
  /// for the schedule. The first step throws Error, on all ranks, where they have unlike weights,
  /// or share a loss of which they found unlike values.
  StepResult step(Loader& loader, std::int64_t total) {
    start(loader, total);
    return finish();
  }
  /// The same on a batch of the caller's, with `per_epoch` batches in an epoch. Throws Error if the
  /// loss is not finite.
  StepResult step(const Batch& batch, std::int64_t per_epoch, std::int64_t total) {
    start(batch, per_epoch, total);
    return finish();
  }

  // The two halves of a step, for devices that run behind their caller: with the next step started
  // before this one is finished they never run dry. Two steps can be under way.
  void start(Loader& loader, std::int64_t total);
  void start(const Batch& batch, std::int64_t per_epoch, std::int64_t total);
  /// Waits for the step that was started first. Throws Error if its loss is not finite.
  StepResult finish();
  /// How many steps have been started and not finished.
  int under_way() const { return int(under_way_.size()); }
  /// Whether steps are recorded, and if not, why: a line to be shown. Empty where no device runs
  /// them, or that is not known yet.
  std::string graph() const;
  /// Whether fit() starts the next step before it finishes one: where a device runs behind its
  /// caller, unless somebody wants to see each step alone, or others compute on the host: what a
  /// step tells all of them they must hear at the same time.
  bool ahead() const { return run_ahead_ && !unlike_backends_ && stream_.queue() != nullptr; }
  void run_ahead(bool on) { run_ahead_ = on; }

  /// Over all samples of a data set that have a label, each counted once, without dropout and with
  /// running statistics. Training goes on as if it had not been.
  Evaluation evaluate(const Dataset& data, int loader_threads = 1) {
    return *evaluate_unless(
        data, [] { return false; }, loader_threads);
  }
  /// The same, but nothing where `stop`, which is asked before each batch, says true on any rank.
  std::optional<Evaluation> evaluate_unless(const Dataset& data, const std::function<bool()>& stop,
                                            int loader_threads = 1);

  /// Everything that resuming needs. On failure the file is what it was, and all ranks throw: also
  /// where a parameter is not finite, or has other values on ranks that should have the same, since
  /// what is ruined must not replace what is not. `score` is what the network reached, where that
  /// is to be remembered.
  void save(const std::string& path, std::optional<Score> score = {});
  /// Continues from a checkpoint of the same model, optimizer, global batch and seed. Throws Error,
  /// before anything has changed, if it is of others. Returns Resumed::averaged.
  std::vector<std::string> resume(const std::string& path);

  /// Where `lamina launch` watches over the job: goes on from the newest snapshot, if that is ahead
  /// of where training stands, and says whether it does; from here on snapshots can be taken.
  /// Elsewhere it does nothing. fit() calls it; a loop of one's own does so once, before its first
  /// step. Collective; throws Error as resume() does.
  bool recover();
  /// Whether it is time to take one: the same on all ranks.
  bool snapshot_due() const { return snapshots_ && snapshots_->due(progress_.step); }
  /// Takes one. No step may be under way. Collective; throws Error as save() does.
  void snapshot();

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

  /// Samples over all ranks.
  std::int64_t at_once() const {
    return options_.micro_batch > 0 ? options_.micro_batch : options_.batch;
  }
  int micro_batches() const { return int(options_.batch / at_once()); }
  bool evaluates_apart() const {
    return options_.evaluation_batch != 0 && options_.evaluation_batch != at_once();
  }

  /// The network once more, for evaluation.
  struct Evaluator {
    explicit Evaluator(const Trainer& of) : network(place(of)), targets(network) {}

    PlacedNetwork network;
    Targets targets;

   private:
    static PlacedNetwork place(const Trainer& of);
  };

  /// The network where it is placed, and all that belongs to it.
  struct Instance {
    explicit Instance(PlacedNetwork placed);
    /// As PlacedNetwork::share(): what was recorded is of other turns.
    void share(Workers workers);

    PlacedNetwork network;
    Tensor states = {};
    Targets targets;
    std::array<PendingOutcome, 2> outcomes = {};  ///< of steps in turn
    std::vector<Repeated> turns = {};             ///< of a step, the last one with the update
    View found = {};                              ///< what the loss found in a step
    std::int64_t steady_from = 0;  ///< the step from which on all ranks record; 0 = not known
    std::optional<Evaluator> evaluation = {};
  };
  Instance& here() const {
    check(here_ != nullptr, "this rank is parked: it has no network");
    return *here_;
  }

  void settle();
  PlaceOptions placing(const Communicator& ranks) const;
  void place_evaluator();
  PlacedNetwork prepare(PlaceOptions options) const;
  std::unique_ptr<Instance> allocate(PlacedNetwork placed) const;
  LoaderOptions loading(bool training, const FitOptions& o, int rank, int ranks) const;
  // In train/impl/elastic.hpp.
  void gather_teams();
  /// What ranks that train have to do with those that came.
  struct Meeting {
    Communicator all;
    std::vector<Communicator> teams = {};
  };
  void compare(const Communicator& all, bool some_are_late) const;
  std::vector<Communicator> teams_of(const Communicator& all) const;
  Meeting meet(const Communicator& larger) const;
  void adopt(Meeting meeting);
  struct Ways {
    std::vector<Split> splits = {};  ///< of each layer
    std::string why_not = {};        ///< training cannot go on so
  };
  void find_ways();
  void find_ways(int ranks, Ways& ways) const;
  void settle_shares();
  void share_gradients(const PlacedNetwork* placed);
  Workers workers_of(const Communicator& ranks) const;
  Shares shares(int ranks) const;
  std::vector<Split> splits(int ranks) const;
  void place_anew(int to, int from, Resize& resize);
  void share_anew(int to, int from, Resize& resize);
  void note_balance();
  void warm_up();
  void rehearse(int ranks);
  std::size_t turns_lack(int ranks);
  void reserve(MemorySpace& memory, std::size_t bytes);
  void check_free(const MemorySpace& memory, std::size_t bytes) const;
  void give_back();
  void tell_progress(const Communicator& ranks);
  double send_state(const Communicator& ranks, int from);
  void share_out(const Communicator& ranks, int from, const View& all, std::vector<Pending>& sent);

  /// Moves a batch, or a micro-batch of it, into a network.
  Context load(const Batch& batch, const PlacedNetwork& network, Targets& targets, double stop,
               int micro_batch = 0, int micro_batches = 1);
  void load_images(const Batch& batch, std::int64_t first, const PlacedNetwork& network);
  void train_turns(const Batch& batch, double rate);
  void evaluate_turns(const Batch& batch, bool stop);
  bool steady() const;

  /// A step that was started.
  struct UnderWay {
    StepResult result;
    double begin = 0;          ///< seconds of now()
    std::int64_t samples = 0;  ///< over all ranks
  };
  /// Throws Error where steps are under way that `what` would have to wait for.
  void check_finished(const char* what) const;
  /// The same where as many are as can be.
  void check_room() const;
  /// One step more: says which.
  void advance(StepResult& r);

  /// What a checkpoint must agree on with the run that continues it, and what lies with the
  /// kernels.
  void describe();
  /// Progress::loss_scale is that of the network, which is waited for.
  void note_loss_scale();
  /// The network goes on with Progress::loss_scale.
  void take_loss_scale();

  Communicator all_, ranks_;         ///< that were given; that train
  std::vector<Communicator> teams_;  ///< the first i + 1 of all, where ranks come and go
  std::vector<Ways> ways_;           ///< on i + 1 ranks, where they come and go without workers
  Tensor gradients_;  ///< where all ranks of a node can reach them, for those who train
  Optimizer optimizer_;
  TrainerOptions options_;
  Network network_;  ///< with its loss
  Stream stream_;
  std::unique_ptr<Instance> here_, prepared_;
  Reserve reserve_;  ///< memory for what is to be placed next
  std::vector<UnderWay> under_way_;
  double finished_ = 0;  ///< when the last step was: seconds of now()
  Progress progress_;
  std::shared_ptr<Snapshots> snapshots_;     ///< null where no launcher asks for any
  std::optional<Snapshots::Before> before_;  ///< from whose snapshot it goes on, up to a step
  double before_at_ = 0;                     ///< seconds of now()
  bool stop_ = false, run_ahead_ = true;
  int announced_ = 0;  ///< on rank 0: for the next step to tell
  int most_ = 1;       ///< ranks that there may be; all_ may grow
  int requests_ = 0;   ///< on rank 0: resizes that it asked others to prepare for
  Shares shares_;      ///< of workers among the ranks that train; empty: as many for each
  bool unlike_backends_ = false;  ///< see PlaceOptions
  Balance balance_;
};

/// A single-pass range of epochs; incrementing trains the next one.
class Trainer::Fit {
 public:
  Fit(Trainer& trainer, std::unique_ptr<Dataset> owned, const Dataset& data, FitOptions options);

  Fit(Fit&&) = delete;
  ~Fit() { end_rehearsal(), settle_growth(), let_go(); }

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
  bool next();
  bool more() const { return at().step < total_ || awaited(); }
  /// Whether an evaluation comes next: that which a run before this one did not come to.
  bool awaited() const {
    return at().evaluation_due && (options_.validation || options_.keep_best);
  }
  Progress& at() const { return trainer_.progress_; }

  /// Up to the end of the epoch, or of the training, or until this rank is parked.
  void train();
  // In train/impl/growth.hpp: ranks that are started meanwhile.
  struct Grown {
    World world;
    Meeting meeting;
  };
  bool late() const { return trainer_.options_.late; }
  void compare(const Communicator& all) const;
  void join();
  void grow(int ranks);
  bool grown() const;
  std::string settle_growth() noexcept;
  void end_growth();
  void hear_announcement(int ranks);
  // In train/impl/resizes.hpp: ranks that come and go.
  bool elastic() const { return !trainer_.teams_.empty(); }
  bool leads() const { return elastic() && trainer_.all_.rank() == 0; }
  void tell(int first, int last, const std::string& note) const;
  bool park();
  bool answer(const std::string& note);
  void lead();
  bool take_request();
  void prepare_others();
  void tell_of_stop();
  void hear();
  void count_ready(std::istream& in);
  void follow();
  void rehearse(int request, int ranks);
  std::string rehearsed();
  void call_off_rehearsal();
  void end_rehearsal() noexcept;
  void refuse(const std::string& why);
  void get_ready();
  void make_room(bool reserved, const Workers& workers);
  void note_restart();
  void look_after_balance();
  void change_ranks(int from);
  std::string try_to_prepare(int request, int ranks, std::size_t lacking);
  void learn_best();
  void let_go() noexcept;
  std::future<Loader> make_loader(int rank, int ranks, std::int64_t epoch,
                                  std::int64_t batch) const;
  /// Steps, until no more than `left` are under way.
  void finish(int left);
  void sum_up();
  void evaluate();
  bool asked() const;
  /// With others to ask, it takes a step more to agree.
  bool alone() const { return trainer_.ranks_.size() == 1; }

  /// Everything that saving needs is there: tried now, not after an epoch.
  void prepare_saving();
  void save();
  void save_best();

  Trainer& trainer_;
  std::unique_ptr<Dataset> owned_;
  FitOptions options_;
  const Dataset& data_;
  std::int64_t batches_ = 0;  ///< in an epoch
  std::optional<Loader> loader_;
  std::int64_t total_ = 0;
  Epoch epoch_;
  bool stopped_ = false, let_go_ = false, told_of_stop_ = false;
  std::optional<Score> best_;
  /// What rank 0 was asked for.
  struct Request {
    int ranks = 0;     ///< 0: nothing
    int first = 0;     ///< from which one on ranks make themselves ready
    int missing = 0;   ///< of these
    double begin = 0;  ///< seconds of now()
    bool announced = false;
    bool grows = false;  ///< some are to be started first
  };
  /// What all that train have agreed upon.
  struct Coming {
    int ranks = 0;         ///< 0: nothing
    Shares workers = {};   ///< where ranks stay, and only these are shared out anew
    std::int64_t at = -1;  ///< after so many steps
    double imbalance = 0, expected = 0;
    std::future<Loader> loader = {};
    double pause = 0;  ///< seconds between two steps that it has taken so far
  };
  Request request_;
  Coming coming_;
  std::future<std::string> rehearsal_;
  bool called_off_ = false;  ///< nobody waits for the rehearsal
  std::future<Grown> growth_;
};

}  // namespace lamina
