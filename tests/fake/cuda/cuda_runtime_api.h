// In the place of CUDA's header where cuDNN's includes it, among declarations of C: what the
// stand-in has.
#pragma once

extern "C++" {
#include "emulated/runtime.hpp"
}
