#include "cuda/timings.hpp"

#include <limits>

namespace lamina::cuda {

namespace {

void make(cudaEvent_t& event) {
  if (!event) ok(cudaEventCreate(&event), "make an event");
}

}  // namespace

Timings::~Timings() {
  for (const Taken& taken : taken_)
    for (const cudaEvent_t event : {taken.begin, taken.end})
      if (event) cudaEventDestroy(event);
  if (now_) cudaEventDestroy(now_);
  if (clock_) cudaStreamDestroy(clock_);
}

Timings::Taken& Timings::next() {
  if (used_ == taken_.size()) taken_.emplace_back();
  make(taken_[used_].begin), make(taken_[used_].end);
  return taken_[used_];
}

Timings::Taken& Timings::begin(cudaStream_t stream, Recorder& recorder, const Span& span) {
  Taken& taken = next();
  ok(cudaEventRecord(taken.begin, stream), "record an event");
  taken.mark = std::numeric_limits<std::uint64_t>::max();
  taken.recorder = &recorder, taken.span = span;
  ++used_;
  return taken;
}

void Timings::end(Taken& taken, cudaStream_t stream) {
  ok(cudaEventRecord(taken.end, stream), "record an event");
}

void Timings::tell(std::uint64_t mark) {
  if (told_ == used_ || taken_[told_].mark > mark) return;
  if (!clock_) ok(cudaStreamCreateWithFlags(&clock_, cudaStreamNonBlocking), "make a stream");
  make(now_);
  ok(cudaEventRecord(now_, clock_), "record an event");
  ok(cudaEventSynchronize(now_), "wait for an event");
  const double time = now();
  const auto at = [&](cudaEvent_t event) {
    float milliseconds = 0;
    ok(cudaEventElapsedTime(&milliseconds, event, now_), "time a kernel");
    return time - 1e-3 * double(milliseconds);
  };
  for (; told_ < used_ && taken_[told_].mark <= mark; ++told_) {
    Taken& taken = taken_[told_];
    if (!taken.recorder) continue;
    taken.span.begin = at(taken.begin), taken.span.end = at(taken.end);
    taken.recorder->record(taken.span);
  }
  if (told_ == used_) told_ = used_ = 0;
}

}  // namespace lamina::cuda
