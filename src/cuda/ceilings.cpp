// What a GPU can do at most.
#include "kernels/ceilings.hpp"

#include "cpu/rate_in.hpp"
#include "cuda/own_kernels.hpp"

namespace lamina::cuda {

namespace {

struct Named {
  std::string_view name;
  Multiply how;
};

class GpuLoops final : public CeilingLoops {
 public:
  GpuLoops(MemoryPointer memory, bool tf32)
      : memory_(std::move(memory)), gpu_(memory_->properties()), tf32_(tf32) {}

  int units() const override { return gpu_.multiProcessorCount; }
  bool shared() const override { return false; }
  std::vector<CacheLevel> cache_levels() const override {
    return {{"L2", std::size_t(gpu_.l2CacheSize), units()}};
  }
  std::vector<std::string> instruction_sets(DType t) const override {
    std::vector<std::string> names;
    for (const Named& each : available(t)) names.emplace_back(each.name);
    return names;
  }
  double fma_rate(std::string_view set, DType, const Slices&) const override;
  Bandwidths bandwidths(std::size_t bytes, const Slices&) const override;

 private:
  std::vector<Named> available(DType) const;
  /// Repetitions per second of what work(stream, times) puts in.
  template <class Work>
  double rate(Slices slices, const Work& work) const {
    slices.slice = std::max(slices.slice, 5e-3);  // the host starts each, and waits for it
    slices.seconds *= 3;                          // before clocks are what they can be at that load
    const auto run = [&](std::size_t times) {
      const double begin = now();
      memory_->run("measure", [&](cudaStream_t s) { return work(s, std::int64_t(times)); });
      return now() - begin;
    };
    return detail::rate_in(slices, run, run);
  }

  MemoryPointer memory_;
  cudaDeviceProp gpu_;
  bool tf32_;
};

/// Those of tensor cores need a GPU: they are not emulated.
std::vector<Named> GpuLoops::available(DType t) const {
#ifdef LAMINA_EMULATED
  constexpr bool tensor_cores = false;
#else
  constexpr bool tensor_cores = true;
#endif
  std::vector<Named> all;
  if (t == DType::f32 || t == DType::f64) all.push_back({"fma", Multiply::fma});
  if (!tensor_cores || !is_floating(t) || (t == DType::f32 && !tf32_)) return all;
  all.push_back({"mma", Multiply::mma});
  if (gpu_.major == 9 && t != DType::f64) all.push_back({"wgmma", Multiply::wgmma});
  return all;
}

double GpuLoops::fma_rate(std::string_view set, DType t, const Slices& slices) const {
  const auto all = available(t);
  const auto found = std::find_if(all.begin(), all.end(), [&](auto& n) { return n.name == set; });
  check(found != all.end(), gpu_.name, " does not multiply ", name(t), " by ", set);
  const int blocks = 4 * units();
  const Tensor sums(vector_of(std::int64_t(blocks) * multiply_threads), *memory_);
  return blocks * multiply_flops(found->how, t) *
         rate(slices, [&](cudaStream_t s, std::int64_t times) {
           return multiply(s, found->how, t, blocks, times, 0.5, memory_->at(sums.view()));
         });
}

Bandwidths GpuLoops::bandwidths(std::size_t bytes, const Slices& slices) const {
  // Thirds of the memory, in vectors of 16 bytes.
  const auto third = std::int64_t(bytes * std::size_t(units()) / sizeof(float) / 12 * 4);
  const Tensor all(vector_of(3 * third, DType::f32), *memory_);
  const Tensor parts(vector_of(most_blocks), *memory_);
  float* const x = memory_->at<float>(all.view());
  const double passed = 3.0 * double(third) * sizeof(float);
  const double on_triad = rate(slices, [&](cudaStream_t s, std::int64_t times) {
    return triad(s, x, x + third, x + 2 * third, third, 0.5F, times);
  });
  const double on_read = rate(slices, [&](cudaStream_t s, std::int64_t times) {
    return read_all(s, x, 3 * third, times, memory_->at<double>(parts.view()));
  });
  const double on_scale = rate(slices, [&](cudaStream_t s, std::int64_t times) {
    return scale_all(s, x, 3 * third, 0.5F, times);
  });
  return {on_triad * passed, on_read * passed, on_scale * 2 * passed};
}

}  // namespace

std::unique_ptr<CeilingLoops> make_ceilings(const MemoryPointer& memory, bool tf32) {
  return std::make_unique<GpuLoops>(memory, tf32);
}

}  // namespace lamina::cuda
