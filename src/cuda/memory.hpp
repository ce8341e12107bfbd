// Memory: that of a GPU, and the streams that work on it.
#pragma once

#include "cuda/pinned.hpp"
#include "cuda/queue.hpp"

#include <lamina/tensor/memory_space.hpp>
#include <lamina/tensor/tensor.hpp>

#include <vector>

namespace lamina::cuda {

class Memory final : public MemorySpace {
 public:
  explicit Memory(int device);
  ~Memory() override;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  int device() const { return device_; }
  std::string name() const override { return text("cuda:", device_); }
  /// The UUID of the GPU: CUDA_VISIBLE_DEVICES and containers number theirs alike.
  std::string identity() const override;
  /// Of the GPU: its name is "NVIDIA H200".
  cudaDeviceProp properties() const;
  std::shared_ptr<void> allocate(std::size_t bytes) override;
  /// end(p) gives it back, when what this thread has put into streams of the GPU has run.
  template <class End>
  std::shared_ptr<void> own(void* p, const End& end) const {
    return {p, [device = device_, end](void* q) {
              settle_all(device);
              cudaSetDevice(device);
              end(q);
            }};
  }
  void settle() override;
  void zero(void* to, std::size_t bytes) override;
  void copy(const void* from, void* to, std::size_t bytes) override;
  using MemorySpace::put;
  void put_filled(Stream& stream, void* to, std::size_t bytes, const Fill& fill) override;
  void get(Stream& stream, const void* from, void* to, std::size_t bytes) override;
  std::shared_ptr<void> staging(std::size_t bytes) override;
  void carry(Stream& stream, const void* from, void* to, std::size_t bytes) override;
  /// From so many bytes on, what is put is uploaded beside the kernels of its stream.
  std::size_t least_beside = std::size_t(256) << 10;
  /// What use(room, stream) puts into the stream of the kernels reads what `fill` writes, which is
  /// uploaded to that room beside them.
  template <class Use>
  void put_beside(Stream& stream, std::size_t bytes, const Fill& fill, const Use& use) {
    Queue& queue = queue_of(stream);
    queue.only_once(from_host);
    const auto upload_to = [&](void* room, cudaStream_t into) { upload(room, bytes, fill, into); };
    queue.uploads().put(queue.stream(), bytes, upload_to, use);
  }
  std::size_t total_bytes() const override;
  std::size_t free_bytes() const override;

  /// work(stream) has run when this returns; it waits for no other stream.
  template <class Work>
  void run(const char* what, const Work& work) {
    select();
    ok(work(stream_), what);
    ok(cudaStreamSynchronize(stream_), what);
  }
  /// Where the work of a stream goes; it gets a queue here if it has none.
  Queue& queue_of(Stream& stream);
  /// Recorded as `what`: work(queue) puts it in. Its time is that which it takes on the GPU.
  template <class Work>
  void put(Stream& stream, Pass pass, const char* what, const Work& work) {
    Queue& queue = queue_of(stream);
    stream.run(pass, what, [&] { ok(work(queue), what); });
  }
  /// The address of an operand of a kernel; null where it is absent. Throws Error where it does not
  /// lie here.
  template <class T = void>
  T* at(const View& v) const {
    check(!v || v.space == this, "an operand ", v.form(), " lies ",
          v.space ? "in " + v.space->name() : "on the host", ", expected ", name());
    return static_cast<T*>(v.data);
  }

 private:
  static constexpr const char* from_host = "copies from the host";
  /// Throws nothing.
  static void settle_all(int device);
  void upload(void* to, std::size_t bytes, const Fill& fill, cudaStream_t into);
  void select() const { ok(cudaSetDevice(device_), "choose a GPU"); }

  int device_;
  cudaStream_t stream_ = nullptr;  ///< of what is done when a call returns
  PinnedBuffers pinned_;
};

}  // namespace lamina::cuda
