#include "cuda/memory.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

namespace lamina::cuda {

namespace {

/// Memory that streams allocate is otherwise for its own GPU alone.
void open(int device, int peer) {
  int can = 0;
  ok(cudaDeviceCanAccessPeer(&can, peer, device), "ask which GPUs reach each other");
  if (!can) return;
  cudaMemAccessDesc access = {};
  access.location.type = cudaMemLocationTypeDevice, access.location.id = peer;
  access.flags = cudaMemAccessFlagsProtReadWrite;
  cudaMemPool_t pool = nullptr;
  ok(cudaDeviceGetDefaultMemPool(&pool, device), "find where memory comes from");
  ok(cudaMemPoolSetAccess(pool, &access, 1), "let another GPU reach memory");
}

/// Between ranks of one process NCCL reads and writes operands where they lie: the GPUs that this
/// process has reach each other's memory, and no others.
void open_to_others(int device) {
  static std::mutex mutex;
  static std::vector<int> devices;
  const std::lock_guard lock(mutex);
  if (std::ranges::find(devices, device) != devices.end()) return;
  for (const int other : devices) open(device, other), open(other, device);
  devices.push_back(device);
}

/// The queues of all GPUs. A stream outlives the back end that gave it a queue: who frees or reads
/// memory waits for all of its thread's.
class Queues {
 public:
  void add(const std::shared_ptr<Queue>& queue) {
    const std::lock_guard lock(mutex_);
    std::erase_if(all_, [](const Known& q) { return q.queue.expired(); });
    all_.push_back({queue, std::this_thread::get_id(), queue->device()});
  }
  /// Those of the calling thread.
  std::vector<std::shared_ptr<Queue>> mine(int device) {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<Queue>> found;
    for (const Known& q : all_) {
      if (q.owner != std::this_thread::get_id() || q.device != device) continue;  // may be going
      if (auto queue = q.queue.lock()) found.push_back(std::move(queue));
    }
    return found;
  }

 private:
  struct Known {
    std::weak_ptr<Queue> queue;
    std::thread::id owner;
    int device;
  };
  std::mutex mutex_;
  std::vector<Known> all_;
};

/// Stays to the end: static tensors are freed after it would have gone.
Queues& queues() {
  static Queues& all = *new Queues;
  return all;
}

}  // namespace

Memory::Memory(int device) : device_(device) {
  select();
  open_to_others(device);
  ok(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "make a stream");
}

Memory::~Memory() {
  cudaSetDevice(device_);
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(stream_);
}

std::shared_ptr<void> Memory::allocate(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  select();
  void* memory = nullptr;
  const cudaError_t status = cudaMallocAsync(&memory, bytes, stream_);
  if (status == cudaErrorMemoryAllocation) return nullptr;
  ok(status, "allocate memory");
  auto owned = own(memory, [this](void* p) { cudaFreeAsync(p, stream_); });
  zero(memory, bytes);
  return owned;
}

void Memory::settle_all(int device) {
  for (const auto& queue : queues().mine(device)) queue->settle();
}

void Memory::settle() {
  for (const auto& queue : queues().mine(device_)) queue->wait(queue->mark());
}

void Memory::zero(void* to, std::size_t bytes) {
  run("set memory to zero", [&](cudaStream_t s) { return cudaMemsetAsync(to, 0, bytes, s); });
}

void Memory::copy(const void* from, void* to, std::size_t bytes) {
  if (bytes == 0) return;
  run("copy",
      [&](cudaStream_t s) { return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, s); });
}

void Memory::put_filled(Stream& stream, void* to, std::size_t bytes, const Fill& fill) {
  if (bytes == 0) return;
  if (bytes < least_beside) {
    Queue& queue = queue_of(stream);
    queue.only_once(from_host);
    return upload(to, bytes, fill, queue.stream());
  }
  put_beside(stream, bytes, fill, [&](const void* room, cudaStream_t compute) {
    return cudaMemcpyAsync(to, room, bytes, cudaMemcpyDefault, compute);
  });
}

/// Each part is on its way while the next one is filled.
void Memory::upload(void* to, std::size_t bytes, const Fill& fill, cudaStream_t into) {
  constexpr std::size_t part = std::size_t(4) << 20;
  PinnedBuffers::Loan buffer = pinned_.lend(bytes);
  for (std::size_t first = 0; first < bytes; first += part) {
    const std::size_t size = std::min(part, bytes - first);
    char* const here = static_cast<char*>(buffer.data()) + first;
    fill(here, first, size);
    ok(cudaMemcpyAsync(static_cast<char*>(to) + first, here, size, cudaMemcpyDefault, into),
       "copy to the GPU");
  }
  buffer.until_past(into);
}

void Memory::get(Stream& stream, const void* from, void* to, std::size_t bytes) {
  if (bytes == 0) return;
  const cudaStream_t into = queue_of(stream).stream();
  PinnedBuffers::Loan buffer = pinned_.lend(bytes);
  ok(cudaMemcpyAsync(buffer.data(), from, bytes, cudaMemcpyDefault, into), "copy from the GPU");
  stream.then([to, from = buffer.data(), bytes] { std::memcpy(to, from, bytes); });
  buffer.until_past(into);
}

/// Pinned, for all GPUs of the process.
std::shared_ptr<void> Memory::staging(std::size_t bytes) {
  select();
  void* memory = nullptr;
  ok_pinned(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable), bytes);
  return {memory, [](void* m) { cudaFreeHost(m); }};
}

void Memory::carry(Stream& stream, const void* from, void* to, std::size_t bytes) {
  if (bytes == 0) return;
  ok(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, queue_of(stream).stream()), "copy");
}

cudaDeviceProp Memory::properties() const {
  cudaDeviceProp properties;
  ok(cudaGetDeviceProperties(&properties, device_), "ask what a GPU is");
  return properties;
}

std::string Memory::identity() const {
  std::string uuid = "GPU-";
  for (const char byte : properties().uuid.bytes)
    append(uuid, format("%02x", unsigned(static_cast<unsigned char>(byte))));
  return uuid;
}

std::size_t Memory::total_bytes() const {
  std::size_t free = 0, total = 0;
  select();
  ok(cudaMemGetInfo(&free, &total), "ask for memory");
  return total;
}

std::size_t Memory::free_bytes() const {
  std::size_t free = 0, total = 0;
  select();
  ok(cudaMemGetInfo(&free, &total), "ask for memory");
  return free;
}

Queue& Memory::queue_of(Stream& stream) {
  select();
  if (!stream.queue()) {
    auto queue = std::make_shared<Queue>(device_);
    queues().add(queue);
    stream.put_into(std::move(queue));
  }
  return static_cast<Queue&>(*stream.queue());
}

}  // namespace lamina::cuda
