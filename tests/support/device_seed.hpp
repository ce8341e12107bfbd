// What orders a device's works where chance does.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace lamina::test {

inline std::uint64_t device_seed() {
  const char* const text = std::getenv("LAMINA_DEVICE_SEED");
  return text ? std::strtoull(text, nullptr, 10) : 0;
}

}  // namespace lamina::test
