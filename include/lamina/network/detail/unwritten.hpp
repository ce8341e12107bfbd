// What a layer forgets to write is what others left there, and nothing would show it. So in the
// first step of a training its buffers are full of what no layer writes.
#pragma once

#include <lamina/base/error.hpp>
#include <lamina/network/detail/title.hpp>
#include <lamina/network/step.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace lamina::detail {

/// A NaN that no computation makes of other numbers, as its bits: `Bits` has as many as the type.
template <class Bits>
constexpr Bits unwritten = Bits(sizeof(Bits) == 2   ? 0x7FD5
                                : sizeof(Bits) == 4 ? 0x7FD5'2C4B
                                                    : 0x7FFD'52C4'B396'8E17);

/// Calls f(first, last) with the elements as bits, where they are numbers in plain layout on the
/// host.
template <class F>
void as_bits(const View& v, F&& f) {
  const auto with = [&]<class Bits>(Bits) {
    Bits* const first = static_cast<Bits*>(v.data);
    f(first, first + v.shape.size());
  };
  if (!v || v.space || !v.layout.plain()) return;
  if (v.dtype == DType::f64) return with(std::uint64_t());
  if (v.dtype == DType::f32) return with(std::uint32_t());
  if (v.dtype == DType::bf16 || v.dtype == DType::f16) return with(std::uint16_t());
}

inline bool overlap(const View& a, const View& b) {
  const char* const of_a = static_cast<const char*>(a.data);
  const char* const of_b = static_cast<const char*>(b.data);
  return a && b && of_a < of_b + b.bytes() && of_b < of_a + a.bytes();
}

/// Spoils those that a layer is about to write, but not what it reads, and may write over.
inline void spoil(std::span<const View> written, std::span<const View> read) {
  for (const View& v : written)
    if (std::ranges::none_of(read, [&](const View& r) { return overlap(v, r); }))
      as_bits(v,
              []<class Bits>(Bits* first, Bits* last) { std::fill(first, last, unwritten<Bits>); });
}

/// Throws Error where a layer has left elements as spoil() made them; `what` is their name.
inline void check_written(std::span<const View> written, const Step& step, const char* pass,
                          const char* what) {
  for (const View& v : written)
    as_bits(v, [&]<class Bits>(Bits* first, Bits* last) {
      const auto left = std::count(first, last, unwritten<Bits>);
      check(left == 0, title(step), ": ", pass, " has left ", left, " of the ", last - first,
            " elements of ", what, " as they were: expected it to write all of them");
    });
}

/// What backward of a step reads.
inline std::vector<View> read_by_backward(const Step& step) {
  const Buffers& b = step.buffers;
  std::vector<View> all = {b.dy, b.more};
  if (step.placement.reads_x) all.insert(all.end(), b.kept_x.begin(), b.kept_x.end());
  if (step.placement.reads_y) all.push_back(b.kept_y);
  return all;
}

}  // namespace lamina::detail
