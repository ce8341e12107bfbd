// What cuDNN says, in our words.
#include "cuda/libraries/cudnn.hpp"

#include <lamina/base/text.hpp>

namespace lamina::cuda {

const Cudnn& cudnn() {
  static const Cudnn functions = open_cudnn();
  return functions;
}

void ok(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char said[512] = {};
  cudnn().last_error(said, sizeof said);
  std::string reason = said;
  reason = reason.substr(0, reason.find('\n'));  // one line
  throw Error(
      text("cuDNN: ", what, ": ", cudnn().name_of(status), reason.empty() ? "" : ": ", reason));
}

std::string cudnn_name() {
  const std::size_t v = cudnn().version();
  return text("cuDNN ", v / 10000, '.', v / 100 % 100, '.', v % 100);
}

cudnnDataType_t data_type(DType t) {
  switch (t) {
    case DType::f32:
      return CUDNN_DATA_FLOAT;
    case DType::f64:
      return CUDNN_DATA_DOUBLE;
    case DType::bf16:
      return CUDNN_DATA_BFLOAT16;
    case DType::f16:
      return CUDNN_DATA_HALF;
    case DType::i32:
      return CUDNN_DATA_INT32;
  }
  throw Error("cuDNN: a type of elements that it does not have");
}

}  // namespace lamina::cuda
