// The CUDA back end, on stand-ins or on a GPU. A program that has this file has that wherever it
// asks for a back end, in memory that tests can look into.
#include "gpu/device.hpp"

#include "support/peek.hpp"

#include <lamina/kernels/backends.hpp>
#include <lamina/kernels/reference.hpp>

#include <deque>
#include <mutex>

namespace lamina {

namespace {

/// The first way is taken: which is the fastest in memory of the host is no matter, and to find it
/// out would take longer than the tests do.
struct Untimed final : Verdicts {
  std::optional<double> find(const std::string&) override { return 0.0; }
};

/// All ranks that are threads of one process share it.
const std::shared_ptr<const Backend>& gpu() {
  static const auto backend = [] {
    test::host_looks_in = true;
    return cuda_backend(0, {.demands = {.deterministic = true},  // tests compare bits of two runs
                            .verdicts = std::make_shared<Untimed>()});
  }();
  return backend;
}

const bool known = [] {
  test::device_peek = [](const View& v) {
    v.space->settle();
    if (v.layout.plain()) return View(v.data, v.form());  // whose memory is the host's, after all
    static std::deque<Tensor> copies;
    static std::mutex guard;
    const std::lock_guard lock(guard);
    const Tensor& plain = copies.emplace_back(v.shape, v.dtype);
    gpu()->copy(v, plain);
    return plain.view();
  };
  return true;
}();

}  // namespace

std::shared_ptr<const Backend> reference_backend() { return gpu(); }

// Nobody gets another one, but for ranks that are to have unlike ones.
bool has_onednn() { return false; }
std::shared_ptr<const Backend> onednn_backend(Choice) { return std::make_shared<Reference>(); }

}  // namespace lamina
