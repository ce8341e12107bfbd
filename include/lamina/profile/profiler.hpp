// Profiler: keeps the spans of a step, and folds them into sums per layer and pass when it ends.
#pragma once

#include <lamina/profile/counters.hpp>
#include <lamina/profile/usage.hpp>
#include <lamina/tensor/stream.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <optional>
#include <span>
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
/// start() and stop() may come in the middle of a run, as often as one likes; steps add up.
///
/// Any thread may record, at any time. Recording takes no lock and no memory, except in a step with
/// more spans than any before it.
class Profiler final : public Recorder {
 public:
  /// Room for that many spans per step and that many steps; it grows where that is too little.
  /// `counters`, if any, are read whenever the thread that began the step records: what they
  /// counted since its last span belongs to this one. They must outlive the profiler.
  explicit Profiler(std::size_t spans = 4096, std::size_t steps = 128,
                    Counters* counters = nullptr);

  ~Profiler() override;

  /// Records what runs on `stream`, from now on; a step begins. The stream must outlive that.
  void start(Stream& stream);
  /// Ends the step, as end_step(), and begins another one.
  void next_step();
  /// Ends recording; the step that has begun is forgotten. Does nothing before start().
  void stop();

  void record(const Span& span) override;

  /// Starts a step; one that was not ended is forgotten.
  void begin_step();

  /// The step that has begun takes its time from then on, in seconds of now(): what a device had
  /// before it was past then.
  void time_from(double begin);

  /// Ends the step, after all of its collectives have been waited for. Throws Error without a step.
  void end_step();
  /// The same of a step that had ended then.
  void end_step(double end);

  /// All work under one name, over all steps.
  struct KernelSum {
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
    double sampled = 0;                           ///< seconds of waiting in the sample's steps
    std::optional<Counts> counts;                 ///< where there are counters
    std::vector<double> steps;                    ///< compute seconds of each step
    std::vector<double> waits;                    ///< seconds of waiting, likewise
    std::vector<KernelSum> kernels;
  };

  /// A collective, as this rank's communication thread ran it.
  struct Run {
    Party party;
    int step = 0;
    double begin = 0, end = 0;  ///< seconds of now()
  };
  /// A part of this rank's waiting: while that collective ran, whichever it was that it waited for.
  struct Wait {
    std::size_t run = 0;  ///< index in runs()
    std::int32_t layer = -1;
    Pass pass = Pass::forward;
    double begin = 0, end = 0;  ///< within the run
  };

  /// Steps, from the first one on, of which runs() and waits() are kept: for a sample of how
  /// waiting divides, in memory that does not grow with the length of a run.
  static constexpr std::size_t sample = 64;
  /// In the order in which they ran.
  const std::vector<Run>& runs() const { return runs_; }
  const std::vector<Wait>& waits() const { return waits_; }
  /// Over all steps, of the thread that began and ended them.
  const Usage& used() const { return usage_; }

  /// Steps measured so far.
  int steps() const { return int(seconds_.size()); }
  /// Wall time of each step.
  const std::vector<double>& seconds() const { return seconds_; }
  /// `layer` counts from -1, the work outside of layers. An empty cell where nothing ran.
  const Cell& cell(std::int32_t layer, Pass pass) const;
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
  std::size_t close();

  void count(std::size_t at, Lane lane);

  void fold();
  void fold_waits();

  Cell& cell_at(std::int32_t layer, Pass pass);

  void add(const Span& span, std::size_t step, double seconds, int calls);

  std::vector<Span> spans_;
  std::atomic<std::size_t> claimed_{closed}, written_{0};
  std::atomic_flag busy_;  // guards overflow_
  std::vector<Span> overflow_;
  std::size_t used_ = 0;
  Stream* stream_ = nullptr;  // between start() and stop()
  Recorder* before_ = nullptr;
  double begin_ = 0, end_ = 0, last_begin_ = 0;
  Usage used_before_, usage_ = {0, 0, 0, 0, 0};
  Counters* counters_;
  Counts counted_;              // at the last span of the compute thread
  std::vector<Counts> counts_;  // by span

  std::vector<double> seconds_;
  std::vector<Cell> cells_;
  std::vector<Run> runs_;
  std::vector<Wait> waits_;
  std::vector<std::size_t> open_;  // spans around the one at hand
};

}  // namespace lamina
