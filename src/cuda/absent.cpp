// The CUDA back end, where it is not built in.
#include <lamina/kernels/backends.hpp>

namespace lamina {

bool has_cuda() { return false; }

int cuda_devices() { return 0; }

std::unique_ptr<Listener> cuda_ranges() { return nullptr; }

std::shared_ptr<const Backend> cuda_backend(int device, Choice) {
  throw Error(text("back end 'cuda' (GPU ", device,
                   ") is not built in: expected auto, reference or onednn"));
}

}  // namespace lamina
