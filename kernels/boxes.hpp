// Boxes of tensors that move between blocks on a GPU: what halos and reshards pack and unpack.
#pragma once

#include "launch.hpp"

#include <lamina/tensor/box.hpp>
#include <lamina/tensor/dtype.hpp>

namespace lamina::cuda {

/// The elements of `box`, a block of some tensor, from where they lie in one larger block of it to
/// where they lie in another. Both are plain. A sample of the box has less than 2^31 elements.
struct BoxCopy {
  DType dtype = DType::f32;
  const void* from = nullptr;  ///< null: zeros
  Box from_block;
  void* to = nullptr;
  Box to_block, box;
  bool add = false;  ///< to what is there; not for i32
};

cudaError_t copy_box(cudaStream_t, const BoxCopy&);

}  // namespace lamina::cuda
