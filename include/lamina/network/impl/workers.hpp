// Workers: parts of a batch that ranks share out and run in turn.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/base/random.hpp>
#include <lamina/network/detail/compare_ranks.hpp>
#include <lamina/network/placed.hpp>

#include <algorithm>

namespace lamina {

/// Of what is not trained each worker keeps its own, as each rank does without workers.
LAMINA_INLINE void PlacedNetwork::plan_kept() {
  const int workers = options_.workers.count;
  if (workers == 0) return;
  std::size_t bytes = (StepNumbers::form().bytes() + sizeof(double)) * std::size_t(workers);
  for (const NamedParameter& n : parameters_.mine) {
    const Parameter& p = *n.parameter;
    if (p.trained || p.frozen || workers == 1) continue;
    check(p.form.layout.plain(), n.name, ": workers keep what is plain, got ", p.form);
    kept_.push_back({&n, {nullptr, {{workers, p.size(), 1, 1}, p.form.dtype, {}}}});
    bytes += kept_.back().all.bytes();
  }
  steps_[0].memory.workspace += bytes, memory_.workspace += bytes;
}

LAMINA_INLINE void PlacedNetwork::allocate_kept() {
  const int workers = options_.workers.count;
  if (workers == 0) return;
  MemorySpace& memory = options_.backend->memory();
  const std::int64_t columns = StepNumbers::form().shape.c + 1;  // and seconds
  numbers_.by_worker = Tensor({workers, columns, 1, 1}, DType::f64, memory);
  if (kept_.empty()) return;
  const DType t = kept_[0].all.dtype;
  std::int64_t elements = 0;
  for (const Kept& k : kept_) {
    check(k.all.dtype == t, k.of->name, ": expected ", name(t), ", got ", name(k.all.dtype));
    elements += k.all.shape.size();
  }
  kept_values_ = Tensor({1, elements, 1, 1}, t, memory);
  std::size_t at = 0;
  for (Kept& k : kept_) {
    k.all = kept_values_.view().at(at, k.all.form());
    at += k.all.bytes();
  }
  moves_.resize(kept_.size());
}

LAMINA_INLINE View PlacedNetwork::kept_of(const Parameter& p) const {
  const auto found =
      std::ranges::find_if(kept_, [&](const Kept& k) { return k.of->parameter == &p; });
  return found == kept_.end() ? View() : found->all;
}

/// From where a worker's values lie to where kernels find them, or `out`, back again.
LAMINA_INLINE void PlacedNetwork::move_kept(Stream& stream, bool out) {
  if (kept_.empty()) return;
  const std::int64_t worker = options_.workers.mine.begin + turn_;
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    const View& all = kept_[i].all;
    const Form one{{1, all.shape.c, 1, 1}, all.dtype, {}};
    const View row = all.at(std::size_t(worker) * one.bytes(), one);
    const View value = kept_[i].of->parameter->value.at(0, one);
    const Box box = Box::of(one.shape);
    moves_[i] = out ? BoxMove{value, box, row, box, box} : BoxMove{row, box, value, box, box};
  }
  options_.backend->move(stream, Pass::forward, out ? "keep worker" : "take worker", moves_);
}

/// Of a worker by itself: what they found is put together when all have run, in one order on all
/// ranks.
LAMINA_INLINE void PlacedNetwork::note_found(Context& context) {
  const Backend& backend = *options_.backend;
  Stream& stream = context.stream;
  const View& all = numbers_.by_worker;
  if (turn_ == 0) {
    const Box box = Box::of(all.shape);
    const BoxMove zeros{{}, box, all, box, box};
    backend.move(stream, Pass::forward, "zero", {&zeros, 1});
  }
  backend.add_found(stream, shared_found(stream), true, found_of(context.micro_batch));
}

LAMINA_INLINE View PlacedNetwork::found_of(int worker) const {
  const std::size_t row = std::size_t(numbers_.by_worker.view().shape.c) * sizeof(double);
  return numbers_.by_worker.view().at(std::size_t(worker) * row, StepNumbers::form());
}

LAMINA_INLINE void PlacedNetwork::note_seconds(int turn, double seconds) {
  const View& all = numbers_.by_worker;
  if (!options_.backend->memory().on_host() || !all) return;
  const std::int64_t worker = options_.workers.mine.begin + turn;
  all.as<double>()[(worker + 1) * all.shape.c - 1] = seconds;
}

LAMINA_INLINE double PlacedNetwork::seconds_of(int worker) const {
  const View& all = numbers_.by_worker;
  return options_.backend->memory().on_host() ? all.as<double>()[(worker + 1) * all.shape.c - 1]
                                              : 0;
}

LAMINA_INLINE void PlacedNetwork::add_up_workers(Stream& stream) {
  if (options_.workers.count == 0 || !found_by_step()) return;
  options_.workers.ranks.all_reduce(stream, Pass::forward, numbers_.by_worker).wait(stream);
  for (int w = 0; w < options_.workers.count; ++w)
    options_.backend->add_found(stream, found_of(w), w == 0, numbers_.totals);
}

/// All workers start from the values of the parameters.
LAMINA_INLINE void PlacedNetwork::learn_kept(Stream& stream) {
  const int turn = std::exchange(turn_, 0);
  const Part mine = options_.workers.mine;
  for (std::int64_t w = 0; w < options_.workers.count; ++w) {
    options_.workers.mine = {w, 1};
    move_kept(stream, true);
  }
  options_.workers.mine = mine, turn_ = turn, kept_is_new_ = false;
}

LAMINA_INLINE void PlacedNetwork::exchange_kept(Stream& stream) {
  if (kept_.empty()) return;
  if (kept_is_new_) return learn_kept(stream);  // on all ranks the same
  const Workers& workers = options_.workers;
  const Backend& backend = *options_.backend;
  for (const Kept& k : kept_) {  // what others know better becomes zero
    const Box all = Box::of(k.all.shape);
    const std::int64_t first = workers.mine.begin, last = first + workers.mine.size;
    for (const Part rows : {Part{0, first}, Part{last, workers.count - last}}) {
      Box others = all;
      others.n = rows;
      const BoxMove zeros{{}, all, k.all, all, others};
      if (rows.size > 0) backend.move(stream, Pass::forward, "zero", {&zeros, 1});
    }
  }
  workers.ranks.all_reduce(stream, Pass::forward, kept_values_).wait(stream);
}

LAMINA_INLINE void PlacedNetwork::average_kept(Stream& stream) {
  if (kept_is_new_) return learn_kept(stream);  // the values are the mean already
  exchange_kept(stream);
  const int workers = options_.workers.count;
  for (const Kept& k : kept_) {
    const Tensor of(k.all.form());
    copy_bytes(k.all, of);
    const Tensor mean({1, k.all.shape.c, 1, 1}, k.all.dtype);
    visit(k.all.dtype, [&]<Floating T>(T) {
      for (std::int64_t i = 0; i < k.all.shape.c; ++i) {
        double sum = 0;
        for (std::int64_t w = 0; w < workers; ++w) sum += of.as<T>()[w * k.all.shape.c + i];
        mean.as<T>()[i] = T(sum / workers);
      }
    });
    copy_bytes(mean, k.of->parameter->value.at(0, mean.view().form()));
  }
  if (!kept_.empty()) changed();
  parameters_.changes->of_one_worker = false;
}

LAMINA_INLINE std::string detail::lies_otherwise(int rank) {
  return text("rank ", rank, " keeps its parameters otherwise than rank 0: with workers expected ",
              "the same instruction set and, with --dtype auto, choice of types, which ranks of a ",
              "machine share when they start anew");
}

LAMINA_INLINE std::uint64_t PlacedNetwork::layout() const {
  std::uint64_t lies = 0;
  for (const NamedParameter& n : parameters_.mine)
    lies = lies * 31 + n.parameter->form.fingerprint() + key_of(n.name);
  return lies;
}

LAMINA_INLINE void PlacedNetwork::check_alike() const {
  const auto all = options_.workers.ranks.all_gather_value(layout());
  for (std::size_t r = 0; r < all.size(); ++r)
    check(all[r] == all[0], detail::lies_otherwise(int(r)));
}

LAMINA_INLINE void PlacedNetwork::make_room(const Workers& workers) {
  parameters_.make_room(options_, Turns{workers.turns(), workers.in_row()}.places());
}

LAMINA_INLINE std::size_t PlacedNetwork::lacks(const Workers& workers) const {
  return parameters_.lacks(options_, Turns{workers.turns(), workers.in_row()}.places());
}

LAMINA_INLINE void PlacedNetwork::share(Workers workers) {
  check(workers.count == options_.workers.count, "the network has ", options_.workers.count,
        " workers, not ", workers.count);
  check(turn_ == 0, "share: ", turn_, " of ", options_.turns(), " workers have run");
  check(workers.mine.size > 0, "share: expected a worker for each rank");
  options_.workers = std::move(workers);
  const Communicator& ranks = options_.workers.ranks;
  detail::check_said(ranks, options_.backend->name(), options_.unlike_backends);
  check_alike();
  if (options_.unlike_backends) detail::check_carrier(ranks, options_.backend->memory());
  for (Bucket& bucket : parameters_.buckets) {
    bucket.ranks = options_.workers.ranks.ordered();
    bucket.turns = options_.turns();
  }
  parameters_.hold(options_);
}

}  // namespace lamina
