// Queue: a stream of CUDA's as what a Stream of ours puts its work into.
#pragma once

#include "cuda/status.hpp"
#include "cuda/timings.hpp"
#include "cuda/uploads.hpp"

#include <lamina/tensor/stream.hpp>

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace lamina::cuda {

/// May be waited for by any thread; all else is for the one that made it.
class Queue final : public StreamQueue {
 public:
  explicit Queue(int device);
  ~Queue() override;
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  int device() const { return device_; }
  /// For kernels and copies, which whoever calls this is about to put in.
  cudaStream_t stream() {
    const std::lock_guard lock(mutex_);
    marked_ = false;
    return stream_;
  }
  /// At least so much memory of the GPU for a kernel to write to while it runs; the next one that
  /// asks gets the same.
  void* scratch(std::size_t bytes);
  /// What a library keeps for this stream: what make() made when it was asked for first.
  template <class T, class Make>
  T& kept(const Make& make) {
    if (!kept_) kept_ = make();
    return *static_cast<T*>(kept_.get());
  }
  /// What goes to the GPU beside what is in this stream.
  Uploads& uploads() {
    if (!uploads_) uploads_.emplace();
    return *uploads_;
  }
  /// By events; the recorder is told when this thread has waited for what work() put in.
  void time(Recorder& recorder, Span span, const std::function<void()>& work) override;
  /// Runs on a thread of the driver's, which must not call CUDA.
  void push(std::unique_ptr<Work> work) override;
  std::uint64_t mark() override;
  bool past(std::uint64_t mark) noexcept override;
  /// The GPU waits, where the event is one of a GPU. Behind one that is recorded this queue is
  /// recorded, too.
  void follow(const Event& event) override;
  /// Whoever waits for it gets this error, and work of the host that is still to come does not run.
  /// The first one is kept.
  void fail(const std::exception_ptr& error);
  /// When all that is there has run, whatever came of it.
  void settle();

  /// As graphs of CUDA.
  bool records() const override { return true; }
  /// Is told whenever a recording has been put into a stream: what came before it, and its end.
  using Watcher = std::function<void(const Event& before, const Event& end)>;
  /// If this queue is being recorded: `watcher` is told, one for each `who`.
  bool watch_recording(const void* who, const Watcher& watcher);

 protected:
  void run_to(std::uint64_t mark) override;
  void begin_recording() override;
  std::unique_ptr<Recording> end_recording() override;
  void drop_recording() noexcept override;

 private:
  struct Mark {
    cudaEvent_t event = nullptr;
    std::uint64_t number = 0;
    int waiting = 0;  ///< threads that wait for it
  };
  using Marks = std::vector<std::unique_ptr<Mark>>;
  struct Job {
    Queue* queue;
    std::unique_ptr<Work> work;
  };
  /// What is being recorded, in this queue and in those that follow it.
  struct Capture {
    std::vector<Queue*> queues;
    std::vector<std::pair<const void*, Watcher>> watchers;
  };
  class Graph;

  static void run(void* job);
  void rethrow();
  static bool of_recording(std::uint64_t number) { return number >= recorded; }
  Mark* find(std::uint64_t number) const;
  std::unique_ptr<Mark> free_mark();
  void take_part(const std::shared_ptr<Capture>& capture);
  std::shared_ptr<Capture> end_capture() noexcept;

  static constexpr std::uint64_t recorded = std::uint64_t(1) << 63;  // marks from here on

  int device_;
  cudaStream_t stream_ = nullptr;
  void* scratch_ = nullptr;
  std::size_t scratch_bytes_ = 0;
  std::vector<void*> former_scratch_;  // in which what was recorded still writes
  std::shared_ptr<void> kept_;
  std::optional<Uploads> uploads_;
  Timings timings_;
  std::mutex mutex_;                  // of what follows
  Marks marks_;                       // in order; the first ones, once past, are used again
  Marks recorded_marks_;              // of the capture
  Marks unused_;                      // whose events were of captures
  std::shared_ptr<Capture> capture_;  // null but while this is recorded
  std::uint64_t count_ = 0;
  bool marked_ = false;  // nothing has come since the last mark
  bool has_graphs_ = false;
  // The driver's thread must not wait for who waits, in a call of CUDA, for room in the stream.
  std::mutex error_mutex_;
  std::exception_ptr error_;
};

}  // namespace lamina::cuda
