// Ranks that come and go in the middle of a training.
//
// Rank 0 always trains, and leads. It tells parked ranks by notes what to do; those that train
// learn with the loss of a step that after the one which follows it they go on with others: by
// then, all have their next loaders.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/network/detail/compare_ranks.hpp>
#include <lamina/train/trainer.hpp>

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
  const int most = active > 0 ? active : all;
  check(workers == 0 || most <= workers, most, " ranks cannot share ", workers,
        workers == 1 ? " worker" : " workers");
  if (workers > 0) {
    PlaceOptions compared = placing();
    compared.ranks = all_;
    detail::compare_ranks(network_, compared);
  }
  if (active == 0) return;
  for (int n = 1; n <= all; ++n) {
    std::vector<int> members(std::size_t(all_.rank() < n ? n : 0));
    std::iota(members.begin(), members.end(), 0);
    teams_.push_back(all_.group(members));
  }
  ranks_ = all_.rank() < active ? teams_[std::size_t(active) - 1] : Communicator();
}

/// Where gradients are to lie on each rank, also those that are to join: where ranks of a node
/// reach them. Memory of ranks that are parked is not touched.
LAMINA_INLINE void Trainer::share_gradients(const PlacedNetwork* placed) {
  const DType t = options_.dtype.gradients;
  const bool host = placed && placed->placing().backend->memory().on_host();
  const std::size_t mine = host ? placed->gradient_form().bytes() : 0;
  const std::size_t bytes = all_.all_reduce_value(mine, ReduceOp::max);
  if (bytes == 0) return;
  const Form form{{1, std::int64_t(bytes / size_of(t)), 1, 1}, t, {}};
  gradients_ = all_.tensor(form, host_memory(), placed != nullptr);
}

LAMINA_INLINE Workers Trainer::workers_of(const Communicator& ranks) const {
  return {options_.workers, ranks, part(options_.workers, shares(ranks.size()), ranks.rank())};
}

/// Workers of each rank.
LAMINA_INLINE Shares Trainer::shares(int ranks) const {
  Shares s;
  for (int r = 0; r < ranks; ++r) s.push_back(int(part(options_.workers, ranks, r).size));
  return s;
}

LAMINA_INLINE std::string Trainer::why_not(int ranks) const {
  const int most = options_.workers;
  if (teams_.empty()) return "this training was not started to change its ranks";
  if (ranks < 1) return text("expected a rank or more, got ", ranks);
  if (ranks > all_.size()) return text(ranks, " are more ranks than the ", all_.size(), " started");
  if (most > 0 && ranks > most) return text(ranks, " ranks cannot share ", most, " workers");
  return {};
}

LAMINA_INLINE void Trainer::prepare() {
  check(here_ == nullptr, "prepare: this rank trains already");
  prepared_ = allocate(prepare(placing()));
  std::swap(here_, prepared_);
  warm_up();
  std::swap(here_, prepared_);
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
  placed.forward(context);
  placed.backward(context);
  optimizer_.update(placed, stream_, 0, 1);
}

/// Each of the ranks that trained so far sends a part. Returns how many bytes arrived.
LAMINA_INLINE double Trainer::send_state(const Communicator& ranks, int from) {
  struct Position {
    std::int64_t step, epoch, batch;
    double loss, top1, rate;
    bool due;
  };
  Progress& p = progress_;
  const Position mine{p.step, p.epoch, p.batch, p.loss, p.top1, p.rate, p.evaluation_due};
  const Position at = ranks.all_gather_value(mine)[0];
  p.step = at.step, p.epoch = at.epoch, p.batch = at.batch, p.evaluation_due = at.due;
  p.loss = at.loss, p.top1 = at.top1, p.rate = at.rate;
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

LAMINA_INLINE Resize Trainer::resize(int to, int from) {
  const std::string why = why_not(to);
  check(why.empty(), "resize: ", why);
  check_finished("resize");
  const double begin = now();
  const int me = all_.rank();
  if (me < from) network().average_kept(stream_);
  if (me >= from && !prepared_) prepare();
  if (me >= from) here_ = std::move(prepared_);
  Resize r{.from = from, .to = to};
  if (to > from) r.bytes = send_state(teams_[std::size_t(to) - 1], from);
  r.step = progress_.step;
  ranks_ = me < to ? teams_[std::size_t(to) - 1] : Communicator();
  if (me < to) {
    network().share(workers_of(ranks_));
  } else {
    here_.reset();
    if (gradients_.view()) forget(gradients_.view().data, gradients_.bytes());
  }
  r.pause = now() - begin;
  return r;
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
      return false;
    }
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
  if (what == "prepare") {
    trainer_.all_.post(0, try_to_prepare());
  } else if (what == "join") {
    coming_.loader = loader_of(trainer_.all_.rank(), to, epoch, batch);
  } else if (what == "cancel") {
    coming_ = {}, trainer_.prepared_.reset();
  } else if (what == "go") {
    coming_.ranks = to;
    change_ranks(from);
    return true;
  }
  return false;
}

LAMINA_INLINE std::string Trainer::Fit::try_to_prepare() {
  try {
    trainer_.prepare();
    return "ready";
  } catch (const PeerError&) {
    throw;
  } catch (const std::exception& e) {
    return text("failed rank ", trainer_.all_.rank(), ": ", e.what());
  }
}

/// On rank 0, before each step.
LAMINA_INLINE void Trainer::Fit::lead() {
  if (!leads() || coming_.announced) return;
  const int from = trainer_.ranks_.size();
  if (coming_.ranks == 0) {
    const int asked = options_.resize ? options_.resize() : 0;
    if (asked == 0 || asked == from) return;
    const std::string why = trainer_.why_not(asked);
    check(why.empty(), "resize: ", why);
    coming_.ranks = asked, coming_.asked = now();
    tell(from, asked, "prepare");
  }
  hear();
  const bool another = at().step + 2 < total_;  // or nobody would train with them
  if (coming_.ranks == 0 || coming_.ready < coming_.ranks - from || !another) return;
  coming_.prepared = now() - coming_.asked;
  trainer_.announced_ = coming_.ranks, coming_.announced = true;
}

/// What those say that are to join.
LAMINA_INLINE void Trainer::Fit::hear() {
  for (std::string note; !(note = trainer_.all_.collect()).empty();) {
    if (note == "ready")
      ++coming_.ready;
    else if (coming_.ranks > 0)
      refuse(note.substr(note.find(' ') + 1));
  }
}

LAMINA_INLINE void Trainer::Fit::refuse(const std::string& why) {
  tell(trainer_.ranks_.size(), coming_.ranks, "cancel");
  coming_ = {};
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
  coming_.loader = loader_of(me, to, epoch, batch);
  if (to < from) trainer_.network().make_room(trainer_.workers_of(trainer_.teams_[std::size_t(to) - 1]));
}

LAMINA_INLINE void Trainer::Fit::change_ranks(int from) {
  const double begin = now();
  const int to = coming_.ranks;
  if (leads()) tell(from, to, text("go ", to, ' ', from));
  Resize r = trainer_.resize(to, from);
  loader_ = std::move(coming_.loader);
  if (options_.keep_best && trainer_.active() && to > from) learn_best();
  r.prepared = coming_.prepared, r.pause = now() - begin;
  coming_ = {};
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
