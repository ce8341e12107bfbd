// Ranks that are threads have NCCL's stand-in between them, where LAMINA_FAKE_NCCL is set.
#include "fake/runtime.hpp"
#include "support/peek.hpp"

#include <lamina/comm/nccl.hpp>
#include <lamina/comm/threads.hpp>

#include <cstdlib>

namespace lamina {

namespace {

/// Each rank sees a GPU of its own.
void carry_over_nccl(World& world) {
  world.carry_over([&](std::shared_ptr<Transport> threads) {
    test::see_gpu(world.rank());
    return nccl_transport(std::move(threads), {Device::Kind::cuda, 0});
  });
}

const bool known = [] {
  if (std::getenv("LAMINA_FAKE_NCCL")) detail::before_thread_rank = carry_over_nccl;
  test::device_carries = [] { return std::getenv("LAMINA_FAKE_NCCL") != nullptr; };
  return true;
}();

}  // namespace

}  // namespace lamina
