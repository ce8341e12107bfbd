// The choice of a back end by name.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/kernels/gpu_name.hpp>

#include <algorithm>

namespace lamina {

LAMINA_INLINE std::string_view fastest_backend(const Precision& precision) {
  const bool known = precision == Precision(DType::f32) || precision == Precision(DType::bf16);
  return has_onednn() && known ? "onednn" : "reference";
}

LAMINA_INLINE std::shared_ptr<const Backend> make_backend(std::string_view name,
                                                          const Precision& precision) {
  if (name == "auto") return make_backend(fastest_backend(precision), precision);
  std::shared_ptr<const Backend> backend;
  if (name == "reference") backend = reference_backend();
  if (name == "onednn" || name == mixed_onednn)
    backend = onednn_backend({.mixed = name == mixed_onednn, .verdicts = kept_verdicts()});
  if (const auto gpu = GpuName::of(name))
    backend = cuda_backend(std::max(gpu->number, 0),
                           {.demands = gpu->demands, .verdicts = kept_verdicts()});
  check(backend != nullptr, "back end '", name,
        "' is not known: expected auto, reference, onednn, onednn:mixed, cuda or cuda:N, which may "
        "have :tf32, :deterministic and :workspace=BYTES behind it");
  check(backend->supports(precision), "back end '", name, "' does not support ", precision,
        name == "reference" ? "" : ": expected reference");
  return backend;
}

LAMINA_INLINE std::string backend_name(std::string_view name, const Precision& precision) {
  if (name == "auto") return std::string(fastest_backend(precision));
  if (name == mixed_onednn) return "onednn";
  const auto gpu = GpuName::of(name);
  return gpu ? GpuName{.demands = gpu->demands}.text() : std::string(name);
}

}  // namespace lamina
