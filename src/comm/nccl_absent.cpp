// Collectives between GPUs, where NCCL is not built in.
#include <lamina/base/components.hpp>

namespace lamina {

std::string nccl_component() { return "not built in"; }

}  // namespace lamina
