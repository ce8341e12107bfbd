// What a layer forgets to write is what others left there, and nothing would show it. So what it is
// to write is spoilt beforehand, until a network has run backward for the first time.
#pragma once

#include <lamina/base/error.hpp>
#include <lamina/network/detail/title.hpp>
#include <lamina/network/step.hpp>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace lamina::detail {

/// What a layer is about to write, but for what it reads and may write over. Only numbers in plain
/// layout on the host are looked at.
class Unwritten {
 public:
  Unwritten() = default;
  /// Spoils them.
  Unwritten(std::span<const View> written, std::span<const View> read) {
    for (const View& v : written) {
      const bool stays = std::ranges::any_of(read, [&](const View& r) { return overlap(v, r); });
      if (!v || v.space || !v.layout.plain() || v.dtype == DType::i32 || stays) continue;
      spoilt_.push_back(v);
      visit(v.dtype, [&]<Floating T>(T) { std::ranges::fill(v.elements<T>(), spoilt<T>()); });
    }
  }

  /// Throws Error where elements are as they were spoilt; `what` is their name.
  void check_none(const Step& step, const char* pass, const char* what) const {
    for (const View& v : spoilt_)
      visit(v.dtype, [&]<Floating T>(T) {
        const auto left = std::ranges::count_if(
            v.elements<T>(), [](const T& e) { return bits(e) == bits(spoilt<T>()); });
        check(left == 0, title(step), ": ", pass, " has left ", left, " of the ", v.shape.size(),
              " elements of ", what, " as they were: expected it to write all of them");
      });
  }

 private:
  template <class T>
  using Bits = std::conditional_t<sizeof(T) == 2, std::uint16_t,
                                  std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>;

  template <class T>
  static Bits<T> bits(const T& value) {
    return std::bit_cast<Bits<T>>(value);
  }
  /// A NaN that no computation makes of other numbers.
  template <class T>
  static T spoilt() {
    constexpr std::uint64_t by_size[] = {0x7FD5, 0x7FD5'2C4B, 0x7FFD'52C4'B396'8E17};
    return std::bit_cast<T>(Bits<T>(by_size[sizeof(T) / 4]));
  }
  static bool overlap(const View& a, const View& b) {
    const char* const of_a = static_cast<const char*>(a.data);
    const char* const of_b = static_cast<const char*>(b.data);
    return a && b && of_a < of_b + b.bytes() && of_b < of_a + a.bytes();
  }

  std::vector<View> spoilt_;
};

/// y, which forward of a step is about to write.
inline Unwritten unwritten_y(const View& y, std::span<const View> xs) { return {{&y, 1}, xs}; }

/// What backward of a step is about to write; nothing where none comes from above.
inline Unwritten unwritten_dx(const Step& step) {
  const Buffers& b = step.buffers;
  if (!b.dy && !step.layer->is_loss()) return {};
  std::vector<View> read = {b.dy, b.more};
  if (step.placement.reads_x) read.insert(read.end(), b.kept_x.begin(), b.kept_x.end());
  if (step.placement.reads_y) read.push_back(b.kept_y);
  return {b.dx, read};
}

}  // namespace lamina::detail
