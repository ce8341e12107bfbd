// How two implementations are compared. Every buffer is as large as the layer's own; they are gone
// before the network takes memory for its activations, which is more.
#include "cpu/onednn_compare.hpp"

#include <lamina/base/clock.hpp>
#include <lamina/base/random.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

namespace lamina::detail {
namespace {

std::size_t elements(const Desc& desc) {
  std::size_t n = 1;
  for (const std::int64_t d : blocking(desc).dims) n *= std::size_t(d);
  return n;
}

float* data(const dnnl::memory& m) { return static_cast<float*>(m.get_data_handle()); }

/// Between -1 and 1, from a cheap generator (xorshift32; Marsaglia, 2003): there may be a hundred
/// million of them.
dnnl::memory random_operand(const RuntimePtr& runtime, const Desc& desc, int id) {
  dnnl::memory m(plain(blocking(desc).dims), runtime->engine);
  std::uint32_t state = 0x9E3779B9u * std::uint32_t(id + 1) | 1u;
  for (float& value : std::span(data(m), elements(desc))) {
    state ^= state << 13, state ^= state >> 17, state ^= state << 5;
    value = float(std::int32_t(state)) * 0x1p-31f;
  }
  return m;
}

dnnl::memory as(const RuntimePtr& runtime, const dnnl::memory& m, const Desc& desc) {
  if (m.get_desc() == desc) return m;
  dnnl::memory to(desc, runtime->engine);
  dnnl::reorder(m, to).execute(runtime->stream, const_cast<dnnl::memory&>(m), to);
  runtime->stream.wait();
  return to;
}

/// Filled with what is not a number, so that an element which nobody writes is seen.
dnnl::memory result(const RuntimePtr& runtime, const Desc& desc) {
  dnnl::memory m(desc, runtime->engine);
  std::memset(m.get_data_handle(), 0xFF, desc.get_size());  // NaN of f32 and of bf16
  return m;
}

double difference(const dnnl::memory& a, const dnnl::memory& b) {
  const std::span first(data(a), elements(a.get_desc()));
  const float* second = data(b);  // asking for it is a call
  double apart = 0, largest = 1e-30;
  for (const float value : first) {
    const double other = *second++, d = std::abs(double(value) - other);
    if (!std::isfinite(d)) return std::numeric_limits<double>::infinity();
    apart = std::max(apart, d), largest = std::max(largest, std::abs(other));
  }
  return apart / largest;
}

}  // namespace

Run run_of(const RuntimePtr& runtime, const dnnl::primitive_desc_base& desc,
           const dnnl::primitive& primitive) {
  return [runtime, scratch = Desc(desc.scratchpad_desc()), primitive](Arguments arguments) {
    if (scratch.get_size() > 0)
      arguments.emplace(DNNL_ARG_SCRATCHPAD, dnnl::memory(scratch, runtime->engine));
    primitive.execute(runtime->stream, arguments);
    runtime->stream.wait();
  };
}

double difference(const RuntimePtr& runtime, const Run& first, const Run& second,
                  const std::vector<Compared>& operands) {
  Runtime::tried = true;
  Arguments one, two;
  for (const Compared& c : operands) {
    if (c.first.get_size() == 0) continue;
    if (c.result) {
      one.emplace(c.id, result(runtime, c.first)), two.emplace(c.id, result(runtime, c.second));
    } else {
      const dnnl::memory random = random_operand(runtime, c.first, c.id);
      one.emplace(c.id, as(runtime, random, c.first));
      two.emplace(c.id, as(runtime, random, c.second));
    }
  }
  first(one), second(two);
  double worst = 0;
  for (const Compared& c : operands) {
    if (!c.result || c.first.get_size() == 0) continue;
    const Desc flat = plain(blocking(c.first).dims);
    worst = std::max(worst,
                     difference(as(runtime, one.at(c.id), flat), as(runtime, two.at(c.id), flat)));
  }
  return worst;
}

double time_of(const RuntimePtr& runtime, const Run& run, const std::vector<Compared>& operands) {
  Runtime::tried = true;
  Arguments all;
  for (const Compared& c : operands)
    if (c.first.get_size() > 0)
      all.emplace(c.id, c.result ? result(runtime, c.first)
                                 : as(runtime, random_operand(runtime, c.first, c.id), c.first));
  run(all);
  double least = std::numeric_limits<double>::max();
  for (int i = 0; i < 3; ++i) {
    const double start = now();
    run(all);
    least = std::min(least, now() - start);
  }
  return least;
}

}  // namespace lamina::detail
