// cuDNN, opened at run time: a program that can use it starts where it is not installed.
#include "base/shared_library.hpp"
#include "cuda/libraries/cudnn.hpp"

namespace lamina::cuda {

Cudnn open_cudnn() {
  // It stays open: descriptors may be destroyed as late as the program ends.
  const std::string names[] = {"libcudnn.so.9", LAMINA_CUDNN_LIBRARY};
  static const auto& library = *new detail::SharedLibrary(names);
  const Cudnn c{
      .version = library.function("cudnnGetVersion"),
      .name_of = library.function("cudnnGetErrorString"),
      .last_error = library.function("cudnnGetLastErrorString"),
      .create = library.function("cudnnCreate"),
      .destroy = library.function("cudnnDestroy"),
      .set_stream = library.function("cudnnSetStream"),
      .create_descriptor = library.function("cudnnBackendCreateDescriptor"),
      .destroy_descriptor = library.function("cudnnBackendDestroyDescriptor"),
      .set_attribute = library.function("cudnnBackendSetAttribute"),
      .get_attribute = library.function("cudnnBackendGetAttribute"),
      .finalize = library.function("cudnnBackendFinalize"),
      .execute = library.function("cudnnBackendExecute"),
  };
  const std::size_t version = c.version();
  check(version / 10000 == 9, "cuDNN: expected version 9, got ", version / 10000);
  return c;
}

}  // namespace lamina::cuda
