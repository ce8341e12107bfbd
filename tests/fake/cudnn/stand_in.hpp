// What tests ask of the stand-in for cuDNN.
#pragma once

#include <array>

namespace lamina::test {

struct FakeCudnn {
  int handles = 0, descriptors = 0;  ///< that there are
  int made = 0;                      ///< descriptors, since the program began
  std::array<int, 3> runs = {};      ///< of each engine
};
FakeCudnn fake_cudnn();

}  // namespace lamina::test
