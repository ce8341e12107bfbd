// Profiler: keeps the spans of a step, and folds them into sums per layer and pass when it ends.
#pragma once

#include <lamina/base/error.hpp>
#include <lamina/profile/counters.hpp>
#include <lamina/tensor/stream.hpp>

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace lamina {

inline constexpr int lane_count = 3;

/// Records what runs between begin_step() and end_step(); what runs outside of them is not kept.
///
///   Profiler profiler;
///   profiler.start(stream);
///   for (int i = 0; i < 10; ++i) step(), profiler.next_step();
///   profiler.stop();
///
/// start() and stop() may come in the midst of a run, as often as one likes; steps add up.
///
/// Any thread may record, at any time. Recording takes no lock and no memory, except in a step with
/// more spans than any before it.
class Profiler final : public Recorder {
 public:
  /// Room for that many spans per step and that many steps; it grows where that is too little.
  /// `counters`, if any, are read whenever the thread that began the step records: what they
  /// counted since its last span belongs to this one. They must outlive the profiler.
  explicit Profiler(std::size_t spans = 4096, std::size_t steps = 128, Counters* counters = nullptr)
      : spans_(spans), counters_(counters) {
    seconds_.reserve(steps);
    open_.reserve(64);
    if (counters_) counts_.resize(spans);
  }

  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;
  ~Profiler() override { stop(); }

  /// Records what runs on `stream`, from now on; a step begins. The stream must outlive that.
  void start(Stream& stream) {
    stop();
    stream_ = &stream, before_ = stream.recorder();
    stream.record_to(this);
    begin_step();
  }
  /// Ends the step, as end_step(), and begins another one.
  void next_step() {
    end_step();
    begin_step();
  }
  /// Ends recording; the step that has begun is forgotten. Does nothing before start().
  void stop() {
    if (!stream_) return;
    std::exchange(stream_, nullptr)->record_to(before_);
    close();
    begin_ = 0;
  }

  void record(const Span& span) override {
    const std::size_t at = claimed_.fetch_add(1, std::memory_order_acquire);
    if (at >= closed) return;
    if (at < spans_.size()) {
      spans_[at] = span;
      if (counters_) count(at, span.lane);
    } else {
      while (busy_.test_and_set(std::memory_order_acquire)) sched_yield();
      overflow_.push_back(span);
      busy_.clear(std::memory_order_release);
    }
    written_.fetch_add(1, std::memory_order_release);
  }

  /// Starts a step; one that was not ended is forgotten.
  void begin_step() {
    close();
    written_.store(0, std::memory_order_relaxed);
    if (counters_) counted_ = counters_->read();
    begin_ = now();
    claimed_.store(0, std::memory_order_release);
  }

  /// Ends the step, after all of its collectives have been waited for. Throws Error without a step.
  void end_step() {
    end_ = now();
    check(begin_ > 0, "end_step() without begin_step()");
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

  /// All work under one name, over all steps.
  struct Kernel {
    const char* what = "";
    Lane lane = Lane::compute;
    std::int64_t calls = 0;
    double seconds = 0, bytes = 0;
  };
  /// One pass of one layer, over all steps. A span that lies in another one counts in its own place
  /// only, so that the sum over compute and wait never exceeds the time that has passed.
  struct Cell {
    std::array<double, lane_count> seconds = {};  ///< by lane
    double bytes = 0, wire = 0;                   ///< of the collectives: payload, on the link
    std::optional<Counts> counts;                 ///< where there are counters
    std::vector<double> steps;                    ///< compute seconds of each step
    std::vector<Kernel> kernels;
  };

  /// Steps measured so far.
  int steps() const { return int(seconds_.size()); }
  /// Wall time of each step.
  const std::vector<double>& seconds() const { return seconds_; }
  /// `layer` counts from -1, the work outside of layers. An empty cell where nothing ran.
  const Cell& cell(std::int32_t layer, Pass pass) const {
    static const Cell empty;
    const std::size_t i = index(layer, pass);
    return i < cells_.size() ? cells_[i] : empty;
  }
  /// The last step's spans by begin, until the next begin_step(): for a timeline.
  std::span<const Span> last_step() const { return {spans_.data(), used_}; }
  /// When that step began, in seconds of now().
  double last_begin() const { return last_begin_; }

 private:
  static constexpr std::size_t closed = std::size_t(1) << 60;  // more than anybody counts up to

  static std::size_t index(std::int32_t layer, Pass pass) {
    return std::size_t(layer + 1) * pass_count + std::size_t(pass);
  }

  /// Turns away all who come from now on and waits for those who are still writing; returns how
  /// many spans there are.
  std::size_t close() {
    const std::size_t count = claimed_.exchange(closed, std::memory_order_acq_rel);
    if (count >= closed) return 0;
    while (written_.load(std::memory_order_acquire) != count) sched_yield();
    return count;
  }

  void count(std::size_t at, Lane lane) {
    counts_[at] = {};
    if (lane == Lane::communication) return;
    const Counts total = counters_->read();
    counts_[at] = total - std::exchange(counted_, total);
  }

  void fold() {
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
  }

  Cell& cell_at(std::int32_t layer, Pass pass) {
    const std::size_t i = index(layer, pass);
    if (i >= cells_.size()) cells_.resize(i + 1);
    return cells_[i];
  }

  void add(const Span& span, std::size_t step, double seconds, int calls) {
    Cell& cell = cell_at(span.layer, span.pass);
    cell.seconds[std::size_t(span.lane)] += seconds;
    cell.bytes += calls * span.bytes, cell.wire += calls * span.wire;
    if (span.lane == Lane::compute) {
      if (cell.steps.empty()) cell.steps.reserve(seconds_.capacity());
      if (cell.steps.size() <= step) cell.steps.resize(step + 1);
      cell.steps[step] += seconds;
    }
    const auto same = [&](const Kernel& k) {
      return k.lane == span.lane && (k.what == span.what || !std::strcmp(k.what, span.what));
    };
    auto kernel = std::find_if(cell.kernels.begin(), cell.kernels.end(), same);
    if (kernel == cell.kernels.end())
      kernel = cell.kernels.insert(kernel, {span.what, span.lane, 0, 0, 0});
    kernel->seconds += seconds, kernel->calls += calls, kernel->bytes += calls * span.bytes;
  }

  std::vector<Span> spans_;
  std::atomic<std::size_t> claimed_{closed}, written_{0};
  std::atomic_flag busy_;  // guards overflow_
  std::vector<Span> overflow_;
  std::size_t used_ = 0;
  Stream* stream_ = nullptr;  // between start() and stop()
  Recorder* before_ = nullptr;
  double begin_ = 0, end_ = 0, last_begin_ = 0;
  Counters* counters_;
  Counts counted_;              // at the last span of the compute thread
  std::vector<Counts> counts_;  // by span

  std::vector<double> seconds_;
  std::vector<Cell> cells_;
  std::vector<std::size_t> open_;  // spans around the one at hand
};

}  // namespace lamina
