// NCCL's library, opened at run time.
#include "comm/nccl_calls.hpp"

#include <array>
#include <string>

namespace lamina::detail {

const NcclCalls& nccl() {
  // What the system finds comes first; then what was there when this was configured.
  static const SharedLibrary library(
      std::array<std::string, 2>{"libnccl.so.2", LAMINA_NCCL_LIBRARY});
  static const NcclCalls calls{[](const char* name) { return library.function(name); }};
  return calls;
}

}  // namespace lamina::detail
