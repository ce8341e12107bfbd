// The reference back end, compiled once.
#include <lamina/kernels/backends.hpp>
#include <lamina/kernels/reference.hpp>

namespace lamina {

std::shared_ptr<const Backend> reference_backend() { return std::make_shared<const Reference>(); }

}  // namespace lamina
