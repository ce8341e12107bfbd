// Device: where buffers live and kernels run, as a value.
#pragma once

#include <lamina/base/text.hpp>

namespace lamina {

struct Device {
  enum class Kind { cpu, cuda };
  Kind kind = Kind::cpu;
  int index = 0;

  bool operator==(const Device&) const = default;
  std::string text() const { return kind == Kind::cpu ? "cpu" : lamina::text("cuda:", index); }
};

}  // namespace lamina
