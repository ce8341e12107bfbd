// Products of matrices as cuBLAS has them: descriptions of column after column.
#include "cuda/libraries/cublas_product.hpp"

#include "cuda/libraries/kernel.hpp"

#include <lamina/base/text.hpp>

#include <algorithm>
#include <array>

namespace lamina::cuda {

namespace {

constexpr std::uint32_t alignment = 16;  // bytes

cublasComputeType_t compute_type(DType t, bool tf32) {
  if (t == DType::f64) return CUBLAS_COMPUTE_64F;
  return t == DType::f32 && tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

cublasLtEpilogue_t epilogue(const Matrices& m) {
  if (m.rectify) return m.bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
  return m.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

/// A matrix of rows one after the other is, to cuBLAS, the transposed one, of columns one after the
/// other. So it is to compute that of y, which is that of b times that of a.
struct Description {
  CublasHandle handle;
  DType sums;
  bool bias;
  Owned<cublasLtMatmulDesc_t> product;
  Owned<cublasLtMatrixLayout_t> a, b, y;

  Description(CublasHandle on, const Matrices& m, bool tf32)
      : handle(std::move(on)),
        sums(wide(m.elements)),
        bias(m.bias),
        a(layout(m.elements, m.rows, m.inner, m.a_transposed)),
        b(layout(m.elements, m.inner, m.columns, m.b_transposed)),
        y(layout(m.y, m.rows, m.columns, false)) {
    cublasLtMatmulDesc_t made = nullptr;
    ok(cublas()->create_product(&made, compute_type(m.elements, tf32), cuda_type(sums)),
       "describe a product");
    product.reset(made);
    set(CUBLASLT_MATMUL_DESC_TRANSA, m.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, m.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue(m));
    // Of the address, ways are told how it is aligned.
    if (m.bias) set_bias(reinterpret_cast<void*>(std::uintptr_t(alignment)));
  }

  void set_bias(const void* at) { set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, at); }

 private:
  template <class T>
  void set(cublasLtMatmulDescAttributes_t what, T value) {
    ok(cublas()->set_of_product(product.get(), what, &value, sizeof value), "describe a product");
  }
  static Owned<cublasLtMatrixLayout_t> layout(DType t, std::int64_t rows, std::int64_t columns,
                                              bool transposed) {
    if (transposed) std::swap(rows, columns);
    cublasLtMatrixLayout_t made = nullptr;
    ok(cublas()->create_layout(&made, cuda_type(t), std::uint64_t(columns), std::uint64_t(rows),
                               columns),
       "describe a matrix");
    return Owned<cublasLtMatrixLayout_t>(made);
  }
};

class ProductPlan final : public Plan {
 public:
  ProductPlan(std::shared_ptr<Description> of, const cublasLtMatmulHeuristicResult_t& way)
      : of_(std::move(of)), algorithm_(way.algo), workspace_(way.workspaceSize) {}

  std::size_t workspace() const override { return workspace_; }
  void run(Queue& queue, void* workspace, Addresses operands) override {
    const std::size_t expected = of_->bias ? 4 : 3;
    check(operands.size() == expected, "cuBLAS: expected ", expected, " operands, got ",
          operands.size());
    if (of_->bias) of_->set_bias(operands[2]);
    if (of_->sums == DType::f64)
      multiply<double>(queue, workspace, operands);
    else
      multiply<float>(queue, workspace, operands);
  }

 private:
  template <class T>
  void multiply(Queue& queue, void* workspace, Addresses operands) const {
    const T one = 1, zero = 0;
    void* const y = operands.back();
    ok(cublas()->multiply(of_->handle.get(), of_->product.get(), &one, operands[1], of_->b.get(),
                          operands[0], of_->a.get(), &zero, y, of_->y.get(), y, of_->y.get(),
                          &algorithm_, workspace, workspace_, queue.stream()),
       "multiply");
  }

  std::shared_ptr<Description> of_;
  cublasLtMatmulAlgo_t algorithm_;
  std::size_t workspace_;
};

/// What ways must be like.
Owned<cublasLtMatmulPreference_t> preference(std::size_t most_workspace) {
  cublasLtMatmulPreference_t made = nullptr;
  ok(cublas()->create_preference(&made), "choose a way");
  Owned<cublasLtMatmulPreference_t> preference(made);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t what, auto value) {
    ok(cublas()->set_of_preference(made, what, &value, sizeof value), "choose a way");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t(most_workspace));
  // Parts of sums in the type of y would be rounded to that.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      std::uint32_t(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  for (const auto which :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    set(which, alignment);
  return preference;
}

/// The number of an algorithm, of which there are many ways.
int number_of(const cublasLtMatmulAlgo_t& algorithm) {
  int number = 0;
  std::size_t written = 0;
  ok(cublas()->get_of_algorithm(&algorithm, CUBLASLT_ALGO_CONFIG_ID, &number, sizeof number,
                                &written),
     "name a way");
  return number;
}

}  // namespace

std::vector<Way> CublasProduct::ways(const LibrariesOnGpu& on) const {
  if (!on.cublas) return {};
  const auto of = std::make_shared<Description>(on.cublas, matrices_, on.demands.tf32);
  constexpr std::size_t enough = std::size_t(64) << 20;  // twice of what NVIDIA advises
  constexpr int most = 8;
  std::array<cublasLtMatmulHeuristicResult_t, most> results;
  int count = 0;
  if (cublas()->heuristic(on.cublas.get(), of->product.get(), of->b.get(), of->a.get(), of->y.get(),
                          of->y.get(),
                          preference(std::min(on.demands.most_workspace, enough)).get(), most,
                          results.data(), &count) != CUBLAS_STATUS_SUCCESS)
    return {};
  std::vector<Way> found;
  for (const auto& result : std::span(results).first(std::size_t(count)))
    if (result.state == CUBLAS_STATUS_SUCCESS)
      found.push_back({text("cublas:", number_of(result.algo)),
                       [of, result] { return std::make_unique<ProductPlan>(of, result); }});
  return found;
}

}  // namespace lamina::cuda
