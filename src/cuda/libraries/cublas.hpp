// cuBLAS's light interface, cublasLt: what is called of it, and what it makes as things that own
// themselves. A GPU can do without: cuDNN multiplies matrices, too.
#pragma once

#include <lamina/base/error.hpp>
#include <lamina/tensor/dtype.hpp>

#include <cublasLt.h>

#include <memory>
#include <optional>
#include <string>
#include <type_traits>

namespace lamina::cuda {

/// The functions of cuBLAS 13 that are called here.
struct Cublas {
  decltype(&cublasLtGetVersion) version;
  decltype(&cublasLtGetStatusString) name_of;
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtMatmulDescCreate) create_product;
  decltype(&cublasLtMatmulDescDestroy) destroy_product;
  decltype(&cublasLtMatmulDescSetAttribute) set_of_product;
  decltype(&cublasLtMatrixLayoutCreate) create_layout;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_of_preference;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) get_of_algorithm;
  decltype(&cublasLtMatmul) multiply;
};

/// Nothing where the library is not there. Throws Error where it lacks a function.
std::optional<Cublas> open_cublas();
/// Opened at the first call; null where it is not there.
const Cublas* cublas();

/// Throws Error, with what cuBLAS says, unless the call that was for `what` succeeded.
void ok(cublasStatus_t status, const char* what);

/// "cuBLAS 13.1.0"; empty where it is not there.
std::string cublas_name();

cudaDataType_t cuda_type(DType t);

struct Destroy {
  void operator()(cublasLtHandle_t h) const { cublas()->destroy(h); }
  void operator()(cublasLtMatmulDesc_t d) const { cublas()->destroy_product(d); }
  void operator()(cublasLtMatrixLayout_t l) const { cublas()->destroy_layout(l); }
  void operator()(cublasLtMatmulPreference_t p) const { cublas()->destroy_preference(p); }
};
/// Of what cuBLAS makes: a handle, a description.
template <class T>
using Owned = std::unique_ptr<std::remove_pointer_t<T>, Destroy>;

/// Kernels have it longer than their back end.
using CublasHandle = std::shared_ptr<std::remove_pointer_t<cublasLtHandle_t>>;
/// For the GPU that this thread has chosen; null where cuBLAS is not there.
CublasHandle make_cublas_handle();

}  // namespace lamina::cuda
