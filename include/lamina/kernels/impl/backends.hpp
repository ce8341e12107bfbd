// The choice of a back end by name.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/kernels/backends.hpp>

namespace lamina {

LAMINA_INLINE std::shared_ptr<const Backend> make_backend(std::string_view name,
                                                          const Precision& precision) {
  if (name == "auto") {
    const bool fast = has_onednn() && precision == Precision(DType::f32);
    return make_backend(fast ? "onednn" : "reference", precision);
  }
  check(name == "reference" || name == "onednn" || name == "cuda", "back end '", name,
        "' is not known: expected auto, reference, onednn or cuda");
  auto backend = name == "onednn" ? onednn_backend({.verdicts = kept_verdicts()})
                 : name == "cuda" ? cuda_backend(0)
                                  : reference_backend();
  check(backend->supports(precision), "back end '", name, "' does not support ", precision,
        name == "reference" ? "" : ": expected reference");
  return backend;
}

}  // namespace lamina
