// The CUDA back end on the stand-ins for NVIDIA's runtime and libraries. A program that has this
// file has that wherever it asks for a back end.
#include "fake/runtime.hpp"
#include "support/peek.hpp"

#include <lamina/comm/nccl.hpp>
#include <lamina/comm/threads.hpp>
#include <lamina/kernels/backends.hpp>

#include <cstdlib>
#include <deque>
#include <mutex>

namespace lamina {

namespace {

/// All ranks that are threads of one process share it.
const std::shared_ptr<const Backend>& fake() {
  static const auto backend = cuda_backend(0);
  return backend;
}

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
  test::device_peek = [](const View& v) {
    v.space->settle();
    if (v.layout.plain()) return View(v.data, v.form());  // whose memory is the host's, after all
    static std::deque<Tensor> copies;
    static std::mutex guard;
    const std::lock_guard lock(guard);
    const Tensor& plain = copies.emplace_back(v.shape, v.dtype);
    fake()->copy(v, plain);
    return plain.view();
  };
  return true;
}();

}  // namespace

std::shared_ptr<const Backend> reference_backend() { return fake(); }

// Nobody gets another one.
bool has_onednn() { return false; }
std::shared_ptr<const Backend> onednn_backend(Choice) { return fake(); }

}  // namespace lamina
