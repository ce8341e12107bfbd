// Box: a block of a tensor, and where its elements lie in others.
#pragma once

#include <lamina/tensor/shape.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>

namespace lamina {

/// A run of indices along an axis.
struct Part {
  std::int64_t begin = 0, size = 0;
  constexpr std::int64_t end() const { return begin + size; }
  constexpr bool operator==(const Part&) const = default;
};

/// What two parts of one axis have in common; size 0 if nothing.
constexpr Part common(Part a, Part b) {
  const std::int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max<std::int64_t>(0, std::min(a.end(), b.end()) - begin)};
}

/// Part of a tensor: a run of indices along each axis.
struct Box {
  Part n, c, h, w;

  static constexpr Box of(const Shape& x) { return {{0, x.n}, {0, x.c}, {0, x.h}, {0, x.w}}; }
  constexpr Shape shape() const { return {n.size, c.size, h.size, w.size}; }
  constexpr std::int64_t size() const { return n.size * c.size * h.size * w.size; }
  constexpr bool empty() const { return size() == 0; }
  constexpr bool operator==(const Box&) const = default;
  std::string text() const {
    const auto run = [](Part p) { return lamina::text(p.begin, "..", p.end()); };
    return lamina::text('[', run(n), ' ', run(c), ' ', run(h), ' ', run(w), ']');
  }

  /// Where an element of the whole tensor lies in this block, if that lies plain.
  constexpr std::int64_t offset(std::int64_t in, std::int64_t ic, std::int64_t ih,
                                std::int64_t iw) const {
    const std::int64_t row = ((in - n.begin) * c.size + ic - c.begin) * h.size + ih - h.begin;
    return row * w.size + iw - w.begin;
  }
};

constexpr Box common(const Box& a, const Box& b) {
  return {common(a.n, b.n), common(a.c, b.c), common(a.h, b.h), common(a.w, b.w)};
}

/// With its axes in another order, as what lies so is a plain block of.
constexpr Box in_order(const Box& b, const AxisOrder& order) {
  const std::array parts{b.n, b.c, b.h, b.w};
  const auto at = [&](std::size_t i) { return parts[std::size_t(order[i])]; };
  return {at(0), at(1), at(2), at(3)};
}

/// Where elements `some` of `box`, counted in n-c-h-w order, lie in two plain blocks that hold all
/// of it, run by run: work(offset in one, offset in the other, length).
template <class Work>
void for_runs(const Box& box, Part some, const Box& one, const Box& other, Work&& work) {
  if (some.size <= 0) return;
  const auto whole = [&](Part Box::*axis) {
    return (box.*axis).size == (one.*axis).size && (box.*axis).size == (other.*axis).size;
  };
  // Rows that are whole in both blocks join up with the next ones.
  std::int64_t run = box.w.size, rows = box.h.size, images = box.c.size;
  if (whole(&Box::w)) {
    run *= std::exchange(rows, 1);
    if (whole(&Box::h)) {
      run *= std::exchange(images, 1);
      if (whole(&Box::c)) run *= box.n.size;
    }
  }
  const std::int64_t before = some.begin / run;  // runs
  std::int64_t h = before % rows, c = before / rows % images, n = before / (rows * images);
  for (std::int64_t i = some.begin; i < some.end();) {
    const std::int64_t skipped = i % run, length = std::min(run - skipped, some.end() - i);
    const auto first = [&](const Box& block) {
      return block.offset(box.n.begin + n, box.c.begin + c, box.h.begin + h, box.w.begin);
    };
    work(first(one) + skipped, first(other) + skipped, length);
    i += length;
    if (++h == rows) h = 0, ++c;
    if (c == images) c = 0, ++n;
  }
}

/// The same for all elements of `box`.
template <class Work>
void for_runs(const Box& box, const Box& one, const Box& other, Work&& work) {
  for_runs(box, {0, box.size()}, one, other, work);
}

}  // namespace lamina
