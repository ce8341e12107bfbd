// The choice of a back end by name.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/kernels/backends.hpp>

#include <charconv>

namespace lamina {

namespace detail {

/// Of "cuda" or "cuda:N"; -1 for other names.
LAMINA_INLINE int gpu_number(std::string_view name) {
  constexpr std::string_view all = "cuda";
  if (name == all) return 0;
  if (!name.starts_with(all) || name[all.size()] != ':') return -1;
  const std::string_view digits = name.substr(all.size() + 1);
  int number = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return error == std::errc() && end == digits.data() + digits.size() ? number : -1;
}

}  // namespace detail

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
  if (const int gpu = detail::gpu_number(name); gpu >= 0)
    backend = cuda_backend(gpu, {.verdicts = kept_verdicts()});
  check(backend != nullptr, "back end '", name,
        "' is not known: expected auto, reference, onednn, onednn:mixed, cuda or cuda:N");
  check(backend->supports(precision), "back end '", name, "' does not support ", precision,
        name == "reference" ? "" : ": expected reference");
  return backend;
}

}  // namespace lamina
