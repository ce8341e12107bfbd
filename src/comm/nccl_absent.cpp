// Collectives over NCCL, where it is not built in.
#include <lamina/comm/nccl.hpp>

namespace lamina {

bool has_nccl() { return false; }

std::shared_ptr<Transport> nccl_transport(std::shared_ptr<Transport>, Device device) {
  throw Error(text("NCCL is not built in: ", device, " cannot take part in collectives"));
}

}  // namespace lamina
