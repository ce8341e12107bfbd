// What cuBLAS says, in our words.
#include "cuda/libraries/cublas.hpp"

#include <lamina/base/text.hpp>

namespace lamina::cuda {

const Cublas* cublas() {
  static const std::optional<Cublas> functions = open_cublas();
  return functions ? &*functions : nullptr;
}

void ok(cublasStatus_t status, const char* what) {
  check(status == CUBLAS_STATUS_SUCCESS, "cuBLAS: ", what, ": ", cublas()->name_of(status));
}

std::string cublas_name() {
  if (!cublas()) return {};
  const std::size_t v = cublas()->version();
  return text("cuBLAS ", v / 10000, '.', v / 100 % 100, '.', v % 100);
}

cudaDataType_t cuda_type(DType t) {
  switch (t) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::f64:
      return CUDA_R_64F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    case DType::i32:
      return CUDA_R_32I;
  }
  throw Error("cuBLAS: a type of elements that it does not have");
}

CublasHandle make_cublas_handle() {
  if (!cublas()) return nullptr;
  cublasLtHandle_t handle = nullptr;
  ok(cublas()->create(&handle), "start");
  return {handle, Destroy()};
}

}  // namespace lamina::cuda
