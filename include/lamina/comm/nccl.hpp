// Collectives between GPUs over NCCL.
#pragma once

#include <lamina/comm/transport.hpp>
#include <lamina/tensor/device.hpp>

#include <memory>

namespace lamina {

/// The ranks of `peers`, each with a GPU of its own; `peers` carries NCCL's key to them. Throws
/// Error where NCCL is not built in.
std::shared_ptr<Transport> nccl_transport(std::shared_ptr<Transport> peers, Device device);

/// Whether nccl_transport() is built in.
bool has_nccl();

}  // namespace lamina
