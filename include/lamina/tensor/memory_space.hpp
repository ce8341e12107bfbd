// MemorySpace: the memory of a device, where tensors lie.
#pragma once

#include <lamina/base/error.hpp>
#include <lamina/tensor/large_pages.hpp>
#include <lamina/tensor/reserve.hpp>

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>

namespace lamina {

class Stream;

/// Writes `bytes` of what is to be copied to a device, from its byte `first` on, to memory of the
/// host. Parts begin at multiples of 64 bytes.
using Fill = std::function<void(void* part, std::size_t first, std::size_t bytes)>;

/// What a back end hands out, so that nobody else need know whose memory it is. Functions may be
/// called from several threads at once.
class MemorySpace {
 public:
  virtual ~MemorySpace() = default;
  virtual std::string name() const = 0;  ///< "host"
  /// What tells it from other memories of its machine, whatever processes call them.
  virtual std::string identity() const { return name(); }
  /// Whether the host may follow addresses into it.
  virtual bool on_host() const { return false; }
  /// Zeros, aligned to 64 bytes; null where there is not enough, or for 0 bytes. Freed with their
  /// last owner, when what its thread has put into streams of this device has run.
  virtual std::shared_ptr<void> allocate(std::size_t bytes) = 0;
  /// Returns when all that the calling thread has put into streams of this device has run; throws
  /// what any of it threw.
  virtual void settle() {}
  // Both are done when they return, and wait for no stream: see settle().
  virtual void zero(void* to, std::size_t bytes) = 0;
  /// Either of the two may lie on the host.
  virtual void copy(const void* from, void* to, std::size_t bytes) = 0;
  // These run behind their caller, in the order of the stream.
  /// From the host: what `fill` writes, which is called part by part before this returns, and only
  /// then.
  virtual void put_filled(Stream& stream, void* to, std::size_t bytes, const Fill& fill) = 0;
  /// From the host, where what is to be copied may change as soon as this returns.
  void put(Stream& stream, const void* from, void* to, std::size_t bytes) {
    put_filled(stream, to, bytes, [from](void* part, std::size_t first, std::size_t size) {
      std::memmove(part, static_cast<const char*>(from) + first, size);
    });
  }
  /// To the host: it is there when the stream has come so far.
  virtual void get(Stream& stream, const void* from, void* to, std::size_t bytes) = 0;
  /// Memory of the host by way of which copies to and from here are fastest. Throws Error where
  /// there is not enough.
  virtual std::shared_ptr<void> staging(std::size_t bytes) {
    std::shared_ptr<void> memory(std::malloc(bytes), std::free);
    check(memory != nullptr, "the host has no memory for ", bytes, " bytes on their way");
    return memory;
  }
  /// Both lie here.
  virtual void carry(Stream& stream, const void* from, void* to, std::size_t bytes) = 0;
  virtual std::size_t total_bytes() const = 0;
  virtual std::size_t free_bytes() const = 0;
};

/// Bytes of the host's memory that this process may still take: of the machine's, those that are
/// free or that others give back at once; and no more than its control groups leave it. Ranks of
/// the same host share them.
std::size_t available_memory();

class HostMemory : public MemorySpace {
 public:
  std::string name() const override { return "host"; }
  bool on_host() const final { return true; }
  std::shared_ptr<void> allocate(std::size_t bytes) override {
    if (bytes == 0) return nullptr;
    if (std::shared_ptr<void> memory = Reserve::take(bytes)) return memory;
    const std::size_t padded = (bytes + 63) / 64 * 64;
    std::shared_ptr<void> memory =
        bytes < LargePages::least()
            ? std::shared_ptr<void>(std::aligned_alloc(64, padded), std::free)
            : LargePages::take(padded);
    if (memory) std::memset(memory.get(), 0, padded);
    return memory;
  }
  void zero(void* to, std::size_t bytes) final { std::memset(to, 0, bytes); }
  void copy(const void* from, void* to, std::size_t bytes) final {
    if (bytes > 0) std::memmove(to, from, bytes);
  }
  void put_filled(Stream&, void* to, std::size_t bytes, const Fill& fill) final {
    if (bytes > 0) fill(to, 0, bytes);
  }
  void get(Stream&, const void* from, void* to, std::size_t bytes) final { copy(from, to, bytes); }
  void carry(Stream&, const void* from, void* to, std::size_t bytes) final {
    copy(from, to, bytes);
  }
  std::size_t total_bytes() const override { return pages(_SC_PHYS_PAGES); }
  std::size_t free_bytes() const override { return available_memory(); }

  /// Bytes of the pages of which there are sysconf(which).
  static std::size_t pages(int which) {
    return std::size_t(sysconf(which)) * std::size_t(sysconf(_SC_PAGESIZE));
  }
};

/// Zeros on the host that take memory page by page, as they are touched; null where that is not to
/// be had.
inline std::shared_ptr<void> untouched(std::size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  return {memory, [bytes](void* m) { munmap(m, bytes); }};
}

inline MemorySpace& host_memory() {
  static HostMemory memory;
  return memory;
}

}  // namespace lamina
