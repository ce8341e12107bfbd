// Uploads: copies to a GPU that run beside the kernels of a stream.
#pragma once

#include "cuda/status.hpp"

#include <array>
#include <cstddef>
#include <utility>

namespace lamina::cuda {

/// They have a stream of their own, and go by way of two rooms in turn: while kernels run, the next
/// batch arrives in one of them. What writes a room and what reads it wait for each other by
/// events, on the GPU; the host waits for neither.
class Uploads {
 public:
  Uploads() {
    ok(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "make a stream");
    for (Room& room : rooms_)
      for (cudaEvent_t* event : {&room.full, &room.read})
        ok(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "make an event");
  }
  /// What they were for must have run.
  ~Uploads() {
    settle();
    for (Room& room : rooms_) {
      if (room.data) cudaFreeAsync(room.data, stream_);
      cudaEventDestroy(room.full), cudaEventDestroy(room.read);
    }
    cudaStreamDestroy(stream_);
  }
  Uploads(const Uploads&) = delete;
  Uploads& operator=(const Uploads&) = delete;

  /// When all that was put has arrived in its room.
  void settle() { cudaStreamSynchronize(stream_); }
  /// The room of what was put last.
  const void* newest() const { return turn_ == 0 ? nullptr : rooms_[(turn_ - 1) % 2].data; }
  /// What use(room, compute) puts into `compute` reads so many bytes, which upload(room, stream)
  /// puts into the room by that stream.
  template <class Upload, class Use>
  void put(cudaStream_t compute, std::size_t bytes, const Upload& upload, const Use& use) {
    Room& room = rooms_[turn_++ % rooms_.size()];
    ok(cudaStreamWaitEvent(stream_, room.read, 0), "have a stream wait for an event");
    if (room.bytes < bytes) grow(room, bytes);
    upload(room.data, stream_);
    ok(cudaEventRecord(room.full, stream_), "record an event");
    ok(cudaStreamWaitEvent(compute, room.full, 0), "have a stream wait for an event");
    ok(use(room.data, compute), "use what was uploaded");
    ok(cudaEventRecord(room.read, compute), "record an event");
  }

 private:
  struct Room {
    void* data = nullptr;
    std::size_t bytes = 0;
    cudaEvent_t full = nullptr, read = nullptr;
  };

  /// Behind what has read it.
  void grow(Room& room, std::size_t bytes) {
    if (room.data) ok(cudaFreeAsync(std::exchange(room.data, nullptr), stream_), "free memory");
    room.bytes = 0;
    ok_memory(cudaMallocAsync(&room.data, bytes, stream_), "a batch that is uploaded", bytes);
    room.bytes = bytes;
  }

  cudaStream_t stream_ = nullptr;
  std::array<Room, 2> rooms_;
  std::size_t turn_ = 0;
};

}  // namespace lamina::cuda
