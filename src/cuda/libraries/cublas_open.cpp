// cuBLAS, opened at run time, as cuDNN is.
#include "base/shared_library.hpp"
#include "cuda/libraries/cublas.hpp"

namespace lamina::cuda {

namespace {

/// Null where it is not there. It stays open as long as the program runs.
const detail::SharedLibrary* library() {
  const std::string names[] = {"libcublasLt.so.13", LAMINA_CUBLAS_LIBRARY};
  try {
    return new detail::SharedLibrary(names);
  } catch (const Error&) {
    return nullptr;
  }
}

}  // namespace

std::optional<Cublas> open_cublas() {
  static const auto* const opened = library();
  if (!opened) return {};
  const auto function = [](const char* name) { return opened->function(name); };
  return Cublas{
      .version = function("cublasLtGetVersion"),
      .name_of = function("cublasLtGetStatusString"),
      .create = function("cublasLtCreate"),
      .destroy = function("cublasLtDestroy"),
      .create_product = function("cublasLtMatmulDescCreate"),
      .destroy_product = function("cublasLtMatmulDescDestroy"),
      .set_of_product = function("cublasLtMatmulDescSetAttribute"),
      .create_layout = function("cublasLtMatrixLayoutCreate"),
      .destroy_layout = function("cublasLtMatrixLayoutDestroy"),
      .create_preference = function("cublasLtMatmulPreferenceCreate"),
      .destroy_preference = function("cublasLtMatmulPreferenceDestroy"),
      .set_of_preference = function("cublasLtMatmulPreferenceSetAttribute"),
      .heuristic = function("cublasLtMatmulAlgoGetHeuristic"),
      .get_of_algorithm = function("cublasLtMatmulAlgoConfigGetAttribute"),
      .multiply = function("cublasLtMatmul"),
  };
}

}  // namespace lamina::cuda
