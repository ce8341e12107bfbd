// Ranks that come and go in the middle of a training: what each needs for it, and what goes from
// rank to rank. train/impl/resizes.hpp has when.
#pragma once

#include <lamina/base/folder_lock.hpp>
#include <lamina/base/inline.hpp>
#include <lamina/base/naming.hpp>
#include <lamina/comm/imagined.hpp>
#include <lamina/network/detail/compare_ranks.hpp>
#include <lamina/network/detail/settle_splits.hpp>
#include <lamina/train/hand_over.hpp>
#include <lamina/train/trainer.hpp>

#include <algorithm>
#include <numeric>

namespace lamina {

/// A group for each number of ranks, made while all are there.
LAMINA_INLINE void Trainer::gather_teams() {
  const int active = options_.active, all = all_.size(), workers = options_.workers;
  check(0 <= active && active <= all, "active: expected a number of ranks from 0 to ", all,
        ", got ", active);
  check(options_.most == 0 || (active > 0 && options_.most >= all),
        "most: expected `active` with it, and no less than the ", all, " ranks there are, got ",
        options_.most);
  check(
      options_.most <= all || !unlike_backends_, "most: ranks that compute with unlike back ends ",
      "start no others, expected no more than the ", all, " ranks there are, got ", options_.most);
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
/// reach them. Those of a device lie there. Memory of ranks that are parked is not touched.
LAMINA_INLINE void Trainer::share_gradients(const PlacedNetwork* placed) {
  const DType t = options_.dtype.gradients;
  const bool host = placed && placed->placing().backend->memory().on_host();
  const std::size_t mine = host ? placed->gradient_form().bytes() : 0;
  const auto all = all_.all_gather_value(mine);
  const std::size_t bytes = *std::ranges::max_element(all);
  for (std::size_t r = 0; r < all.size(); ++r)
    check(all[r] == bytes || all[r] == 0, detail::lies_otherwise(int(r)));
  if (bytes == 0) return;
  const Form form{{1, std::int64_t(bytes / size_of(t)), 1, 1}, t, {}};
  gradients_ = all_.tensor(form, host_memory(), host);
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

namespace detail {

/// While it lives, others that join on this host wait before they ask what memory is left.
inline FolderLock alone_on_host() { return {"/dev/shm", std::chrono::minutes(1)}; }

}  // namespace detail

LAMINA_INLINE void Trainer::prepare(int ranks) {
  check(here_ == nullptr, "prepare: this rank trains already");
  if (options_.workers == 0) return rehearse(ranks);
  PlacedNetwork placed = prepare(placing(ranks_));
  {
    const FolderLock alone = detail::alone_on_host();  // its group, too, is this rank alone
    check_free(placed.placing().backend->memory(), optimizer_.memory(placed).total());
    prepared_ = allocate(std::move(placed));
  }
  std::swap(here_, prepared_);
  try {
    warm_up();
  } catch (...) {
    here_.reset();  // it stays parked
    throw;
  }
  std::swap(here_, prepared_);
}

/// How a network is split depends on the others, with whom it can only be placed when they have
/// come to that, too. But kernels are cached, and memory on the host is kept in reserve. Who trains
/// takes no more than its part of half of what is free, if all ranks were on this host; and on a
/// device nothing, which may have no room for two networks.
LAMINA_INLINE void Trainer::rehearse(int ranks) {
  if (active() && !network().placing().backend->memory().on_host()) return;
  ImaginedRanks imagined(ranks);
  const auto as = [&](int rank, bool plain) {
    PlaceOptions options = placing(imagined.as(rank));
    options.unlike_backends |= plain;
    return prepare(std::move(options));
  };
  const auto as_mine = [&](bool plain) {
    as(0, plain);  // who asks all others, and so comes first
    return as(all_.rank(), plain);
  };
  const PlacedNetwork mine = [&] {
    try {
      return as_mine(false);
    } catch (const Error&) {
      // Where ranks have unlike numbers of rows weights may not lie alike, and then they lie plain,
      // as real ranks find out. If that was not it, it fails again.
      return as_mine(true);
    }
  }();
  MemorySpace& memory = mine.placing().backend->memory();
  const std::size_t bytes = optimizer_.memory(mine).total();
  if (active())
    return reserve(memory, std::min(bytes, memory.free_bytes() / (2 * std::size_t(all_.size()))));
  const FolderLock alone = detail::alone_on_host();
  check_free(memory, bytes);
  reserve(memory, bytes);
}

/// What the gradients of workers' turns will take more on so many ranks, where it can be kept in
/// reserve.
LAMINA_INLINE std::size_t Trainer::turns_lack(int ranks) {
  if (options_.workers == 0 || !network().placing().backend->memory().on_host()) return 0;
  return network().lacks(workers_of(teams_[std::size_t(ranks) - 1]));
}

LAMINA_INLINE void Trainer::reserve(MemorySpace& memory, std::size_t bytes) {
  bytes += 1 << 20;  // for where buffers may begin
  const Tensor zeros({1, std::int64_t(bytes / 8), 1, 1}, DType::f64, memory);
  if (memory.on_host()) reserve_ = Reserve(zeros.memory(), zeros.view().data, zeros.bytes());
}

/// The system would hand out what it does not have, and end the rank, and so the job, later.
LAMINA_INLINE void Trainer::check_free(const MemorySpace& memory, std::size_t bytes) const {
  const std::size_t free = memory.free_bytes();
  check(!memory.on_host() || bytes <= free, "expected ", format("%.0f", double(bytes) / 1e6),
        " MB of free memory, got ", format("%.0f", double(free) / 1e6));
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
    std::int64_t step, epoch, batch, images;
    double loss, top1, rate;
    bool due, scales;
    double scale, good, skipped, stuck;
  };
  Progress& p = progress_;
  const LossScale l = p.loss_scale.value_or(LossScale());
  const Position mine{p.step,   p.epoch,          p.batch,
                      p.images, p.loss,           p.top1,
                      p.rate,   p.evaluation_due, p.loss_scale.has_value(),
                      l.scale,  l.good,           l.skipped,
                      l.stuck};
  const Position at = ranks.all_gather_value(mine)[0];
  p.step = at.step, p.epoch = at.epoch, p.batch = at.batch, p.images = at.images;
  p.evaluation_due = at.due;
  p.loss = at.loss, p.top1 = at.top1, p.rate = at.rate;
  p.loss_scale.reset();
  if (at.scales) p.loss_scale = LossScale{at.scale, at.good, at.skipped, at.stuck};
  take_loss_scale();
}

/// What those that trained so far have. Returns how many bytes newcomers got.
LAMINA_INLINE double Trainer::send_state(const Communicator& ranks, int from) {
  tell_progress(ranks);
  double bytes = 0;
  std::vector<Pending> sent;
  PlacedNetwork& placed = network();
  for (const View& all : {placed.values(), here().states.view(), placed.all_kept()}) {
    if (!all) continue;
    share_out(ranks, from, all, sent);
    bytes += double(all.bytes()) * (ranks.size() - from);
  }
  for (Pending& s : sent) s.wait(stream_);
  placed.changed(), placed.kept_is_known(), placed.note_worker(), placed.note_compared();
  return bytes;
}

/// Each of those that come gets its part of all there is from one that has it, and then all gather
/// the parts: where at most half of the ranks are new, none sends or receives more than all. In
/// blocks, so that no wait is for long.
LAMINA_INLINE void Trainer::share_out(const Communicator& ranks, int from, const View& all,
                                      std::vector<Pending>& sent) {
  const int n = ranks.size(), me = ranks.rank();
  const auto share_block = [&](std::int64_t begin, std::int64_t size) {
    const std::int64_t part = size / n, rest = size % n;
    const auto piece = [&](std::int64_t at, std::int64_t length) {
      return all.at(std::size_t(begin + at) * size_of(all.dtype),
                    {{1, length, 1, 1}, all.dtype, {}});
    };
    const View nothing(nullptr, {{1, 0, 1, 1}, all.dtype, {}}, all.space);
    for (int first = from; part > 0 && first < n; first += from) {
      const int to = me < from && first + me < n ? first + me : -1;
      const int source = me >= first && me < first + from ? me - first : -1;
      const View out = to >= 0 ? piece(to * part, part) : nothing;
      const View in = source >= 0 ? piece(me * part, part) : nothing;
      sent.push_back(ranks.exchange(stream_, Pass::update, out, to, in, source));
    }
    if (part > 0)
      sent.push_back(
          ranks.all_gather(stream_, Pass::update, piece(me * part, part), piece(0, n * part)));
    if (rest > 0) sent.push_back(ranks.broadcast(stream_, Pass::update, piece(n * part, rest), 0));
  };
  constexpr std::int64_t most = 1 << 24;
  const std::int64_t size = all.shape.size();
  for (std::int64_t begin = 0; begin < size; begin += most)
    share_block(begin, std::min(most, size - begin));
}

/// What is split otherwise on other ranks lies otherwise.
LAMINA_INLINE void Trainer::place_anew(int to, int from, Resize& resize) {
  const int me = all_.rank();
  std::unique_ptr<Instance> before = std::move(here_);
  if (before) before->network.end();  // its memory is for the next
  ranks_ = me < to ? teams_[std::size_t(to) - 1] : Communicator();
  if (const Reserve::Use at_hand(reserve_); me < to) here_ = allocate(prepare(placing(ranks_)));
  const Communicator& both = teams_[std::size_t(std::max(to, from)) - 1];
  resize.bytes =
      hand_over(before ? &before->network : nullptr, here_ ? &here_->network : nullptr, both);
  tell_progress(both);
  if (me < to) return place_evaluator();
  before.reset();
  give_back();
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
  shares_.clear(), balance_ = {};
  ranks_ = me < to ? teams_[std::size_t(to) - 1] : Communicator();
  if (me < to) return here().share(workers_of(ranks_));
  here_.reset();
  give_back();
}

/// What a rank that is parked now has no use for.
LAMINA_INLINE void Trainer::give_back() {
  if (gradients_.view()) forget(gradients_.view().data, gradients_.bytes());
  trim_heap();
}

}  // namespace lamina
