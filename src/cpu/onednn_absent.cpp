// In place of the oneDNN back end where oneDNN was not found.
#include <lamina/kernels/backends.hpp>

namespace lamina {

std::shared_ptr<const Backend> onednn_backend(Choice) {
  throw Error(
      "oneDNN is not built in: install its development files (libdnnl-dev) and configure with "
      "-DLAMINA_ONEDNN=ON, or ask for the back end 'reference'");
}

bool has_onednn() { return false; }

}  // namespace lamina
