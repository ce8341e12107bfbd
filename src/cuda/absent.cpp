// Kernels for GPUs, where CUDA and cuDNN are not built in.
#include <lamina/base/components.hpp>
#include <lamina/kernels/backends.hpp>

namespace lamina {

std::shared_ptr<const Backend> cuda_backend(int) {
  throw Error("back end 'cuda' is not built in: expected auto, reference or onednn");
}

std::string cuda_component() { return "not built in"; }

}  // namespace lamina
