// A stand-in for cuBLAS's light interface: keeps what descriptions are told, and multiplies by
// plain loops in f64, in the stream. It has two ways for each product, of which one wants memory.
#include "fake/libraries/cublas.hpp"

#include "cuda/libraries/cublas.hpp"
#include "fake/libraries/elements.hpp"
#include "fake/stream.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

namespace {

using lamina::DType;
using lamina::test::number_at;
using lamina::test::put_number;

lamina::test::FakeCublas counted;
bool has_ways = true, keeps_undefined = true;

constexpr std::size_t workspaces[] = {0, 4096};

struct Product {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const char* bias = nullptr;
};
struct Layout {
  cudaDataType_t type;
  std::int64_t rows, columns, ld;
};
struct Preference {
  std::uint64_t most_workspace = 0;
  std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::array<std::uint32_t, 4> alignments = {256, 256, 256, 256};
};

template <class T, class Handle, class... Args>
cublasStatus_t make(Handle* to, const Args&... args) {
  ++counted.things;
  *to = reinterpret_cast<Handle>(new T{args...});
  return CUBLAS_STATUS_SUCCESS;
}
template <class T, class Handle>
cublasStatus_t destroy(Handle handle) {
  --counted.things;
  delete reinterpret_cast<T*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
template <class T, class Handle>
T& of(Handle handle) {
  return *reinterpret_cast<T*>(handle);
}

template <class T>
cublasStatus_t take(T& to, const void* from, std::size_t bytes) {
  if (bytes != sizeof to) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t set_of_product(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t what,
                              const void* value, std::size_t bytes) {
  Product& p = of<Product>(d);
  switch (what) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return take(p.a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return take(p.b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return take(p.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return take(p.bias, value, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t set_of_preference(cublasLtMatmulPreference_t d,
                                 cublasLtMatmulPreferenceAttributes_t what, const void* value,
                                 std::size_t bytes) {
  Preference& p = of<Preference>(d);
  switch (what) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return take(p.most_workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return take(p.reductions, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return take(p.alignments[0], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return take(p.alignments[1], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return take(p.alignments[2], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return take(p.alignments[3], value, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

/// A matrix with its operation: element (i, j), column after column.
struct Matrix {
  Layout layout;
  bool transposed;

  std::int64_t rows() const { return transposed ? layout.columns : layout.rows; }
  std::int64_t columns() const { return transposed ? layout.rows : layout.columns; }
  std::int64_t at(std::int64_t i, std::int64_t j) const {
    return transposed ? j + i * layout.ld : i + j * layout.ld;
  }
};

DType dtype_of(cudaDataType_t type) {
  for (const DType t : {DType::f64, DType::f32, DType::f16, DType::bf16})
    if (lamina::cuda::cuda_type(t) == type) return t;
  throw type;
}

bool has(const Product& p, cublasLtEpilogue_t what) { return (int(p.epilogue) & int(what)) != 0; }

/// Whether the description makes sense.
bool fits(const Product& p, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
  const Matrix first{a, p.a == CUBLAS_OP_T}, second{b, p.b == CUBLAS_OP_T};
  const bool f64 = a.type == CUDA_R_64F;
  for (const Layout& each : {a, b, c, d})
    if (each.ld < each.rows || each.rows < 1 || each.columns < 1) return false;
  return first.rows() == d.rows && second.columns() == d.columns &&
         first.columns() == second.rows() && a.type == b.type && c.type == d.type &&
         (d.type == a.type || d.type == CUDA_R_32F) && p.scale == (f64 ? CUDA_R_64F : CUDA_R_32F) &&
         (p.compute == CUBLAS_COMPUTE_64F) == f64 &&
         (p.compute != CUBLAS_COMPUTE_32F_FAST_TF32 || a.type == CUDA_R_32F);
}

cublasStatus_t heuristic(cublasLtHandle_t, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a,
                         cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                         cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int room,
                         cublasLtMatmulHeuristicResult_t results[], int* count) {
  const Preference& p = of<Preference>(preference);
  *count = 0;
  const Product& of_all = of<Product>(product);
  if (!fits(of_all, of<Layout>(a), of<Layout>(b), of<Layout>(c), of<Layout>(d)))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (!has_ways) return CUBLAS_STATUS_NOT_SUPPORTED;
  // Operands need not lie better than that, and sums of parts must not be rounded.
  const bool aligned = std::ranges::all_of(p.alignments, [](auto n) { return n <= 16; });
  const bool exact = (p.reductions & (CUBLASLT_REDUCTION_SCHEME_INPLACE |
                                      CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE)) == 0;
  if (!aligned || !exact) return CUBLAS_STATUS_NOT_SUPPORTED;
  for (std::uint64_t i = 0; i < std::size(workspaces) && *count < room; ++i) {
    if (workspaces[i] > p.most_workspace) continue;
    cublasLtMatmulHeuristicResult_t& result = results[(*count)++] = {};
    result.algo.data[0] = i, result.workspaceSize = workspaces[i];
    result.state = CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t get_of_algorithm(const cublasLtMatmulAlgo_t* of_which,
                                cublasLtMatmulAlgoConfigAttributes_t what, void* to,
                                std::size_t bytes, std::size_t* written) {
  const int number = int(of_which->data[0]);
  if (what != CUBLASLT_ALGO_CONFIG_ID || bytes != sizeof number) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(to, &number, *written = sizeof number);
  return CUBLAS_STATUS_SUCCESS;
}

void compute(const Product& p, const Layout& of_a, const char* a, const Layout& of_b, const char* b,
             const Layout& of_d, char* d) {
  const Matrix first{of_a, p.a == CUBLAS_OP_T}, second{of_b, p.b == CUBLAS_OP_T}, to{of_d, false};
  const DType x = dtype_of(of_a.type), y = dtype_of(of_d.type);
  for (std::int64_t j = 0; j < of_d.columns; ++j)
    for (std::int64_t i = 0; i < of_d.rows; ++i) {
      double sum = 0;
      for (std::int64_t k = 0; k < first.columns(); ++k)
        sum += number_at(x, a, first.at(i, k)) * number_at(x, b, second.at(k, j));
      if (has(p, CUBLASLT_EPILOGUE_BIAS)) sum += number_at(y, p.bias, i);
      if (has(p, CUBLASLT_EPILOGUE_RELU) && !(sum > 0))
        sum = keeps_undefined && std::isnan(sum) ? sum : 0;
      put_number(y, d, to.at(i, j), sum);
    }
}

template <class T>
bool is(const void* number, double v) {
  return *static_cast<const T*>(number) == T(v);
}

cublasStatus_t multiply(cublasLtHandle_t, cublasLtMatmulDesc_t product, const void* alpha,
                        const void* a, cublasLtMatrixLayout_t of_a, const void* b,
                        cublasLtMatrixLayout_t of_b, const void* beta, const void*,
                        cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t of_d,
                        const cublasLtMatmulAlgo_t* way, void* workspace, std::size_t bytes,
                        cudaStream_t stream) {
  const Product p = of<Product>(product);
  const bool f64 = p.scale == CUDA_R_64F;
  if (!(f64 ? is<double>(alpha, 1) && is<double>(beta, 0)
            : is<float>(alpha, 1) && is<float>(beta, 0)))
    return CUBLAS_STATUS_INVALID_VALUE;
  const std::size_t wanted = workspaces[way->data[0]];
  if (bytes < wanted || (wanted > 0 && !workspace)) return CUBLAS_STATUS_INVALID_VALUE;
  for (const void* at : {a, b, static_cast<const void*>(d),
                         static_cast<const void*>(has(p, CUBLASLT_EPILOGUE_BIAS) ? p.bias : a)})
    if (!at || reinterpret_cast<std::uintptr_t>(at) % 16 != 0) return CUBLAS_STATUS_INVALID_VALUE;
  ++counted.products, counted.tf32 += p.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  const auto work = [=, x = of<Layout>(of_a), y = of<Layout>(of_b), z = of<Layout>(of_d)] {
    compute(p, x, static_cast<const char*>(a), y, static_cast<const char*>(b), z,
            static_cast<char*>(d));
    if (wanted > 0) std::memset(workspace, 0xff, wanted);
  };
  return stream->put(work) == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // namespace

namespace lamina {

test::FakeCublas test::fake_cublas() { return counted; }
void test::give_ways_of_cublas(bool yes) { has_ways = yes; }
void test::keep_undefined_in_cublas(bool yes) { keeps_undefined = yes; }

std::optional<cuda::Cublas> cuda::open_cublas() {
  Cublas c{};
  c.version = [] { return std::size_t(130100); };
  c.name_of = [](cublasStatus_t) { return "refused by the stand-in"; };
  c.create = [](cublasLtHandle_t* to) { return make<int>(to); };
  c.destroy = destroy<int, cublasLtHandle_t>;
  c.create_product = [](cublasLtMatmulDesc_t* to, cublasComputeType_t compute,
                        cudaDataType_t scale) { return make<Product>(to, compute, scale); };
  c.destroy_product = destroy<Product, cublasLtMatmulDesc_t>;
  c.set_of_product = set_of_product;
  c.create_layout = [](cublasLtMatrixLayout_t* to, cudaDataType_t type, std::uint64_t rows,
                       std::uint64_t columns, std::int64_t ld) {
    return make<Layout>(to, type, std::int64_t(rows), std::int64_t(columns), ld);
  };
  c.destroy_layout = destroy<Layout, cublasLtMatrixLayout_t>;
  c.create_preference = [](cublasLtMatmulPreference_t* to) { return make<Preference>(to); };
  c.destroy_preference = destroy<Preference, cublasLtMatmulPreference_t>;
  c.set_of_preference = set_of_preference;
  c.heuristic = heuristic, c.get_of_algorithm = get_of_algorithm, c.multiply = multiply;
  return c;
}

}  // namespace lamina
