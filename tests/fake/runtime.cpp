// A stand-in for CUDA's runtime: memory is the host's, streams are threads on which nothing runs
// before somebody waits for it; then as much as was waited for, or by chance all that is there.
// What it hands out is full of NaN, what is freed too. Calls that a GPU refuses it refuses: from
// work that runs in a stream, or with memory of the host that a copy would have to wait for.
#include "fake/runtime.hpp"

#include <lamina/base/random.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

/// A point in a stream, or nothing yet.
struct CUevent_st {
  class FakeStream* stream = nullptr;
  std::uint64_t mark = 0;
};

namespace {

using lamina::test::FakeCounts;

std::mutex guard;  // of all that is here but what a stream has for itself
std::map<const char*, std::size_t> device, pinned;
FakeCounts counted;
std::size_t limit = std::size_t(1) << 34, taken = 0;
std::atomic<bool> lost = false;
thread_local bool in_stream = false;

std::uint64_t seed() {
  const char* const text = std::getenv("LAMINA_DEVICE_SEED");
  return text ? std::strtoull(text, nullptr, 10) : 0;
}

/// What a call may not be, from here and now.
cudaError_t refused() {
  if (in_stream) return cudaErrorNotPermitted;
  return lost ? cudaErrorLaunchFailure : cudaSuccess;
}

bool inside(const std::map<const char*, std::size_t>& memory, const void* p, std::size_t bytes) {
  const char* const at = static_cast<const char*>(p);
  auto next = memory.upper_bound(at);
  if (next == memory.begin()) return false;
  const auto& [begin, size] = *--next;
  return at >= begin && at + bytes <= begin + size;
}

}  // namespace

class FakeStream final : public CUstream_st {
 public:
  explicit FakeStream(std::uint64_t number) : random_(seed() * 1000 + number) {
    thread_ = std::thread([this] { loop(); });
  }
  /// What is in it still runs. It stays, for events that were recorded there.
  void end() {
    {
      const std::lock_guard lock(mutex_);
      wanted_ = put_, ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  cudaError_t put(std::function<void()> work) override {
    if (const cudaError_t why = refused()) return why;
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
    want(random_.uniform(draws_++) < 0.5 ? mark : 0);
    return done_ >= mark;
  }
  void run_to(std::uint64_t mark) {
    std::unique_lock lock(mutex_);
    want(mark);
    changed_.wait(lock, [&] { return done_ >= mark; });
  }
  void hurry() {
    const std::lock_guard lock(mutex_);
    wanted_ = put_;
    changed_.notify_all();
  }

 private:
  void want(std::uint64_t mark) {
    const bool all = random_.uniform(draws_++) < 0.5;
    wanted_ = std::max(wanted_, all ? put_ : mark);
    changed_.notify_all();
  }
  void loop() {
    in_stream = true;
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return done_ < wanted_ || ending_; });
      if (done_ == wanted_) return;
      const auto work = std::move(works_.front());
      works_.pop_front();
      lock.unlock();
      if (!lost) work();
      lock.lock();
      ++done_;
      changed_.notify_all();
    }
  }

  const lamina::Random random_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> works_;
  std::uint64_t put_ = 0, done_ = 0, wanted_ = 0, draws_ = 0;
  bool ending_ = false;
  std::thread thread_;
};

namespace lamina::test {

FakeCounts fake_counts() {
  const std::lock_guard lock(guard);
  return counted;
}
void fake_memory(std::size_t bytes) {
  const std::lock_guard lock(guard);
  limit = bytes;
}
void lose_device(bool gone) { lost = gone; }
void hurry(cudaStream_t stream) { static_cast<FakeStream&>(*stream).hurry(); }

}  // namespace lamina::test

namespace {

FakeStream& of(cudaStream_t stream) { return static_cast<FakeStream&>(*stream); }

void count(std::int64_t FakeCounts::*what) {
  const std::lock_guard lock(guard);
  ++(counted.*what);
}

cudaError_t add(std::map<const char*, std::size_t>& memory, void** to, std::size_t bytes) {
  char* const at = static_cast<char*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
  std::memset(at, 0xFF, bytes);
  const std::lock_guard lock(guard);
  ++counted.allocations;
  memory[at] = bytes;
  *to = at;
  return cudaSuccess;
}

/// What is freed is spoilt and kept, so that who uses it all the same finds NaN.
std::size_t drop(std::map<const char*, std::size_t>& memory, void* p) {
  const std::lock_guard lock(guard);
  const auto at = memory.find(static_cast<char*>(p));
  if (at == memory.end()) return 0;
  const std::size_t bytes = at->second;
  std::memset(p, 0xFF, bytes);
  memory.erase(at);
  return bytes;
}

}  // namespace

const char* cudaGetErrorString(cudaError_t status) {
  switch (status) {
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNotPermitted:
      return "operation not permitted";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    default:
      return "invalid argument";
  }
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int number) {
  if (const cudaError_t why = refused()) return why;
  return number == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  if (const cudaError_t why = refused()) return why;
  const std::lock_guard lock(guard);
  *free = limit - std::min(limit, taken), *total = limit;
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** to, std::size_t bytes, cudaStream_t) {
  if (const cudaError_t why = refused()) return why;
  {
    const std::lock_guard lock(guard);
    if (taken + bytes > limit) return cudaErrorMemoryAllocation;
    taken += bytes;
  }
  return add(device, to, bytes);
}
cudaError_t cudaFreeAsync(void* p, cudaStream_t stream) {
  return stream->put([p] {
    const std::size_t bytes = drop(device, p);
    const std::lock_guard lock(guard);
    taken -= bytes;
  });
}
cudaError_t cudaHostAlloc(void** to, std::size_t bytes, unsigned) {
  if (const cudaError_t why = refused()) return why;
  return add(pinned, to, bytes);
}
cudaError_t cudaFreeHost(void* p) {
  if (const cudaError_t why = refused()) return why;
  const bool known = drop(pinned, p) > 0;
  if (known) std::free(p);
  return known ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  return stream->put([=] { std::memset(to, value, bytes); });
}
/// Memory that is not pinned, a copy waits for.
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  const auto host = [&](const void* p) {
    const std::lock_guard lock(guard);
    return !inside(device, p, bytes) && !inside(pinned, p, bytes);
  };
  const bool waits = host(to) || host(from);
  const cudaError_t why = stream->put([=] { std::memmove(to, from, bytes); });
  return why || !waits ? why : cudaStreamSynchronize(stream);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* to, unsigned) {
  if (const cudaError_t why = refused()) return why;
  static std::atomic<std::uint64_t> number = 0;
  static std::deque<FakeStream> all;
  const std::lock_guard lock(guard);
  *to = &all.emplace_back(number++);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  of(stream).end();
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (const cudaError_t why = refused()) return why;
  count(&FakeCounts::waits);
  of(stream).run_to(of(stream).mark());
  return lost ? cudaErrorLaunchFailure : cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return stream->put([=] { function(data); });
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* to, unsigned) {
  if (const cudaError_t why = refused()) return why;
  count(&FakeCounts::allocations);
  *to = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* to) { return cudaEventCreateWithFlags(to, 0); }
/// Some time.
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  static std::atomic<std::uint64_t> asked = 0;
  static const lamina::Random random(seed());
  *milliseconds = float(1 + random.uniform(asked++));
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (const cudaError_t why = refused()) return why;
  *event = {&of(stream), of(stream).mark()};
  return cudaSuccess;
}
/// What was recorded by now: the event may be recorded again meanwhile.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const CUevent_st at = *event;
  return stream->put([at] {
    if (at.stream) at.stream->run_to(at.mark);
  });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (const cudaError_t why = refused()) return why;
  return !event->stream || event->stream->done(event->mark) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const cudaError_t why = refused()) return why;
  count(&FakeCounts::waits);
  if (event->stream) event->stream->run_to(event->mark);
  return lost ? cudaErrorLaunchFailure : cudaSuccess;
}
