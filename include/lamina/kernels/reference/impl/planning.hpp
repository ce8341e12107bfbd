// The reference back end without memory.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/kernels/reference.hpp>

#include <limits>
#include <utility>

namespace lamina {

namespace detail {

/// There is room for everything, at an address where nothing lies.
class NoMemory final : public MemorySpace {
 public:
  std::string name() const override { return "no device"; }
  std::shared_ptr<void> allocate(std::size_t bytes) override {
    constexpr std::uintptr_t nowhere = 64;
    if (bytes == 0) return nullptr;
    return {std::shared_ptr<void>(), reinterpret_cast<void*>(nowhere)};
  }
  void zero(void*, std::size_t bytes) override { refuse(bytes); }
  void copy(const void*, void*, std::size_t bytes) override { refuse(bytes); }
  void put_filled(Stream&, void*, std::size_t bytes, const Fill&) override { refuse(bytes); }
  void get(Stream&, const void*, void*, std::size_t bytes) override { refuse(bytes); }
  void carry(Stream&, const void*, void*, std::size_t bytes) override { refuse(bytes); }
  std::size_t total_bytes() const override { return std::numeric_limits<std::size_t>::max(); }
  std::size_t free_bytes() const override { return total_bytes(); }

 private:
  static void refuse(std::size_t bytes) {
    check(bytes == 0, "a network that was placed for planning has no memory to run in");
  }
};

inline MemorySpace& no_memory() {
  static NoMemory memory;
  return memory;
}

class Planning final : public Reference {
 public:
  explicit Planning(std::shared_ptr<const Backend> like)
      : Reference(no_memory()), like_(std::move(like)) {}

  bool fuses(Fusible kernel, const Epilogue& e) const override {
    return like_ ? like_->fuses(kernel, e) : Reference::fuses(kernel, e);
  }

 private:
  std::shared_ptr<const Backend> like_;
};

}  // namespace detail

LAMINA_INLINE std::shared_ptr<const Backend> planning_backend(std::shared_ptr<const Backend> like) {
  return std::make_shared<const detail::Planning>(std::move(like));
}

}  // namespace lamina
