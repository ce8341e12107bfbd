// A stand-in for CUDA's runtime: memory is the host's, streams are threads on which nothing runs
// before somebody waits for it; then as much as was waited for, or by chance all that is there.
// What it hands out is full of NaN, what is freed too. Calls that a GPU refuses it refuses: from
// work that runs in a stream, or with memory of the host that a copy would have to wait for.
#include "fake/stream.hpp"
#include "fake/waits.hpp"

#include <lamina/base/clock.hpp>

#include <cstring>
#include <limits>
#include <map>

namespace {

using namespace lamina::test;

std::mutex guard;  // of all that is here but what a stream has for itself
struct Block {
  std::size_t bytes;
  int gpu;  // that was chosen
};
using Blocks = std::map<const char*, Block>;
Blocks device, pinned;
FakeCounts counted;
std::size_t limit = std::size_t(1) << 34, taken = 0;
std::size_t can_be_pinned = std::numeric_limits<std::size_t>::max();

/// Null where it is not inside one of them.
const Block* find(const Blocks& memory, const void* p, std::size_t bytes) {
  const char* const at = static_cast<const char*>(p);
  auto next = memory.upper_bound(at);
  if (next == memory.begin()) return nullptr;
  const auto& [begin, block] = *--next;
  return at + bytes <= begin + block.bytes ? &block : nullptr;
}

}  // namespace

namespace lamina::test {

FakeCounts fake_counts() {
  const std::lock_guard lock(guard);
  return counted;
}
void fake_memory(std::size_t bytes) {
  const std::lock_guard lock(guard);
  limit = bytes;
}
void fake_pinned(std::size_t bytes) {
  const std::lock_guard lock(guard);
  can_be_pinned = bytes;
}
void count(std::int64_t FakeCounts::*what) {
  const std::lock_guard lock(guard);
  ++(counted.*what);
}
void lose_device(bool gone) { lost = gone; }
void lose_device_after(std::int64_t works) { works_left = works; }
void run_ahead(bool may) { runs_ahead = may; }
void fill_streams(bool full) {
  streams_are_full = full;
  streams_are_full.notify_all();
}
void hurry(cudaStream_t stream) { fake(stream).hurry(); }
int gpu_of(const void* memory) {
  const std::lock_guard lock(guard);
  const Block* const block = find(device, memory, 1);
  return block ? block->gpu : -1;
}

}  // namespace lamina::test

namespace {

cudaError_t add(Blocks& memory, void** to, std::size_t bytes) {
  char* const at = static_cast<char*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
  std::memset(at, 0xFF, bytes);
  const std::lock_guard lock(guard);
  ++counted.allocations;
  memory[at] = {bytes, chosen_gpu()};
  *to = at;
  return cudaSuccess;
}

cudaError_t run_all(cudaStream_t stream) {
  if (const cudaError_t why = refused_in_capture()) return why;
  count(&FakeCounts::waits);
  fake(stream).run_to(fake(stream).mark());
  return lost ? cudaErrorLaunchFailure : cudaSuccess;
}

/// What is freed is spoilt and kept, so that who uses it all the same finds NaN.
std::size_t drop(Blocks& memory, void* p) {
  const std::lock_guard lock(guard);
  const auto at = memory.find(static_cast<char*>(p));
  if (at == memory.end()) return 0;
  const std::size_t bytes = at->second.bytes;
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
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    case cudaErrorStreamCaptureUnjoined:
      return "capturing stream has unjoined work";
    case cudaErrorStreamCaptureIsolation:
      return "dependency created on uncaptured work in another stream";
    case cudaErrorCapturedEvent:
      return "operation not permitted on an event last recorded in a capturing stream";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    default:
      return "invalid argument";
  }
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  if (const cudaError_t why = refused_in_capture()) return why;
  const std::lock_guard lock(guard);
  *free = limit - std::min(limit, taken), *total = limit;
  return cudaSuccess;
}
/// What was freed in the stream before is there again.
cudaError_t cudaMallocAsync(void** to, std::size_t bytes, cudaStream_t stream) {
  if (const cudaError_t why = refused_in_capture()) return why;
  const auto take = [bytes] {
    const std::lock_guard lock(guard);
    const bool fits = taken + bytes <= limit;
    if (fits) taken += bytes;
    return fits;
  };
  if (!take()) {
    fake(stream).run_to(fake(stream).mark());
    if (!take()) return cudaErrorMemoryAllocation;
  }
  return add(device, to, bytes);
}
cudaError_t cudaFreeAsync(void* p, cudaStream_t stream) {
  if (const auto& capture = fake(stream).capture)
    return capture->refuse(cudaErrorStreamCaptureUnsupported);
  return stream->put([p] {
    const std::size_t bytes = drop(device, p);
    const std::lock_guard lock(guard);
    taken -= bytes;
  });
}
cudaError_t cudaHostAlloc(void** to, std::size_t bytes, unsigned) {
  if (const cudaError_t why = refused_in_capture()) return why;
  {
    const std::lock_guard lock(guard);
    if (bytes > can_be_pinned) return cudaErrorMemoryAllocation;
  }
  return add(pinned, to, bytes);
}
cudaError_t cudaFreeHost(void* p) {
  if (const cudaError_t why = refused_in_capture()) return why;
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
    return !find(device, p, bytes) && !find(pinned, p, bytes);
  };
  const bool waits = host(to) || host(from);
  const cudaError_t why = stream->put([=] { std::memmove(to, from, bytes); });
  if (why || !waits) return why;
  return run_all(stream);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* to, unsigned) {
  if (const cudaError_t why = refused_in_capture()) return why;
  static std::atomic<std::uint64_t> number = 0;
  static std::deque<FakeStream> all;
  const std::lock_guard lock(guard);
  *to = &all.emplace_back(number++);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  fake(stream).end();
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return left_out() ? cudaSuccess : run_all(stream);
}
/// All functions of the process share a thread of the driver's, as far as they can tell.
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  static std::mutex driver;
  return stream->put([=] {
    const std::lock_guard lock(driver);
    function(data);
  });
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* to, unsigned flags) {
  if (const cudaError_t why = refused()) return why;
  count(&FakeCounts::allocations);
  *to = new CUevent_st;
  if (flags != cudaEventDisableTiming) (*to)->time = std::make_shared<double>(0);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* to) { return cudaEventCreateWithFlags(to, 0); }
/// By the clock of the host, when streams came to them.
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  for (const cudaEvent_t event : {begin, end}) {
    if (!event->stream || !event->time) return cudaErrorInvalidValue;
    if (!event->stream->past(event->mark)) return cudaErrorNotReady;
  }
  *milliseconds = float(1e3 * (*end->time - *begin->time));
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  streams_are_full.wait(true);
  if (const cudaError_t why = refused()) return why;
  FakeStream& s = fake(stream);
  if (s.capture) {
    *event = {&s, 0, s.capture, s.tail, event->time};
    return cudaSuccess;
  }
  if (event->time)
    if (const cudaError_t why = s.put([time = event->time] { *time = lamina::now(); })) return why;
  *event = {&s, s.mark(), nullptr, {}, event->time};
  return cudaSuccess;
}
/// What was recorded by now: the event may be recorded again meanwhile.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  streams_are_full.wait(true);
  const CUevent_st at = *event;
  if (left_out()) return cudaSuccess;
  if (fake(stream).capture || at.capture) return fake(stream).follow_in_capture(at);
  return stream->put([at] {
    if (at.stream) at.stream->run_to(at.mark);
  });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (const cudaError_t why = refused_in_capture()) return why;
  if (event->capture) return cudaErrorCapturedEvent;
  return !event->stream || event->stream->done(event->mark) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const cudaError_t why = refused_in_capture()) return why;
  if (event->capture) return cudaErrorCapturedEvent;
  count(&FakeCounts::waits);
  if (event->stream && !left_out()) event->stream->run_to(event->mark);
  return lost ? cudaErrorLaunchFailure : cudaSuccess;
}
