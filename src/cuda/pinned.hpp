// Buffers of the host that a GPU copies from and to behind the caller.
#pragma once

#include "cuda/status.hpp"

#include <bit>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace lamina::cuda {

/// Lends them; those whose copies have run are lent again, so that a steady step makes none.
class PinnedBuffers {
  struct Buffer {
    void* data = nullptr;
    std::size_t bytes = 0;
    cudaEvent_t past = nullptr;  ///< recorded behind the last copy
    bool lent = true;

    explicit Buffer(std::size_t size) : bytes(size) {
      ok_pinned(cudaHostAlloc(&data, bytes, cudaHostAllocDefault), bytes);
      ok(cudaEventCreateWithFlags(&past, cudaEventDisableTiming), "make an event");
    }
    ~Buffer() {
      cudaEventSynchronize(past);
      cudaEventDestroy(past);
      cudaFreeHost(data);
    }
    Buffer(const Buffer&) = delete;
  };

 public:
  class Loan {
   public:
    Loan(PinnedBuffers& from, Buffer& buffer) : from_(&from), buffer_(&buffer) {}
    ~Loan() { from_->take_back(*buffer_); }
    Loan(const Loan&) = delete;

    void* data() const { return buffer_->data; }
    /// It must not be lent again before what is in the stream by now has run.
    void until_past(cudaStream_t stream) {
      ok(cudaEventRecord(buffer_->past, stream), "record an event");
    }

   private:
    PinnedBuffers* from_;
    Buffer* buffer_;
  };

  /// One of at least so many bytes, and less than twice as many.
  Loan lend(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const std::size_t size = std::bit_ceil(bytes);
    for (const auto& buffer : buffers_)
      if (!buffer->lent && buffer->bytes == size && cudaEventQuery(buffer->past) == cudaSuccess) {
        buffer->lent = true;
        return {*this, *buffer};
      }
    buffers_.push_back(std::make_unique<Buffer>(size));
    return {*this, *buffers_.back()};
  }

 private:
  void take_back(Buffer& buffer) {
    const std::lock_guard lock(mutex_);
    buffer.lent = false;
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

}  // namespace lamina::cuda
