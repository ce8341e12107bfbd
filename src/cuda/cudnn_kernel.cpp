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

}  // namespace

/// Where ways are timed: a stream and operands of their own.
class CudnnKernel::Bench {
 public:
  Bench(Memory& memory, std::span<const std::size_t> bytes) : queue_(memory.device()) {
    for (cudaEvent_t& event : events_) ok(cudaEventCreate(&event), "make an event");
    for (const std::size_t size : bytes) {
      operands_.push_back(owned_.emplace_back(memory.allocate(size)).get());
      check(operands_.back() || size == 0, "GPU memory is exhausted: ", size,
            " bytes to time kernels with");
      constexpr int small_numbers = 0x3c;  // zeros would take a GPU less power, and so less time
      memory.run("fill memory", [&](cudaStream_t s) {
        return cudaMemsetAsync(operands_.back(), small_numbers, size, s);
      });
    }
  }
  ~Bench() {
    for (const cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  Bench(const Bench&) = delete;

  /// The least of some runs.
  double seconds(CudnnKernel& kernel) {
    double least = std::numeric_limits<double>::infinity();
    constexpr int runs = 4;  // the first one warms up
    for (int i = 0; i < runs; ++i) {
      float milliseconds = 0;
      ok(cudaEventRecord(events_[0], queue_.stream()), "record an event");
      kernel.run(queue_, operands_);
      ok(cudaEventRecord(events_[1], queue_.stream()), "record an event");
      ok(cudaEventSynchronize(events_[1]), "time a kernel");
      ok(cudaEventElapsedTime(&milliseconds, events_[0], events_[1]), "time a kernel");
      if (i > 0) least = std::min(least, double(milliseconds) * 1e-3);
    }
    return least;
  }

 private:
  Queue queue_;
  std::array<cudaEvent_t, 2> events_{};
  std::vector<std::shared_ptr<void>> owned_;
  std::vector<void*> operands_;
};

namespace {

struct Timed {
  double seconds;
  const Candidate* of;
  Way way;
};

/// Whether f() has been done; else `why` says what has gone wrong.
template <class F>
bool attempt(std::string& why, const F& f) {
  try {
    f();
    return true;
  } catch (const Error& e) {
    why = text("; ", e.what());
    return false;
  }
}

}  // namespace

CudnnKernel::CudnnKernel(const CudnnOnGpu& on, const std::string& what,
                         std::span<const std::size_t> bytes,
                         std::span<const Candidate> candidates) {
  static std::mutex one_at_a_time;  // ranks that are threads would disturb each other's times
  const std::lock_guard lock(one_at_a_time);
  std::optional<Bench> bench;
  const auto time = [&](const Candidate& of, const Way& way) {
    if (!bench) bench.emplace(*on.memory, bytes);
    CudnnKernel kernel(CudnnPlan(of.graph, way, on.gpu), of.wiring);
    return bench->seconds(kernel);
  };
  std::string refused;
  std::vector<Timed> timed;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    constexpr int most = 8;  // the best ones come first, by cuDNN's own estimate
    int tried = 0;
    for (Way& way : candidates[i].graph.ways(on.gpu, on.demands)) {
      if (way.compiled) continue;  // that takes seconds for each shape
      if (tried == most) break;
      way.name = candidates[i].wiring.named + way.name;
      const std::string key = text(on.name, ' ', what, ' ', i, '.', tried++, ' ', way.name);
      std::optional<double> seconds = on.times->find(key);
      const auto find_out = [&] { seconds = on.times->keep(key, time(candidates[i], way)); };
      if (seconds || attempt(refused, find_out))
        timed.push_back({*seconds, &candidates[i], std::move(way)});
    }
  }
  std::ranges::stable_sort(timed, {}, &Timed::seconds);
  for (const Timed& t : timed) {
    wiring_ = t.of->wiring;
    if (attempt(refused, [&] { plan_.emplace(t.of->graph, t.way, on.gpu); })) return;
  }
  throw Error(text("cuDNN has nothing for ", what, on.demands, refused));
}

namespace {

/// Where what comes behind so many bytes of scratch memory begins.
std::size_t behind(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

std::size_t CudnnKernel::scratch() const {
  std::size_t bytes = plan_->workspace();
  for (const std::size_t area : wiring_.areas) bytes = behind(bytes) + area;
  return bytes;
}

void CudnnKernel::run(Queue& queue, Addresses operands) {
  const std::size_t count = operands.size() + wiring_.areas.size();
  check(count <= most_addresses, name(), ": too many operands: ", count);
  char* const scratch = static_cast<char*>(queue.scratch(this->scratch()));
  std::array<void*, most_addresses> all{}, picked{};
  auto* const areas = std::copy(operands.begin(), operands.end(), all.begin());
  std::size_t at = plan_->workspace();
  for (std::size_t i = 0; i < wiring_.areas.size(); at += wiring_.areas[i++])
    areas[i] = scratch + (at = behind(at));
  for (std::size_t i = 0; i < wiring_.operands.size(); ++i) {
    void* const operand = all[std::size_t(wiring_.operands[i])];
    picked[i] = operand ? operand : *areas;
  }
  const Addresses addresses(all.data(), count);
  const cudaStream_t stream = queue.stream();  // asked for each time: the next mark is behind this
  const auto& handle = queue.kept<Handle>([&] { return std::make_shared<Handle>(stream); });
  if (wiring_.first) ok(wiring_.first(stream, addresses), name().c_str());
  plan_->run(handle.handle, scratch, Addresses(picked.data(), wiring_.operands.size()));
  if (wiring_.then) ok(wiring_.then(stream, addresses), name().c_str());
}

}  // namespace lamina::cuda
