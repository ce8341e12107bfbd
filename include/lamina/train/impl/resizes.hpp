// Resizes in fit(): requests, ranks that make themselves ready while others train, and the moment
// at which all go on together.
//
// Rank 0 always trains, and leads. It tells the others by notes what to do; those that train learn
// with the loss of a step that after the one which follows it they go on with others: by then, all
// have their next loaders.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/base/threads.hpp>
#include <lamina/train/trainer.hpp>

#include <chrono>
#include <sstream>
#include <thread>
#include <utility>

namespace lamina {

LAMINA_INLINE void Trainer::Fit::tell(int first, int last, const std::string& note) const {
  for (int r = first; r < last; ++r) trainer_.all_.post(r, note);
}

/// In the background: a loader takes its memory, and begins with the first batches.
LAMINA_INLINE std::future<Loader> Trainer::Fit::make_loader(int rank, int ranks, std::int64_t epoch,
                                                            std::int64_t batch) const {
  const LoaderOptions how = trainer_.loading(true, options_, rank, ranks);
  return std::async(std::launch::async, [this, how, epoch, batch] {
    unbind_thread();
    Loader loader(data_, how);
    loader.seek(epoch, batch);
    return loader;
  });
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
      trainer_.prepared_.reset(), end_rehearsal(), settle_growth();
      return false;
    }
    if (grown()) settle_growth();
    tell_of_stop();
    if (note.empty())  // who has a loader is about to join: the others wait for it then
      sleep(trainer_.prepared_ || coming_.loader.valid() ? 2e-4 : 50e-3);
    else if (answer(note))
      return true;
  }
}

/// Those that train can hear of it only from rank 0.
LAMINA_INLINE void Trainer::Fit::tell_of_stop() {
  if (!asked() || std::exchange(told_of_stop_, true)) return;
  trainer_.all_.post(0, "stop");
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
    end_rehearsal();
    trainer_.all_.post(0, try_to_prepare(to, from, 0));
  } else if (what == "join") {
    coming_.loader = make_loader(trainer_.all_.rank(), to, epoch, batch);
    if (const auto& next = trainer_.prepared_)
      next->network.make_room(trainer_.workers_of(trainer_.teams_[std::size_t(to) - 1]));
  } else if (what == "cancel") {
    coming_ = {}, trainer_.prepared_.reset(), end_rehearsal(), trainer_.give_back();
  } else if (what == "go") {
    coming_.ranks = to;
    change_ranks(from);
    return true;
  }
  return false;
}

/// `lacking`: bytes of memory that workers' turns will want on a rank that trains already. Says how
/// parameters lie where ranks with workers must agree on that.
LAMINA_INLINE std::string Trainer::Fit::try_to_prepare(int request, int ranks,
                                                       std::size_t lacking) {
  const bool workers = trainer_.options_.workers > 0;
  try {
    if (!trainer_.active())
      trainer_.prepare(ranks);
    else if (!workers)
      trainer_.rehearse(ranks);
    else if (lacking > 0)
      trainer_.reserve(trainer_.network().placing().backend->memory(), lacking);
    const auto& joining = trainer_.prepared_;
    return text("ready ", request, ' ', joining ? joining->network.layout() : 0, ' ',
                trainer_.all_.rank());
  } catch (const PeerError&) {
    throw;
  } catch (const std::exception& e) {
    return text("failed ", request, " rank ", trainer_.all_.rank(), ": ", e.what());
  }
}

/// On rank 0, before each step.
LAMINA_INLINE void Trainer::Fit::lead() {
  if (!leads()) return;
  hear();
  if (request_.announced || coming_.at >= 0) return;
  if (request_.ranks == 0 && !take_request()) return;
  if (request_.grows) {
    if (!grown()) return;
    const std::string why = settle_growth();
    if (!why.empty()) return refuse(why);
    prepare_others();
  }
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

/// With workers, who stays has all it needs, unless it is to run more of them.
LAMINA_INLINE void Trainer::Fit::prepare_others() {
  const int from = trainer_.ranks_.size(), to = request_.ranks;
  request_.grows = false;
  request_.first = trainer_.options_.workers > 0 && to > from ? from : 1;
  request_.missing = std::max(0, to - request_.first);
  tell(request_.first, to, text("prepare ", ++trainer_.requests_, ' ', to));
  if (request_.first == 1) rehearse(trainer_.requests_, to), ++request_.missing;
}

/// In the background, while this rank trains; after what was called off and is still under way.
LAMINA_INLINE void Trainer::Fit::rehearse(int request, int ranks) {
  const std::size_t lacking = trainer_.turns_lack(ranks);
  called_off_ = false;
  rehearsal_ = std::async(std::launch::async, [this, request, ranks, lacking, threads = threads(),
                                               before = std::move(rehearsal_)] {
    if (before.valid()) before.wait();
    trainer_.reserve_ = Reserve();
    unbind_thread(), give_way(), set_threads(threads);
    return try_to_prepare(request, ranks, lacking);
  });
}

/// What came of it; empty until that is known, and from then on, and where nobody wants to know.
LAMINA_INLINE std::string Trainer::Fit::rehearsed() {
  const bool known = rehearsal_.valid() &&
                     rehearsal_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  if (!known) return {};
  const std::string note = rehearsal_.get();
  if (!std::exchange(called_off_, false)) return note;
  trainer_.reserve_ = Reserve();
  return {};
}

/// Nobody waits for what is under way: what comes of it is dropped when it is there.
LAMINA_INLINE void Trainer::Fit::call_off_rehearsal() {
  called_off_ = rehearsal_.valid();
  if (!called_off_) trainer_.reserve_ = Reserve();
}

LAMINA_INLINE void Trainer::Fit::end_rehearsal() noexcept {
  if (rehearsal_.valid()) rehearsal_.wait();
  rehearsal_ = {}, called_off_ = false, trainer_.reserve_ = Reserve();
}

/// On another rank that trains, before each step.
LAMINA_INLINE void Trainer::Fit::follow() {
  if (!elastic() || leads()) return;
  if (grown()) settle_growth();
  for (std::string note; !(note = trainer_.all_.collect()).empty();) {
    std::istringstream in(note);
    std::string what;
    int request = 0, ranks = 0;
    in >> what >> request >> ranks;
    if (what == "prepare") rehearse(request, ranks);
    if (what == "cancel") call_off_rehearsal();
  }
  const std::string note = rehearsed();
  if (!note.empty()) trainer_.all_.post(0, note);
}

/// What others say, on rank 0. A request that came to nothing may be answered late.
LAMINA_INLINE void Trainer::Fit::hear() {
  while (true) {
    std::string note = rehearsed();
    if (note.empty()) note = trainer_.all_.collect();
    if (note.empty()) return;
    std::istringstream in(note);
    std::string what, why;
    int request = 0;
    in >> what >> request >> std::ws;
    if (what == "stop") {
      trainer_.request_stop();
      continue;
    }
    if (request != trainer_.requests_ || request_.ranks == 0) continue;
    if (what == "ready") {
      count_ready(in);
    } else {
      std::getline(in, why);
      refuse(why);
    }
  }
}

/// One more is ready: `in` says how its parameters lie, if that matters, and its rank.
LAMINA_INLINE void Trainer::Fit::count_ready(std::istream& in) {
  std::uint64_t layout = 0;
  int rank = 0;
  in >> layout >> rank;
  if (trainer_.options_.workers > 0 && rank >= trainer_.ranks_.size() &&
      layout != trainer_.network().layout())
    return refuse(detail::lies_otherwise(rank));
  --request_.missing;
}

LAMINA_INLINE void Trainer::Fit::refuse(const std::string& why) {
  tell(request_.first, request_.ranks, "cancel");
  call_off_rehearsal();
  request_ = {};
  if (options_.on_refused) options_.on_refused(why);
}

/// Before the last step with these ranks.
LAMINA_INLINE void Trainer::Fit::get_ready() {
  if (coming_.at != at().step + 1) return;
  const double begin = now();
  const int from = trainer_.ranks_.size(), to = coming_.ranks, me = trainer_.ranks_.rank();
  if (rehearsal_.valid() && to == from && !called_off_)
    rehearsal_.wait();  // workers move in between; rank 0 is told later what came of it
  else if (rehearsal_.valid())
    end_rehearsal();  // called off, and still at this rank's reserve
  const bool ends = at().batch + 1 >= batches_;
  const std::int64_t epoch = at().epoch + ends, batch = ends ? 0 : at().batch + 1;
  if (leads()) tell(from, to, text("join ", to, ' ', from, ' ', epoch, ' ', batch));
  if (me >= to) return;
  std::swap(trainer_.shares_, coming_.workers);
  const Communicator& team = to == from ? trainer_.ranks_ : trainer_.teams_[std::size_t(to) - 1];
  if (trainer_.options_.workers > 0) make_room(to != from, trainer_.workers_of(team));
  coming_.loader = make_loader(me, to, epoch, batch);
  std::swap(trainer_.shares_, coming_.workers);
  coming_.pause = now() - begin;
}

/// Out of the reserve, where a resize has made one.
LAMINA_INLINE void Trainer::Fit::make_room(bool reserved, const Workers& workers) {
  Reserve none;
  const Reserve::Use at_hand(reserved ? trainer_.reserve_ : none);
  trainer_.network().make_room(workers);
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
  loader_.reset();
  if (coming_.loader.valid()) loader_ = coming_.loader.get();
  if (options_.keep_best && trainer_.active() && to > from) learn_best();
  r.prepared = from == to ? 0 : begin - request_.begin, r.pause = now() - begin + coming_.pause;
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
