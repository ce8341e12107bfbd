// LargePages: room on the host in pages of 2 MB.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>

namespace lamina {

/// Large pages save the address translations that kernels would otherwise wait for: those that
/// stride for each line, and in a virtual machine, which translates twice, all that come to memory
/// that was not used for a while. Maxima of VGG-16's third pool, whose places filled 3 MB of small
/// pages, took 6 to 14 ms in such a machine, and take 1.5.
class LargePages {
  static constexpr std::size_t page = std::size_t(2) << 20;

 public:
  /// Smaller tensors lie on the heap. So do all where sanitizers look for what is beyond them.
  static std::size_t least() {
#if defined(__SANITIZE_ADDRESS__)
    return SIZE_MAX;
#else
    return apart_ > 0 ? SIZE_MAX : std::size_t(16) << 10;
#endif
  }
  /// While one lives, all that is allocated lies on the heap: for who counts what is asked of that.
  struct KeepApart {
    KeepApart() { ++apart_; }
    ~KeepApart() { --apart_; }
    KeepApart(const KeepApart&) = delete;
  };

  /// A multiple of 64 bytes, not cleared, aligned to 64. What fills no page shares two with others
  /// of about its size, which are given back with the last of their owners. Null where there is not
  /// enough.
  static std::shared_ptr<void> take(std::size_t bytes) {
    if (bytes >= page) return whole(bytes);
    static auto* const shared = new LargePages[2];  // for whatever is made last of all, too
    return shared[bytes >= page / 8].cut(bytes);
  }

 private:
  /// Pages of its own; the last one, too, unless that would be a quarter more.
  static std::shared_ptr<void> whole(std::size_t bytes) {
    const std::size_t rest = (page - bytes % page) % page;
    const std::size_t all = rest > bytes / 4 ? bytes : bytes + rest;
    void* memory = nullptr;
    if (posix_memalign(&memory, page, all) != 0) return nullptr;
    madvise(memory, all / page * page, MADV_HUGEPAGE);
    return std::shared_ptr<void>(memory, std::free);
  }
  std::shared_ptr<void> cut(std::size_t bytes) {
    constexpr std::size_t together = 2 * page;
    const std::lock_guard lock(mutex_);
    if (left_ < bytes) {
      pages_ = whole(together), left_ = pages_ ? together : 0;
      if (!pages_) return nullptr;
    }
    char* const end = static_cast<char*>(pages_.get()) + together;
    std::shared_ptr<void> part(pages_, end - left_);
    left_ -= bytes;
    return part;
  }

  inline static std::atomic<int> apart_ = 0;
  std::mutex mutex_;
  std::shared_ptr<void> pages_;  // what is cut, the last `left_` bytes of which nobody has
  std::size_t left_ = 0;
};

}  // namespace lamina
