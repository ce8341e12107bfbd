// Counts what the whole process allocates, to show that a steady state allocates nothing.
#pragma once

#include <lamina/tensor/large_pages.hpp>

#include <cstddef>

namespace lamina::test {

/// Whether allocations are counted here: not under a sanitizer, which has its own malloc, nor where
/// tensors lie on a device, and only with glibc.
bool counts_allocations();

/// Allocations by malloc, operator new and their kin, of all threads, since construction; meanwhile
/// tensors share no large pages, which would not be seen. One at a time.
class Allocations {
 public:
  Allocations();
  std::size_t count() const;
  std::size_t largest() const;  ///< bytes; 0 without any

 private:
  LargePages::KeepApart apart_;
};

/// What this thread allocates for tensors, the only ones to ask for aligned memory, apart as well.
/// One at a time.
class TensorBytes {
 public:
  TensorBytes();
  std::size_t bytes() const;     ///< since construction, each tensor rounded up to its alignment
  std::size_t rounding() const;  ///< at most so many of them are not asked for

 private:
  LargePages::KeepApart apart_;
};

}  // namespace lamina::test
