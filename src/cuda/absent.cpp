// Kernels for GPUs, where CUDA is not built in.
#include <lamina/base/components.hpp>

namespace lamina {

std::string cuda_component() { return "not built in"; }

}  // namespace lamina
