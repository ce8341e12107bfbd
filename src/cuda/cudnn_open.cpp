// cuDNN, opened at run time: a program that can use it starts where it is not installed.
#include "base/shared_library.hpp"
#include "cuda/cudnn.hpp"

namespace lamina::cuda {

Cudnn open_cudnn() {
  // It stays open: descriptors may be destroyed as late as the program ends.
  const std::string names[] = {"libcudnn.so.9", LAMINA_CUDNN_LIBRARY};
  static const auto& library = *new detail::SharedLibrary(names);
  Cudnn c{};
  const auto find = [&]<class F>(F*& function, const char* name) {
    function = library.function<F>(name);
  };
  find(c.version, "cudnnGetVersion");
  find(c.name_of, "cudnnGetErrorString");
  find(c.last_error, "cudnnGetLastErrorString");
  find(c.create, "cudnnCreate");
  find(c.destroy, "cudnnDestroy");
  find(c.set_stream, "cudnnSetStream");
  find(c.create_descriptor, "cudnnBackendCreateDescriptor");
  find(c.destroy_descriptor, "cudnnBackendDestroyDescriptor");
  find(c.set_attribute, "cudnnBackendSetAttribute");
  find(c.get_attribute, "cudnnBackendGetAttribute");
  find(c.finalize, "cudnnBackendFinalize");
  find(c.execute, "cudnnBackendExecute");
  const std::size_t version = c.version();
  check(version / 10000 == 9, "cuDNN: expected version 9, got ", version / 10000);
  return c;
}

}  // namespace lamina::cuda
