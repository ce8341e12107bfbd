// Ranks that come and go in the middle of a training.
//
// Rank 0 always trains, and leads. It tells parked ranks by notes what to do; those that train
// learn with the loss of a step that after the one which follows it they go on with others: by
// then, all have their next loaders.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/base/naming.hpp>
#include <lamina/base/unbind_thread.hpp>
#include <lamina/comm/imagined.hpp>
#include <lamina/kernels/threads.hpp>
#include <lamina/network/detail/compare_ranks.hpp>
#include <lamina/network/detail/settle_splits.hpp>
#include <lamina/train/hand_over.hpp>
#include <lamina/train/trainer.hpp>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <sstream>
#include <thread>

namespace lamina {

/// A group for each number of ranks, made while all are there.
LAMINA_INLINE void Trainer::gather_teams() {
  const int active = options_.active, all = all_.size(), workers = options_.workers;
  check(0 <= active && active <= all, "active: expected a number of ranks from 0 to ", all,
        ", got ", active);
  check(options_.most == 0 || (active > 0 && options_.most >= all),
        "most: expected `active` with it, and no less than the ", all, " ranks there are, got ",
        options_.most);
  const int most = active > 0 ? active : all;
  check(workers == 0 || most <= workers, most, " ranks cannot share ", workers,
        workers == 1 ? " worker" : " workers");
  if (active > 0 || workers > 0) compare(all_, options_.late);
  if (active == 0) return;
  find_ways();
  teams_ = teams_of(all_);
  ranks_ = all_.rank() < active ? teams_[std::size_t(active) - 1] : Communicator();
}

LAMINA_INLINE std::vector<Communicator> Trainer::teams_of(const Communicator& all) const {
  std::vector<Communicator> teams;
  for (int n = 1; n <= all.size(); ++n) {
    std::vector<int> members(std::size_t(all.rank() < n ? n : 0));
    std::iota(members.begin(), members.end(), 0);
    teams.push_back(all.group(members));
  }
  return teams;
}

/// How layers are split on each number of ranks. All are asked for here, where the first networks
/// are placed: why_not() is called on any thread, and splits_for() may want to hear all ranks.
LAMINA_INLINE void Trainer::find_ways() {
  if (options_.workers > 0) return;
  const auto by_samples = [](const Split& s) {
    return s.ways() == s.batch && s.shares.batch.empty();
  };
  const bool unknown = !options_.splits_for && !std::ranges::all_of(options_.splits, by_samples);
  for (int n = 1; n <= most_; ++n) {
    Ways& ways = ways_.emplace_back();
    if (n == options_.active)
      ways.splits = options_.splits;
    else if (unknown)
      ways.why_not = "nobody says how layers are split on other ranks";
    else if (n <= at_once())
      find_ways(n, ways);
  }
}

/// With what placing would object to, in training or for evaluation.
LAMINA_INLINE void Trainer::find_ways(int ranks, Ways& ways) const {
  std::vector<Split>& s = ways.splits;
  try {
    if (options_.splits_for) s = options_.splits_for(ranks);
    if (!s.empty() && s.size() + 1 == network_.graph().size()) s.push_back(s[0]);  // the loss
    PlaceOptions o = placing_of(options_);
    o.splits = s;
    detail::settle_splits(network_, o.batch, ranks, o.training, o.splits);
    if (!evaluates_apart()) return;
    o.splits = s;
    o = detail::evaluating(std::move(o), options_.evaluation_batch, ranks);
    naming("evaluation batch",
           [&] { detail::settle_splits(network_, o.batch, ranks, o.training, o.splits); });
  } catch (const PeerError&) {
    throw;
  } catch (const Error& e) {
    ways.why_not = text("on ", ranks, ranks == 1 ? " rank: " : " ranks: ", e.what());
  }
}

/// Those of the options, for the ranks that train first.
LAMINA_INLINE void Trainer::settle_shares() {
  const std::vector<int>& balance = options_.balance;
  if (balance.empty()) return;
  const int ranks = options_.active > 0 ? options_.active : all_.size();
  check(options_.workers > 0, "balance: expected workers, which it shares out");
  check(int(balance.size()) == ranks, "balance: expected a number for each of ", ranks,
        " ranks, got ", balance.size());
  shares_ = apportion(options_.workers, std::vector<double>(balance.begin(), balance.end()));
}

/// Where gradients are to lie on each rank, also those that are to join: where ranks of a node
/// reach them. Memory of ranks that are parked is not touched.
LAMINA_INLINE void Trainer::share_gradients(const PlacedNetwork* placed) {
  const DType t = options_.dtype.gradients;
  const bool host = placed && placed->placing().backend->memory().on_host();
  const std::size_t mine = host ? placed->gradient_form().bytes() : 0;
  const auto all = all_.all_gather_value(mine);
  const std::size_t bytes = all[0];  // rank 0 always trains
  for (std::size_t r = 1; r < all.size(); ++r)
    check(all[r] == bytes || all[r] == 0, "rank ", r,
          " keeps its parameters otherwise than rank 0: ",
          "with workers expected the same back end and instruction set");
  if (bytes == 0) return;
  const Form form{{1, std::int64_t(bytes / size_of(t)), 1, 1}, t, {}};
  gradients_ = all_.tensor(form, host_memory(), placed != nullptr);
}

LAMINA_INLINE Workers Trainer::workers_of(const Communicator& ranks) const {
  return {options_.workers, ranks, part(options_.workers, shares(ranks.size()), ranks.rank())};
}

/// Workers of each rank.
LAMINA_INLINE Shares Trainer::shares(int ranks) const {
  if (int(shares_.size()) == ranks) return shares_;
  Shares s;
  for (int r = 0; r < ranks; ++r) s.push_back(int(part(options_.workers, ranks, r).size));
  return s;
}

LAMINA_INLINE void Trainer::rebalance(Shares workers) {
  check_finished("rebalance");
  const int all = std::accumulate(workers.begin(), workers.end(), 0);
  check(options_.workers > 0 && all == options_.workers && int(workers.size()) == ranks_.size() &&
            std::ranges::all_of(workers, [](int w) { return w > 0; }),
        "rebalance: expected ", options_.workers, " workers for ", ranks_.size(),
        " ranks, one at least for each, got ", all, " for ", workers.size());
  network().exchange_kept(stream_);
  shares_ = std::move(workers);
  here().share(workers_of(ranks_));
  balance_.restart();
}

/// What a worker took on each rank in the last step.
LAMINA_INLINE void Trainer::note_balance() {
  std::vector<double> seconds;
  int first = 0;
  for (const int workers : shares(ranks_.size())) {
    double all = 0;
    for (int w = first; w < first + workers; ++w) all += network().seconds_of(w);
    seconds.push_back(all / workers), first += workers;
  }
  balance_.add(std::move(seconds));
}

LAMINA_INLINE std::string Trainer::why_not(int ranks) const {
  const int workers = options_.workers;
  if (options_.active == 0) return "this training was not started to change its ranks";
  if (ranks < 1) return text("expected a rank or more, got ", ranks);
  if (ranks > most_)
    return text(ranks, " are more ranks than the ", most_,
                options_.most > 0 ? " that there may be" : " started");
  if (workers > 0 && ranks > workers)
    return text(ranks, " ranks cannot share ", workers, " workers");
  if (workers == 0 && ranks > at_once())
    return text(ranks, " ranks are more than the samples that run at once, ", at_once());
  return workers == 0 ? ways_[std::size_t(ranks) - 1].why_not : std::string();
}

/// Of each layer, as it is on so many ranks.
LAMINA_INLINE std::vector<Split> Trainer::splits(int ranks) const {
  return ways_.empty() ? options_.splits : ways_[std::size_t(ranks) - 1].splits;
}

LAMINA_INLINE void Trainer::prepare(int ranks) {
  check(here_ == nullptr, "prepare: this rank trains already");
  if (options_.workers == 0) return rehearse(ranks);
  prepared_ = allocate(prepare(placing(ranks_)));
  std::swap(here_, prepared_);
  warm_up();
  std::swap(here_, prepared_);
}

/// How a network is split depends on the others, with whom it can only be placed when they have
/// come to that, too. But kernels are cached, and memory on the host is kept in reserve. Who trains
/// takes no more than its part of half of what is free, if all ranks were on this host; and on a
/// device nothing, which may have no room for two networks.
LAMINA_INLINE void Trainer::rehearse(int ranks) {
  if (active() && !network().placing().backend->memory().on_host()) return;
  ImaginedRanks imagined(ranks);
  prepare(placing(imagined.as(0)));  // who asks all others, and so comes first
  const PlacedNetwork mine = prepare(placing(imagined.as(all_.rank())));
  MemorySpace& memory = mine.placing().backend->memory();
  std::size_t bytes = optimizer_.memory(mine).total() + (1 << 20);  // for where buffers may begin
  if (active()) bytes = std::min(bytes, memory.free_bytes() / (2 * std::size_t(all_.size())));
  const Tensor zeros({1, std::int64_t(bytes / 8), 1, 1}, DType::f64, memory);
  if (memory.on_host()) reserve_ = Reserve(zeros.memory(), zeros.view().data, zeros.bytes());
}

/// A step on nothing: kernels run for the first time, and memory is there. What it leaves is
/// replaced when this rank joins.
LAMINA_INLINE void Trainer::warm_up() {
  PlacedNetwork& placed = network();
  const View& x = placed.x();
  const std::vector<float> images(std::size_t(x.shape.size()));
  const std::vector<char> targets(here().targets.loaded().bytes());
  const Batch batch{.images = images.data(), .targets = targets.data(), .size = x.shape.n};
  placed.initialize(options_.seed);
  stream_.begin_step();
  Context context = load(batch, placed, here().targets, 0);
  context.targets = here().targets.move(stream_);
  placed.forward(context);
  placed.backward(context);
  optimizer_.update(placed, stream_, 0, 1);
}

/// As rank 0 has it.
LAMINA_INLINE void Trainer::tell_progress(const Communicator& ranks) {
  struct Position {
    std::int64_t step, epoch, batch;
    double loss, top1, rate;
    bool due, scales;
    double scale, good, skipped, stuck;
  };
  Progress& p = progress_;
  const LossScale l = p.loss_scale.value_or(LossScale());
  const Position mine{p.step,  p.epoch, p.batch,          p.loss,
                      p.top1,  p.rate,  p.evaluation_due, p.loss_scale.has_value(),
                      l.scale, l.good,  l.skipped,        l.stuck};
  const Position at = ranks.all_gather_value(mine)[0];
  p.step = at.step, p.epoch = at.epoch, p.batch = at.batch, p.evaluation_due = at.due;
  p.loss = at.loss, p.top1 = at.top1, p.rate = at.rate;
  p.loss_scale.reset();
  if (at.scales) p.loss_scale = LossScale{at.scale, at.good, at.skipped, at.stuck};
  take_loss_scale();
}

/// Each of the ranks that trained so far sends a part. Returns how many bytes arrived.
LAMINA_INLINE double Trainer::send_state(const Communicator& ranks, int from) {
  tell_progress(ranks);
  double bytes = 0;
  std::vector<Pending> sent;
  PlacedNetwork& placed = network();
  for (const View& all : {placed.values(), here().states.view(), placed.all_kept()})
    for (int r = 0; all && r < from; ++r) {
      const Part part = lamina::part(all.shape.size(), from, r);
      const View piece = all.at(std::size_t(part.begin) * size_of(all.dtype),
                                {{1, part.size, 1, 1}, all.dtype, {}});
      sent.push_back(ranks.broadcast(stream_, Pass::update, piece, r));
      bytes += double(piece.bytes()) * (ranks.size() - from);
    }
  for (Pending& s : sent) s.wait(stream_);
  placed.changed(), placed.kept_is_known();
  return bytes;
}

/// What is split otherwise on other ranks lies otherwise.
LAMINA_INLINE void Trainer::place_anew(int to, int from, Resize& resize) {
  const int me = all_.rank();
  const std::unique_ptr<Instance> before = std::move(here_);
  if (before) before->network.end();  // its memory is for the next
  ranks_ = me < to ? teams_[std::size_t(to) - 1] : Communicator();
  if (const Reserve::Use at_hand(reserve_); me < to) here_ = allocate(prepare(placing(ranks_)));
  const Communicator& both = teams_[std::size_t(std::max(to, from)) - 1];
  resize.bytes =
      hand_over(before ? &before->network : nullptr, here_ ? &here_->network : nullptr, both);
  tell_progress(both);
  if (me < to) place_evaluator();
}

LAMINA_INLINE Resize Trainer::resize(int to, int from) {
  const std::string why = why_not(to);
  check(why.empty(), "resize: ", why);
  check_finished("resize");
  const double begin = now();
  const int me = all_.rank();
  if (active()) note_loss_scale();
  Resize r{.from = from, .to = to};
  if (options_.workers > 0)
    share_anew(to, from, r);
  else
    place_anew(to, from, r);
  if (me < to && snapshots_) snapshots_->go_on(ranks_);
  r.step = progress_.step, r.workers = active() ? workers() : Shares();
  r.pause = now() - begin;
  return r;
}

/// Workers depend on no rank: those who stay have all they need.
LAMINA_INLINE void Trainer::share_anew(int to, int from, Resize& resize) {
  const int me = all_.rank();
  if (me < from) network().exchange_kept(stream_);
  if (me >= from && me < to) {
    if (!prepared_) prepare(to);
    here_ = std::move(prepared_);
  }
  if (to > from) resize.bytes = send_state(teams_[std::size_t(to) - 1], from);
  shares_.clear(), balance_.restart();
  ranks_ = me < to ? teams_[std::size_t(to) - 1] : Communicator();
  if (me < to) return here().share(workers_of(ranks_));
  here_.reset();
  if (gradients_.view()) forget(gradients_.view().data, gradients_.bytes());
}

// ---- in fit() --------------------------------------------------------------------------------

LAMINA_INLINE void Trainer::Fit::tell(int first, int last, const std::string& note) const {
  for (int r = first; r < last; ++r) trainer_.all_.post(r, note);
}

LAMINA_INLINE Loader Trainer::Fit::loader_of(int rank, int ranks, std::int64_t epoch,
                                             std::int64_t batch) const {
  Loader loader(data_, trainer_.loading(true, options_, rank, ranks));
  loader.seek(epoch, batch);
  return loader;
}

/// Asleep until rank 0 wants this one, or has no more use for it.
LAMINA_INLINE bool Trainer::Fit::park() {
  const auto sleep = [](double seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  };
  while (true) {
    const std::string note = trainer_.all_.collect();
    if (note.starts_with("end")) {
      stopped_ = note == "end stopped";
      trainer_.prepared_.reset(), forget_rehearsal(), settle_growth();
      return false;
    }
    if (grown()) settle_growth();
    if (note.empty())
      sleep(trainer_.prepared_ ? 2e-4 : 50e-3);
    else if (answer(note))
      return true;
  }
}

/// Whether this rank trains now.
LAMINA_INLINE bool Trainer::Fit::answer(const std::string& note) {
  std::istringstream in(note);
  std::string what;
  int to = 0, from = 0;
  std::int64_t epoch = 0, batch = 0;
  in >> what >> to >> from >> epoch >> batch;
  if (what == "grow") {
    hear_announcement(to);
  } else if (what == "prepare") {  // its number, and for how many ranks
    trainer_.all_.post(0, try_to_prepare(to, from));
  } else if (what == "join") {
    coming_.loader = loader_of(trainer_.all_.rank(), to, epoch, batch);
    if (const auto& next = trainer_.prepared_)
      next->network.make_room(trainer_.workers_of(trainer_.teams_[std::size_t(to) - 1]));
  } else if (what == "cancel") {
    coming_ = {}, trainer_.prepared_.reset(), forget_rehearsal();
  } else if (what == "go") {
    coming_.ranks = to;
    change_ranks(from);
    return true;
  }
  return false;
}

LAMINA_INLINE std::string Trainer::Fit::try_to_prepare(int request, int ranks) {
  try {
    trainer_.active() ? trainer_.rehearse(ranks) : trainer_.prepare(ranks);
    return text("ready ", request);
  } catch (const PeerError&) {
    throw;
  } catch (const std::exception& e) {
    return text("failed ", request, " rank ", trainer_.all_.rank(), ": ", e.what());
  }
}

/// On rank 0, before each step.
LAMINA_INLINE void Trainer::Fit::lead() {
  if (!leads() || request_.announced || coming_.at >= 0) return;
  if (request_.ranks == 0 && !take_request()) return;
  if (request_.grows) {
    if (!grown()) return;
    const std::string why = settle_growth();
    if (!why.empty()) return refuse(why);
    prepare_others();
  }
  hear();
  const bool another = at().step + 2 < total_;  // or nobody would train with them
  if (request_.ranks == 0 || request_.missing > 0 || !another) return;
  trainer_.announced_ = request_.ranks, request_.announced = true;
}

/// Whether somebody wants other ranks, and may.
LAMINA_INLINE bool Trainer::Fit::take_request() {
  const int from = trainer_.ranks_.size(), all = trainer_.all_.size();
  const int asked = options_.resize ? options_.resize() : 0;
  if (asked == 0 || asked == from) return false;
  const std::string why = trainer_.why_not(asked);
  if (!why.empty()) {
    check(bool(options_.on_refused), "resize: ", why);
    options_.on_refused(why);
    return false;
  }
  request_ = {.ranks = asked, .first = asked, .begin = now(), .grows = asked > all};
  if (!request_.grows) prepare_others();
  if (!request_.grows || at().step + 2 >= total_) return true;
  tell(from, all, text("grow ", asked));
  trainer_.announced_ = asked;
  return true;
}

/// With workers, who stays has all it needs.
LAMINA_INLINE void Trainer::Fit::prepare_others() {
  const int from = trainer_.ranks_.size(), to = request_.ranks;
  request_.grows = false;
  request_.first = trainer_.options_.workers > 0 ? from : 1;
  request_.missing = std::max(0, to - request_.first);
  tell(request_.first, to, text("prepare ", ++trainer_.requests_, ' ', to));
  if (request_.first == 1) rehearse(trainer_.requests_, to), ++request_.missing;
}

/// In the background, while this rank trains.
LAMINA_INLINE void Trainer::Fit::rehearse(int request, int ranks) {
  rehearsal_ = std::async(std::launch::async, [this, request, ranks, threads = threads()] {
    unbind_thread(), give_way(), set_threads(threads);
    return try_to_prepare(request, ranks);
  });
}

/// What came of it; empty until that is known, and from then on.
LAMINA_INLINE std::string Trainer::Fit::rehearsed() {
  const bool known = rehearsal_.valid() &&
                     rehearsal_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  return known ? rehearsal_.get() : std::string();
}

LAMINA_INLINE void Trainer::Fit::forget_rehearsal() noexcept {
  if (rehearsal_.valid()) rehearsal_.wait();
  rehearsal_ = {}, trainer_.reserve_ = Reserve();
}

/// On another rank that trains, before each step.
LAMINA_INLINE void Trainer::Fit::follow() {
  if (!elastic() || leads()) return;
  if (grown()) settle_growth();
  if (trainer_.options_.workers > 0) return;
  for (std::string note; !(note = trainer_.all_.collect()).empty();) {
    std::istringstream in(note);
    std::string what;
    int request = 0, ranks = 0;
    in >> what >> request >> ranks;
    if (what == "prepare") rehearse(request, ranks);
    if (what == "cancel") forget_rehearsal();
  }
  const std::string note = rehearsed();
  if (!note.empty()) trainer_.all_.post(0, note);
}

/// What those say that are to join. A request that came to nothing may be answered late.
LAMINA_INLINE void Trainer::Fit::hear() {
  while (true) {
    std::string note = rehearsed();
    if (note.empty()) note = trainer_.all_.collect();
    if (note.empty()) return;
    std::istringstream in(note);
    std::string what, why;
    int request = 0;
    in >> what >> request >> std::ws;
    std::getline(in, why);
    if (request != trainer_.requests_ || request_.ranks == 0) continue;
    what == "ready" ? void(--request_.missing) : refuse(why);
  }
}

LAMINA_INLINE void Trainer::Fit::refuse(const std::string& why) {
  tell(request_.first, request_.ranks, "cancel");
  forget_rehearsal();
  request_ = {};
  if (options_.on_refused) options_.on_refused(why);
}

/// Before the last step with these ranks.
LAMINA_INLINE void Trainer::Fit::get_ready() {
  if (coming_.at != at().step + 1) return;
  const int from = trainer_.ranks_.size(), to = coming_.ranks, me = trainer_.ranks_.rank();
  const bool ends = at().batch + 1 >= batches_;
  const std::int64_t epoch = at().epoch + ends, batch = ends ? 0 : at().batch + 1;
  if (leads()) tell(from, to, text("join ", to, ' ', from, ' ', epoch, ' ', batch));
  if (me >= to) return;
  std::swap(trainer_.shares_, coming_.workers);
  const Communicator& team = to == from ? trainer_.ranks_ : trainer_.teams_[std::size_t(to) - 1];
  if (trainer_.options_.workers > 0) trainer_.network().make_room(trainer_.workers_of(team));
  coming_.loader = loader_of(me, to, epoch, batch);
  std::swap(trainer_.shares_, coming_.workers);
}

/// After a step: all ranks know how long workers took on each, and come to the same result.
LAMINA_INLINE void Trainer::Fit::look_after_balance() {
  const TrainerOptions& o = trainer_.options_;
  if (!o.rebalance || o.workers == 0 || trainer_.ahead() || coming_.ranks > 0 || alone()) return;
  trainer_.note_balance();
  const std::vector<double> seconds = trainer_.balance_.seconds();
  Shares better = trainer_.balance_.due(trainer_.workers());
  if (better.empty() || at().step + 2 >= total_) return;
  coming_.ranks = trainer_.ranks_.size(), coming_.at = at().step + 1;
  coming_.imbalance = imbalance(trainer_.workers(), seconds);
  coming_.expected = imbalance(better, seconds);
  coming_.workers = std::move(better);
}

LAMINA_INLINE void Trainer::Fit::change_ranks(int from) {
  const double begin = now();
  const int to = coming_.ranks;
  if (leads()) tell(from, to, text("go ", to, ' ', from));
  Resize r{.step = at().step, .from = from, .to = to, .workers = coming_.workers};
  if (from == to)
    trainer_.rebalance(coming_.workers);
  else
    r = trainer_.resize(to, from);
  loader_ = std::move(coming_.loader);
  if (options_.keep_best && trainer_.active() && to > from) learn_best();
  r.prepared = from == to ? 0 : begin - request_.begin, r.pause = now() - begin;
  r.imbalance = coming_.imbalance, r.expected = coming_.expected;
  coming_ = {};
  if (from != to) request_ = {};
  if (options_.on_resize) options_.on_resize(r);
}

/// The best score so far, from rank 0.
LAMINA_INLINE void Trainer::Fit::learn_best() {
  const Score mine = best_.value_or(Score());
  const auto said = trainer_.ranks_.all_gather_value(
      std::array{double(best_.has_value()), double(mine.validated), mine.loss, mine.top1})[0];
  best_.reset();
  if (said[0] > 0) best_ = Score{said[1] > 0, said[2], said[3]};
}

/// Parked ranks may end, too.
LAMINA_INLINE void Trainer::Fit::let_go() noexcept {
  if (!leads() || let_go_) return;
  let_go_ = true;
  try {
    tell(trainer_.ranks_.size(), trainer_.all_.size(), stopped_ ? "end stopped" : "end");
  } catch (...) {  // who fails is noticed by all
  }
}

}  // namespace lamina
