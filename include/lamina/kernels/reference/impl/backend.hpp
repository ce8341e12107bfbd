// The reference back end by name.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/kernels/reference.hpp>

namespace lamina {

LAMINA_INLINE std::shared_ptr<const Backend> reference_backend() {
  return std::make_shared<const Reference>();
}

}  // namespace lamina
