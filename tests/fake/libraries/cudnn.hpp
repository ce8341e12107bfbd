// What tests ask of the stand-in for cuDNN.
#pragma once

#include <cudnn.h>

#include <array>
#include <cstdint>
#include <vector>

namespace lamina::test {

struct FakeCudnn {
  int handles = 0, descriptors = 0;  ///< that there are
  int made = 0, plans = 0;           ///< descriptors, and plans, since the program began
  std::array<int, 3> runs = {};      ///< of each engine
};
FakeCudnn fake_cudnn();

/// From now on plans of these engines cannot be made.
void refuse_engines(std::vector<std::int64_t> engines);

/// From now on these engines have this note, and no others have any.
void note_of_engines(std::vector<std::int64_t> engines, cudnnBackendNumericalNote_t note);

}  // namespace lamina::test
