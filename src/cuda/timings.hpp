// Timings: what is put into a stream of a GPU while somebody records, between two events each,
// which are read when all of it has run.
#pragma once

#include "cuda/status.hpp"

#include <lamina/tensor/stream.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>

namespace lamina::cuda {

/// Of one stream. Events are used again: once warm it makes none.
class Timings {
 public:
  Timings() = default;
  ~Timings();
  Timings(const Timings&) = delete;
  Timings& operator=(const Timings&) = delete;

  /// work() puts into the stream what `span` is to be the time of; it is past when `mark` is.
  template <class Work>
  void take(cudaStream_t stream, std::uint64_t mark, Recorder& recorder, const Span& span,
            const Work& work) {
    Taken& taken = next();
    taken.mark = mark, taken.recorder = &recorder, taken.span = span;
    ok(cudaEventRecord(taken.begin, stream), "record an event");
    work();
    ok(cudaEventRecord(taken.end, stream), "record an event");
    ++used_;
  }
  /// Tells the recorders of what was past with that mark, which has been waited for. Times are
  /// those of now(): the host looks at its clock when one more event has passed, in a stream of its
  /// own.
  void tell(std::uint64_t mark);

 private:
  struct Taken {
    cudaEvent_t begin = nullptr, end = nullptr;
    std::uint64_t mark = 0;
    Recorder* recorder = nullptr;
    Span span;
  };
  Taken& next();

  std::deque<Taken> taken_;
  std::size_t told_ = 0, used_ = 0;
  cudaStream_t clock_ = nullptr;
  cudaEvent_t now_ = nullptr;
};

}  // namespace lamina::cuda
