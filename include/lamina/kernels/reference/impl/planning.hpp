// The reference back end without memory.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/kernels/reference.hpp>

#include <limits>

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
  void put(Stream&, const void*, void*, std::size_t bytes) override { refuse(bytes); }
  void get(Stream&, const void*, void*, std::size_t bytes) override { refuse(bytes); }
  std::size_t total_bytes() const override { return std::numeric_limits<std::size_t>::max(); }
  std::size_t free_bytes() const override { return total_bytes(); }

 private:
  static void refuse(std::size_t bytes) {
    check(bytes == 0, "a network that was placed for planning has no memory to run in");
  }
};

}  // namespace detail

LAMINA_INLINE std::shared_ptr<const Backend> planning_backend() {
  static detail::NoMemory memory;
  return std::make_shared<const Reference>(memory);
}

}  // namespace lamina
