// Streams of the stand-in for CUDA's runtime, and what is recorded of them.
#pragma once

#include "fake/runtime.hpp"
#include "support/device_seed.hpp"
#include "support/marks.hpp"

#include <lamina/base/random.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

class FakeStream;

/// What a graph will have: works, each with those that it comes after.
struct FakeCapture {
  using Nodes = std::vector<std::size_t>;
  struct Node {
    std::function<void()> work;
    Nodes after;
  };

  /// Behind `tail`, which it then is.
  cudaError_t add(std::function<void()> work, Nodes& tail) {
    if (broken) return cudaErrorStreamCaptureInvalidated;
    nodes.push_back({std::move(work), tail});
    tail = {nodes.size() - 1};
    return cudaSuccess;
  }
  cudaError_t refuse(cudaError_t why) {
    broken = true;
    return why;
  }

  std::vector<Node> nodes;
  std::vector<FakeStream*> streams;  ///< the first one is where it began
  bool broken = false;
};

/// A point in a stream, or nothing yet; or one in what is recorded.
struct CUevent_st {
  FakeStream* stream = nullptr;
  std::uint64_t mark = 0;
  std::shared_ptr<FakeCapture> capture = nullptr;
  FakeCapture::Nodes nodes = {};
  std::shared_ptr<double> time = nullptr;  ///< when it was past; of events that have one
};

namespace lamina::test {

inline std::atomic<bool> lost = false, runs_ahead = true, streams_are_full = false;
/// So many works can be put into streams, then the GPU is lost.
inline std::atomic<std::int64_t> works_left = std::numeric_limits<std::int64_t>::max();
inline thread_local bool in_stream = false;
/// What the calling thread records.
inline thread_local std::shared_ptr<FakeCapture> recorded;

/// Once more.
void count(std::int64_t FakeCounts::*what);

/// What a call may not be, from here and now.
inline cudaError_t refused() {
  if (in_stream) return cudaErrorNotPermitted;
  return lost ? cudaErrorLaunchFailure : cudaSuccess;
}
/// Of a call that waits, asks or allocates: it may not be while its thread records, either.
inline cudaError_t refused_in_capture() {
  if (const cudaError_t why = refused()) return why;
  return recorded ? recorded->refuse(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

}  // namespace lamina::test

/// A thread on which nothing runs before somebody waits for it.
class FakeStream final : public CUstream_st {
 public:
  explicit FakeStream(std::uint64_t number) : random_(lamina::test::device_seed() * 1000 + number) {
    thread_ = std::thread([this] { loop(); });
  }
  /// What is in it still runs. It stays, for events that were recorded there.
  void end() {
    {
      const std::lock_guard lock(mutex_);
      wanted_ = put_, ending_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  cudaError_t put(std::function<void()> work) override {
    if (lamina::test::works_left-- == 0) lamina::test::lost = true;
    if (const cudaError_t why = lamina::test::refused()) return why;
    if (capture) return capture->add(std::move(work), tail);
    const std::lock_guard lock(mutex_);
    works_.push_back(std::move(work));
    ++put_;
    return cudaSuccess;
  }
  std::uint64_t mark() {
    const std::lock_guard lock(mutex_);
    return put_;
  }
  bool done(std::uint64_t mark) {
    const std::lock_guard lock(mutex_);
    want(perhaps() ? mark : 0);
    return done_.done() >= mark;
  }
  bool past(std::uint64_t mark) {
    const std::lock_guard lock(mutex_);
    return done_.done() >= mark;
  }
  void run_to(std::uint64_t mark) {
    std::unique_lock lock(mutex_);
    want(mark);
    done_.wait(lock, mark);
  }
  void hurry() {
    if (FakeStream* other = launched_in; other && other != this) other->hurry();
    const std::lock_guard lock(mutex_);
    wanted_ = put_;
    changed_.notify_one();
  }

  /// Of an event that is recorded, in this stream that is or is from here on.
  cudaError_t follow_in_capture(const CUevent_st& event) {
    if (!event.capture) return capture->refuse(cudaErrorStreamCaptureIsolation);
    if (event.capture != lamina::test::recorded) return cudaErrorCapturedEvent;
    if (!capture) {
      capture = event.capture, tail.clear();
      capture->streams.push_back(this);
    }
    tail.insert(tail.end(), event.nodes.begin(), event.nodes.end());
    return cudaSuccess;
  }
  /// Where graphs that have been recorded here run.
  std::atomic<FakeStream*> launched_in = nullptr;

  // Of the thread that fills it.
  std::shared_ptr<FakeCapture> capture;  ///< null but while it is being recorded
  FakeCapture::Nodes tail;               ///< what the next node comes after

 private:
  bool perhaps() { return lamina::test::runs_ahead && random_.uniform(draws_++) < 0.5; }
  void want(std::uint64_t mark) {
    wanted_ = std::max(wanted_, perhaps() ? put_ : mark);
    if (wanted_ > done_.done()) changed_.notify_one();
  }
  void loop() {
    lamina::test::in_stream = true;
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return done_.done() < wanted_ || ending_; });
      if (done_.done() == wanted_) return;
      const auto work = std::move(works_.front());
      works_.pop_front();
      lock.unlock();
      if (!lamina::test::lost) work();
      lock.lock();
      done_.add();
    }
  }

  const lamina::Random random_;
  std::mutex mutex_;
  std::condition_variable changed_;  // what is wanted
  std::deque<std::function<void()>> works_;
  lamina::test::Marks done_;
  std::uint64_t put_ = 0, wanted_ = 0, draws_ = 0;
  bool ending_ = false;
  std::thread thread_;
};

inline FakeStream& fake(cudaStream_t stream) { return static_cast<FakeStream&>(*stream); }
