#include "cuda/timings.hpp"

#include <utility>

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
}

Timings::Taken& Timings::next() {
  if (used_ == taken_.size()) taken_.emplace_back();
  make(taken_[used_].begin), make(taken_[used_].end);
  return taken_[used_];
}

void Timings::tell(cudaStream_t stream) {
  if (used_ == 0) return;
  const std::size_t count = std::exchange(used_, 0);
  make(now_);
  ok(cudaEventRecord(now_, stream), "record an event");
  ok(cudaEventSynchronize(now_), "wait for an event");
  const double time = now();
  const auto at = [&](cudaEvent_t event) {
    float milliseconds = 0;
    ok(cudaEventElapsedTime(&milliseconds, event, now_), "time a kernel");
    return time - 1e-3 * double(milliseconds);
  };
  for (std::size_t i = 0; i < count; ++i) {
    Taken& taken = taken_[i];
    taken.span.begin = at(taken.begin), taken.span.end = at(taken.end);
    taken.recorder->record(taken.span);
  }
}

}  // namespace lamina::cuda
