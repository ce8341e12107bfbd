#include "cuda/libraries/kernel.hpp"

#include <lamina/base/text.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <mutex>

namespace lamina::cuda {

/// Where ways are tried: a stream and operands of their own.
class LibraryKernel::Bench {
 public:
  Bench(Memory& memory, std::span<const std::size_t> bytes)
      : memory_(memory), queue_(memory.device()), bytes_(bytes.begin(), bytes.end()) {
    for (cudaEvent_t& event : events_) ok(cudaEventCreate(&event), "make an event");
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      operands_.push_back(owned_.emplace_back(memory.allocate(bytes[i])).get());
      if (!operands_.back() && bytes[i] > 0)
        throw NoGpuLeft(lacks_memory("an operand to time kernels with", bytes[i]));
      fill(i, small_numbers);
    }
  }
  ~Bench() {
    for (const cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  Bench(const Bench&) = delete;

  /// The least of some runs.
  double seconds(LibraryKernel& kernel) {
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

  /// Whether y, of type t, is undefined where x is, which the first and the last operand are.
  bool keeps_undefined(LibraryKernel& kernel, DType t) {
    fill(0, undefined);
    kernel.run(queue_, operands_);
    ok(cudaStreamSynchronize(queue_.stream()), "try a kernel");
    fill(0, small_numbers);
    return visit(t, [&]<class T>(T) {
      T y{};
      memory_.copy(operands_.back(), &y, sizeof y);
      return std::isnan(double(y));
    });
  }

 private:
  static constexpr int small_numbers = 0x3c;  // zeros would take a GPU less power, and less time
  static constexpr int undefined = 0xff;      // in all types

  void fill(std::size_t i, int byte) {
    memory_.run("fill memory",
                [&](cudaStream_t s) { return cudaMemsetAsync(operands_[i], byte, bytes_[i], s); });
  }

  Memory& memory_;
  Queue queue_;
  std::vector<std::size_t> bytes_;
  std::array<cudaEvent_t, 2> events_{};
  std::vector<std::shared_ptr<void>> owned_;
  std::vector<void*> operands_;
};

namespace {

struct Timed {
  double seconds;
  const Wiring* wiring;
  Way way;
};

/// Whether f() has been done; else `why` says what has gone wrong.
template <class F>
bool attempt(std::string& why, const F& f) {
  try {
    f();
    return true;
  } catch (const NoGpuLeft&) {
    throw;
  } catch (const Error& e) {
    why = text("; ", e.what());
    return false;
  }
}

}  // namespace

LibraryKernel::LibraryKernel(const LibrariesOnGpu& on, const std::string& what,
                             std::span<const std::size_t> bytes,
                             std::span<const Candidate> candidates) {
  static std::mutex one_at_a_time;  // ranks that are threads would disturb each other's times
  const std::lock_guard lock(one_at_a_time);
  std::optional<Bench> bench;
  const auto time = [&](const Way& way, const Wiring& wiring) {
    if (!bench) bench.emplace(*on.memory, bytes);
    LibraryKernel kernel(way, wiring);
    check(!wiring.rectified || bench->keeps_undefined(kernel, *wiring.rectified), kernel.name(),
          ": ReLU of what is undefined is not");
    return bench->seconds(kernel);
  };
  std::string refused;
  std::vector<Timed> timed;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const Wiring& wiring = candidates[i].wiring;
    constexpr int most = 8;  // the best ones come first, by the libraries' own estimates
    int tried = 0;
    for (Way& way : candidates[i].problem->ways(on)) {
      if (tried == most) break;
      const std::string key = text(on.name, ' ', what, ' ', i, '.', tried++, ' ', wiring.named,
                                   way.name, wiring.rectified ? ", keeps what is undefined" : "");
      std::optional<double> seconds = on.times->find(key);
      const auto find_out = [&] { seconds = on.times->keep(key, time(way, wiring)); };
      if (seconds || attempt(refused, find_out))
        timed.push_back({*seconds, &wiring, std::move(way)});
    }
  }
  std::ranges::stable_sort(timed, {}, &Timed::seconds);
  for (const Timed& t : timed)
    if (attempt(refused, [&] { *this = LibraryKernel(t.way, *t.wiring); })) return;
  throw Error(text("no library has a way for ", what, on.demands, refused));
}

namespace {

/// Where what comes behind so many bytes of scratch memory begins.
std::size_t behind(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

std::size_t LibraryKernel::scratch() const {
  std::size_t bytes = plan_->workspace();
  for (const std::size_t area : wiring_.areas) bytes = behind(bytes) + area;
  return bytes;
}

void LibraryKernel::run(Queue& queue, Addresses operands) {
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
  const cudaStream_t stream = queue.stream();
  const Addresses addresses(all.data(), count);
  if (wiring_.first) ok(wiring_.first(stream, addresses), name().c_str());
  plan_->run(queue, scratch, Addresses(picked.data(), wiring_.operands.size()));
  if (wiring_.then) ok(wiring_.then(queue.stream(), addresses), name().c_str());
}

}  // namespace lamina::cuda
