// What tests ask of the stand-in for cuBLAS.
#pragma once

namespace lamina::test {

struct FakeCublas {
  int things = 0;    ///< handles and descriptions that there are
  int products = 0;  ///< since the program began
  int tf32 = 0;      ///< of these in TF32
};
FakeCublas fake_cublas();

/// Whether the stand-in has ways. Without any it is as if each had been refused.
void give_ways_of_cublas(bool yes);

/// What ReLU behind a product makes of what is undefined: 0, as max(x, 0) does on GPUs, or that.
void keep_undefined_in_cublas(bool yes);

}  // namespace lamina::test
