// malloc and its kin, replaced by ones that count and pass on to glibc's; operator new calls
// malloc.
#include "support/allocations.hpp"

#include "support/peek.hpp"

#include <atomic>
#include <cerrno>
#include <cstdlib>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define LAMINA_TEST_SANITIZED
#endif
#endif
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && \
    !defined(LAMINA_TEST_SANITIZED)
#define LAMINA_TEST_COUNTS 1
#else
#define LAMINA_TEST_COUNTS 0
#endif

namespace {

std::atomic<std::size_t> counted{0}, largest_bytes{0};
thread_local std::size_t aligned_bytes = 0, aligned_rounding = 0;

[[maybe_unused]] void note(std::size_t bytes) {
  counted.fetch_add(1, std::memory_order_relaxed);
  std::size_t seen = largest_bytes.load(std::memory_order_relaxed);
  while (seen < bytes && !largest_bytes.compare_exchange_weak(seen, bytes)) {
  }
}

}  // namespace

#if LAMINA_TEST_COUNTS
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t bytes) noexcept {
  note(bytes);
  return __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) noexcept {
  note(count * bytes);
  return __libc_calloc(count, bytes);
}
void* realloc(void* p, std::size_t bytes) noexcept {
  note(bytes);
  return __libc_realloc(p, bytes);
}
void* memalign(std::size_t align, std::size_t bytes) noexcept {
  note(bytes);
  return __libc_memalign(align, bytes);
}
void* aligned_alloc(std::size_t align, std::size_t bytes) noexcept {
  note(bytes);
  aligned_bytes += bytes, aligned_rounding += align - 1;
  return __libc_memalign(align, bytes);
}
int posix_memalign(void** p, std::size_t align, std::size_t bytes) noexcept {
  note(bytes);
  *p = __libc_memalign(align, bytes);
  return *p || bytes == 0 ? 0 : ENOMEM;
}
}
#endif

namespace lamina::test {

bool counts_allocations() { return LAMINA_TEST_COUNTS && !device_peek; }

Allocations::Allocations() {
  counted = 0;
  largest_bytes = 0;
}
std::size_t Allocations::count() const { return counted; }
std::size_t Allocations::largest() const { return largest_bytes; }

TensorBytes::TensorBytes() { aligned_bytes = aligned_rounding = 0; }
std::size_t TensorBytes::bytes() const { return aligned_bytes; }
std::size_t TensorBytes::rounding() const { return aligned_rounding; }

}  // namespace lamina::test
