// How spans become sums per layer and pass.
#pragma once

#include <lamina/base/error.hpp>
#include <lamina/base/inline.hpp>
#include <lamina/profile/profiler.hpp>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

namespace lamina {

LAMINA_INLINE Profiler::Profiler(std::size_t spans, std::size_t steps, Counters* counters)
    : spans_(spans), counters_(counters) {
  seconds_.reserve(steps);
  open_.reserve(64);
  if (counters_) counts_.resize(spans);
}

LAMINA_INLINE Profiler::~Profiler() { stop(), retire(); }

LAMINA_INLINE void Profiler::start(Stream& stream) {
  stop();
  stream_ = &stream, before_ = stream.recorder();
  stream.record_to(this);
  begin_step();
}

LAMINA_INLINE void Profiler::next_step() {
  end_step();
  begin_step();
}

LAMINA_INLINE void Profiler::stop() {
  if (!stream_) return;
  close(), overflow_.clear();
  try {
    stream_->wait();  // a device may be about to record
  } catch (...) {     // whoever wants to know asks the stream
  }
  std::exchange(stream_, nullptr)->record_to(before_);
  begin_ = 0;
}

LAMINA_INLINE void Profiler::record(const Span& span) {
  const std::size_t at = claimed_.fetch_add(1, std::memory_order_acquire);
  if (at >= closed) return;
  if (at < spans_.size()) {
    spans_[at] = span;
    if (counters_) count(at, span.lane);
  } else {
    while (busy_.test_and_set(std::memory_order_acquire)) std::this_thread::yield();
    overflow_.push_back(span);
    busy_.clear(std::memory_order_release);
  }
  written_.fetch_add(1, std::memory_order_release);
}

LAMINA_INLINE void Profiler::begin_step() {
  close(), overflow_.clear();
  written_.store(0, std::memory_order_relaxed);
  time_from(0);
  begin_ = now();  // when that has read what there is to read
  claimed_.store(0, std::memory_order_release);
}

LAMINA_INLINE void Profiler::time_from(double begin) {
  used_before_ = usage();
  if (counters_) counted_ = counters_->read();
  begin_ = begin;
}

LAMINA_INLINE void Profiler::end_step() {
  if (stream_) stream_->wait();
  end_step(now());
}

LAMINA_INLINE void Profiler::end_step(double end) {
  end_ = end;
  check(begin_ > 0, "end_step() without begin_step()");
  await_all();  // a device's streams have come further than who looks after their collectives
  usage_ += usage() - used_before_;
  used_ = close();
  if (!overflow_.empty()) {
    spans_.insert(spans_.end(), overflow_.begin(), overflow_.end());
    spans_.resize(2 * spans_.size());
    if (counters_) counts_.resize(spans_.size());
    overflow_.clear();
  }
  seconds_.push_back(end_ - begin_);
  fold();
  last_begin_ = std::exchange(begin_, 0);
}

LAMINA_INLINE const Profiler::Cell& Profiler::cell(std::int32_t layer, Pass pass) const {
  static const Cell empty;
  const std::size_t i = index(layer, pass);
  return i < cells_.size() ? cells_[i] : empty;
}

LAMINA_INLINE std::size_t Profiler::close() {
  const std::size_t count = claimed_.exchange(closed, std::memory_order_acq_rel);
  if (count >= closed) return 0;
  while (written_.load(std::memory_order_acquire) != count) std::this_thread::yield();
  return count;
}

LAMINA_INLINE void Profiler::count(std::size_t at, Lane lane) {
  counts_[at] = {};
  if (lane == Lane::communication) return;
  const Counts total = counters_->read();
  counts_[at] = total - std::exchange(counted_, total);
}

LAMINA_INLINE void Profiler::fold() {
  const auto step = seconds_.size() - 1;
  for (std::size_t i = 0; counters_ && i < used_; ++i) {  // before they are sorted
    if (spans_[i].lane == Lane::communication) continue;
    auto& sum = cell_at(spans_[i].layer, spans_[i].pass).counts;
    if (sum)
      *sum += counts_[i];
    else
      sum = counts_[i];
  }
  std::sort(spans_.begin(), spans_.begin() + std::ptrdiff_t(used_),
            [](const Span& a, const Span& b) {
              return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
            });
  open_.clear();
  for (std::size_t i = 0; i < used_; ++i) {
    const Span& span = spans_[i];
    add(span, step, span.end - span.begin, 1);
    if (span.lane == Lane::communication) continue;
    while (!open_.empty() && spans_[open_.back()].end <= span.begin) open_.pop_back();
    if (!open_.empty()) {
      const Span& outer = spans_[open_.back()];
      add(outer, step, span.begin - std::min(span.end, outer.end), 0);
    }
    open_.push_back(i);
  }
  if (step < sample) fold_waits();
}

/// Keeps the step's collectives, and which of them ran while this rank waited. They run one after
/// the other, so that those that a wait overlaps follow each other.
LAMINA_INLINE void Profiler::fold_waits() {
  const std::size_t before = runs_.size();
  for (std::size_t i = 0; i < used_; ++i)
    if (const Span& s = spans_[i]; s.lane == Lane::communication)
      runs_.push_back({s.party, steps() - 1, s.begin, s.end});
  for (std::size_t i = 0; i < used_; ++i) {
    const Span& s = spans_[i];
    if (s.lane != Lane::wait || !std::strcmp(s.what, "post")) continue;
    const auto begins_later = [](double end, const Run& run) { return end < run.end; };
    auto run = std::upper_bound(runs_.begin() + std::ptrdiff_t(before), runs_.end(), s.begin,
                                begins_later);
    for (; run != runs_.end() && run->begin < s.end; ++run)
      waits_.push_back({std::size_t(run - runs_.begin()), s.layer, s.pass,
                        std::max(s.begin, run->begin), std::min(s.end, run->end)});
  }
}

LAMINA_INLINE Profiler::Cell& Profiler::cell_at(std::int32_t layer, Pass pass) {
  const std::size_t i = index(layer, pass);
  if (i >= cells_.size()) cells_.resize(i + 1);
  return cells_[i];
}

LAMINA_INLINE void Profiler::add(const Span& span, std::size_t step, double seconds, int calls) {
  Cell& cell = cell_at(span.layer, span.pass);
  cell.seconds[std::size_t(span.lane)] += seconds;
  if (span.lane == Lane::wait && step < sample) cell.sampled += seconds;
  cell.bytes += calls * span.bytes, cell.wire += calls * span.wire;
  if (span.lane != Lane::communication) {
    std::vector<double>& steps = span.lane == Lane::compute ? cell.steps : cell.waits;
    if (steps.empty()) steps.reserve(seconds_.capacity());
    if (steps.size() <= step) steps.resize(step + 1);
    steps[step] += seconds;
  }
  const auto same = [&](const KernelSum& k) {
    return k.lane == span.lane && (k.what == span.what || !std::strcmp(k.what, span.what));
  };
  auto kernel = std::find_if(cell.kernels.begin(), cell.kernels.end(), same);
  if (kernel == cell.kernels.end())
    kernel = cell.kernels.insert(kernel, {span.what, span.lane, 0, 0, 0});
  kernel->seconds += seconds, kernel->calls += calls, kernel->bytes += calls * span.bytes;
}

}  // namespace lamina
