// NCCL's library, opened at run time.
#include "comm/nccl_calls.hpp"

#include <array>
#include <string>

namespace lamina::detail {

const NcclCalls& nccl() {
  // What the system finds comes first; then what was there when this was configured. It stays open:
  // threads of its own may run as late as the program ends.
  const std::array<std::string, 2> names{"libnccl.so.2", LAMINA_NCCL_LIBRARY};
  static const auto& library = *new SharedLibrary(names);
  static const NcclCalls calls{[](const char* name) { return library.function(name); }};
  return calls;
}

}  // namespace lamina::detail
