// Reserve: memory that is there before somebody asks for it.
#pragma once

#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <memory>
#include <utility>

namespace lamina {

/// Gives the pages back: what lies there is zero from now on, and takes no memory.
inline void forget(void* data, std::size_t bytes) {
  const auto page = std::size_t(sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<std::size_t>(data) + page - 1) / page * page;
  const std::size_t end = (reinterpret_cast<std::size_t>(data) + bytes) / page * page;
  if (end <= begin) return;
  void* const pages = reinterpret_cast<void*>(begin);
  if (madvise(pages, end - begin, MADV_REMOVE) != 0)  // not behind a file
    madvise(pages, end - begin, MADV_DONTNEED);
}

/// Gives back what the heap keeps of memory that was freed: where blocks of one size come and go,
/// that may be hundreds of MB in glibc.
inline void trim_heap() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

/// Zeros on the host whose pages the system has cleared and handed out: that takes a tenth of a
/// second per GB, and several in a virtual machine whose host does the same.
class Reserve {
 public:
  Reserve() = default;
  /// Zeros that `owner` keeps.
  Reserve(std::shared_ptr<const void> owner, void* zeros, std::size_t bytes)
      : owner_(std::move(owner)), next_(static_cast<char*>(zeros)), left_(bytes) {}

  /// While it lives, what the calling thread allocates on the host comes out of the reserve, as
  /// long as that lasts. What is left then goes back to the system.
  class Use {
   public:
    explicit Use(Reserve& reserve) : before_(std::exchange(in_use, &reserve)) {}
    ~Use() {
      const Reserve rest = std::exchange(*std::exchange(in_use, before_), Reserve());
      forget(rest.next_, rest.left_);
    }
    Use(const Use&) = delete;

   private:
    Reserve* before_;
  };

  /// Out of the reserve that the calling thread uses; null where it uses none, or too little is
  /// left. The pages go back to the system with the last owner, the addresses with those of all.
  static std::shared_ptr<void> take(std::size_t bytes) {
    if (!in_use) return nullptr;
    void* zeros = in_use->next_;
    std::size_t left = in_use->left_;
    if (!std::align(bytes < page ? line : page, bytes, zeros, left)) return nullptr;
    in_use->next_ = static_cast<char*>(zeros) + bytes, in_use->left_ = left - bytes;
    return {zeros, [bytes, owner = in_use->owner_](void* memory) { forget(memory, bytes); }};
  }

 private:
  static constexpr std::size_t line = 64, page = 4096;
  static inline thread_local Reserve* in_use = nullptr;

  std::shared_ptr<const void> owner_;
  char* next_ = nullptr;
  std::size_t left_ = 0;
};

}  // namespace lamina
