// Timings: what is put into a stream of a GPU while somebody records, between two events each,
// which are read when all of it has run.
#pragma once

#include "cuda/status.hpp"

#include <lamina/tensor/stream.hpp>

#include <cstddef>
#include <deque>

namespace lamina::cuda {

/// Of one stream. Events are used again: once warm it makes none.
class Timings {
 public:
  Timings() = default;
  ~Timings();
  Timings(const Timings&) = delete;
  Timings& operator=(const Timings&) = delete;

  /// work() puts into the stream what `span` is to be the time of.
  template <class Work>
  void take(cudaStream_t stream, Recorder& recorder, const Span& span, const Work& work) {
    Taken& taken = next();
    taken.recorder = &recorder, taken.span = span;
    ok(cudaEventRecord(taken.begin, stream), "record an event");
    work();
    ok(cudaEventRecord(taken.end, stream), "record an event");
    ++used_;
  }
  /// Tells the recorders, when all has run. Times are those of now(): the host looks at its clock
  /// when one more event has passed.
  void tell(cudaStream_t stream);

 private:
  struct Taken {
    cudaEvent_t begin = nullptr, end = nullptr;
    Recorder* recorder = nullptr;
    Span span;
  };
  Taken& next();

  std::deque<Taken> taken_;
  std::size_t used_ = 0;
  cudaEvent_t now_ = nullptr;
};

}  // namespace lamina::cuda
