// In place of the oneDNN back end, in a program without oneDNN.
#include <lamina/kernels/backends.hpp>

namespace lamina {

std::shared_ptr<const Backend> onednn_backend(Choice) {
  throw Error(
      "oneDNN is not built in: install its development files (libdnnl-dev), configure Lamina with "
      "-DLAMINA_ONEDNN=ON, and ask find_package() for the component cpu; or take the back end "
      "'reference'");
}

bool has_onednn() { return false; }

}  // namespace lamina
