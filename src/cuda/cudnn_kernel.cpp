#include "cuda/cudnn_kernel.hpp"

#include <lamina/base/text.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <mutex>

namespace lamina::cuda {

namespace {

/// Of a queue.
struct Handle {
  cudnnHandle_t handle = nullptr;

  explicit Handle(cudaStream_t stream) {
    ok(cudnn().create(&handle), "start");
    ok(cudnn().set_stream(handle, stream), "choose a stream");
  }
  ~Handle() { cudnn().destroy(handle); }
  Handle(const Handle&) = delete;
};

/// Events around what is timed.
class Watch {
 public:
  explicit Watch(cudaStream_t stream) : stream_(stream) {
    for (cudaEvent_t& event : events_) ok(cudaEventCreate(&event), "make an event");
  }
  ~Watch() {
    for (const cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  Watch(const Watch&) = delete;
  void start() { ok(cudaEventRecord(events_[0], stream_), "record an event"); }
  double stop() {
    float milliseconds = 0;
    ok(cudaEventRecord(events_[1], stream_), "record an event");
    ok(cudaEventSynchronize(events_[1]), "time a kernel");
    ok(cudaEventElapsedTime(&milliseconds, events_[0], events_[1]), "time a kernel");
    return double(milliseconds) * 1e-3;
  }

 private:
  cudaStream_t stream_;
  std::array<cudaEvent_t, 2> events_{};
};

/// Operands to time a plan on: no zeros, for which a GPU needs less power.
std::vector<std::shared_ptr<void>> filled(Memory& memory, std::span<const std::size_t> bytes) {
  std::vector<std::shared_ptr<void>> all;
  for (const std::size_t size : bytes) {
    void* const at = all.emplace_back(memory.allocate(size)).get();
    check(at || size == 0, "GPU memory is exhausted: ", size, " bytes to time kernels with");
    constexpr int small_numbers = 0x3c;  // as bytes of f16, bf16, f32 and f64
    memory.run("fill memory",
               [&](cudaStream_t s) { return cudaMemsetAsync(at, small_numbers, size, s); });
  }
  return all;
}

}  // namespace

CudnnKernel::CudnnKernel(const CudnnOnGpu& on, const std::string& what,
                         std::span<const std::size_t> bytes,
                         std::span<const Candidate> candidates) {
  static std::mutex one_at_a_time;  // ranks that are threads would disturb each other's times
  const std::lock_guard lock(one_at_a_time);
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    constexpr int most = 8;  // the best ones come first, by cuDNN's own estimate
    int tried = 0;
    for (const Way& way : candidates[i].graph.ways(on.gpu, on.demands)) {
      if (way.compiled) continue;  // that takes seconds for each shape
      if (tried == most) break;
      const std::string key = text(on.name, ' ', what, ' ', i, '.', tried++, ' ', way.name);
      CudnnKernel kernel(CudnnPlan(candidates[i].graph, way, on.gpu), candidates[i].wiring);
      std::optional<double> seconds = on.times->find(key);
      if (!seconds) on.times->keep(key, *(seconds = kernel.seconds(*on.memory, bytes)));
      if (*seconds >= least) continue;
      least = *seconds;
      *this = std::move(kernel);
    }
  }
  check(plan_.has_value(), "cuDNN has nothing for ", what);
}

/// Behind the plan's workspace.
std::size_t CudnnKernel::inner_at() const { return (plan_->workspace() + 255) / 256 * 256; }

void CudnnKernel::run(Queue& queue, Addresses operands) {
  check(operands.size() < most_operands, name(), ": too many operands: ", operands.size());
  char* const scratch = static_cast<char*>(queue.scratch(this->scratch()));
  std::array<void*, most_operands> all{}, picked{};
  std::copy(operands.begin(), operands.end(), all.begin());
  void* const inner = all[operands.size()] = scratch + inner_at();
  for (std::size_t i = 0; i < wiring_.operands.size(); ++i) {
    void* const operand = all[std::size_t(wiring_.operands[i])];
    picked[i] = operand ? operand : inner;
  }
  const auto& handle = queue.kept<Handle>([&] { return std::make_shared<Handle>(queue.stream()); });
  plan_->run(handle.handle, scratch, Addresses(picked.data(), wiring_.operands.size()));
  if (wiring_.then)
    ok(wiring_.then(queue.stream(), Addresses(all.data(), operands.size() + 1)), name().c_str());
}

/// The least of some runs.
double CudnnKernel::seconds(Memory& memory, std::span<const std::size_t> bytes) {
  Queue queue(memory.device());
  std::vector<void*> operands;
  const auto owned = filled(memory, bytes);
  for (const auto& operand : owned) operands.push_back(operand.get());
  Watch watch(queue.stream());
  double least = std::numeric_limits<double>::infinity();
  constexpr int runs = 4;  // the first one warms up
  for (int i = 0; i < runs; ++i) {
    watch.start();
    run(queue, operands);
    const double seconds = watch.stop();
    if (i > 0) least = std::min(least, seconds);
  }
  return least;
}

}  // namespace lamina::cuda
