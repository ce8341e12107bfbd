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

  struct Taken {
    cudaEvent_t begin = nullptr, end = nullptr;
    std::uint64_t mark = 0;
    Recorder* recorder = nullptr;
    Span span;
  };
  /// What is put into the stream from here to end() is what `span` is the time of. Others may begin
  /// and end between the two.
  Taken& begin(cudaStream_t stream, Recorder& recorder, const Span& span);
  /// It is past when the mark is that `taken` is given next.
  static void end(Taken& taken, cudaStream_t stream);
  /// Nobody is told of it.
  static void drop(Taken& taken) { taken.mark = 0, taken.recorder = nullptr; }
  /// Tells the recorders of what was past with that mark, which has been waited for. Times are
  /// those of now(): the host looks at its clock when one more event has passed, in a stream of its
  /// own.
  void tell(std::uint64_t mark);

 private:
  Taken& next();

  std::deque<Taken> taken_;
  std::size_t told_ = 0, used_ = 0;
  cudaStream_t clock_ = nullptr;
  cudaEvent_t now_ = nullptr;
};

}  // namespace lamina::cuda
