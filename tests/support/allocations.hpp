// Counts what the whole process allocates, to show that a steady state allocates nothing.
#pragma once

#include <cstddef>

namespace lamina::test {

/// Whether allocations are counted here: not under a sanitizer, which has its own malloc, and only
/// with glibc.
bool counts_allocations();

/// Allocations by malloc, operator new and their kin, of all threads, since construction. One at a
/// time.
class Allocations {
 public:
  Allocations();
  std::size_t count() const;
  std::size_t largest() const;  ///< bytes; 0 without any
};

}  // namespace lamina::test
