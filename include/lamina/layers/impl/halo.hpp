// How halos are prepared, and the rows that wait for them.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/layers/edge.hpp>
#include <lamina/layers/halo.hpp>

#include <algorithm>
#include <utility>
#include <vector>

namespace lamina {

LAMINA_INLINE Halo::Halo(const Blocks& held, const Blocks& needed, const Spec& x, const Site& site,
                         Axis axes)
    : has_dx_(x.has_gradient) {
  const std::vector<int> members = site.members(axes);
  const auto me = std::size_t(site.along(axes).rank());
  const Blocks from = held.among(members), to = needed.among(members);
  held_ = {from.box[me].shape(), x.dtype, {}}, needed_ = {to.box[me].shape(), x.dtype, {}};
  own_ = common(from.box[me], to.box[me]), all_ = to.box[me];
  moves_ = from.box != to.box;
  if (!moves_) return;
  const Backend& backend = site.backend();
  gather_ = Exchange(from, to, x.dtype, site.along(axes), &backend);
  x_ = Tensor(needed_, backend.memory());
  if (!has_dx_) return;
  fold_ = Exchange(to, from, x.dtype, site.along(axes), &backend);
  dx_ = Tensor(needed_, backend.memory());
}

LAMINA_INLINE std::vector<Message> Halo::messages(const Blocks& held, const Blocks& needed,
                                                  DType dtype, const Split& split, Axis axes) {
  if (held.box == needed.box) return {};
  double there = 0, back = 0;
  std::vector<std::pair<Shape, Shape>> counted;  // of the first ranks of groups: others are alike
  for (int r = 0; r < split.ways(); ++r) {
    const Place place = split.place(r);
    if (split.number(place, axes) != 0) continue;  // its group has been counted
    const std::pair first{held.box[std::size_t(r)].shape(), needed.box[std::size_t(r)].shape()};
    if (std::ranges::find(counted, first) != counted.end()) continue;
    counted.push_back(first);
    const std::vector<int> members = group(split, place, axes);
    const Blocks from = held.among(members), to = needed.among(members);
    there = std::max(there, Exchange::most_sent(from, to, dtype));
    back = std::max(back, Exchange::most_sent(to, from, dtype));
  }
  return {{Collective::halo, Pass::forward, there, axes},
          {Collective::halo, Pass::input_grad, back, axes}};
}

LAMINA_INLINE void Halo::prepare(const Backend& backend, const Form& wanted, bool plain) {
  outside_ = moves_ || plain ? held_ : wanted;
  if ((!moves_ && !plain) || wanted.layout.plain()) return;
  reorder_ = backend.reorder(needed_, wanted);
  kernel_x_ = Tensor(wanted, backend.memory());
  if (has_dx_) kernel_dx_ = Tensor(wanted, backend.memory());
}

LAMINA_INLINE bool Halo::prepare_overlap(const Backend& backend) {
  if (!moves_ || !gather_.apart() || own_.w != all_.w || own_.c != all_.c) return false;
  if (!reorder_) return true;
  for (const Part rows : {Part{0, above()}, Part{needed_.shape.h - below(), below()}}) {
    if (rows.size == 0) continue;
    arrived_.push_back(
        backend.reorder_rows(needed_, rows.begin, kernel_x_.view(), rows.begin, rows.size));
    if (!arrived_.back()) return false;
  }
  return true;
}

LAMINA_INLINE bool Edge::place(const Backend& backend, const ConvGeometry& g, const Epilogue& e,
                               const Form& whole, Part x, const WeightedKernel& block,
                               std::int64_t to) {
  const Shape rows{whole.shape.n, whole.shape.c, x.size, whole.shape.w};
  kernel_ = backend.conv(g, {rows, whole.dtype, {}}, e);
  if (kernel_->w != block.w || kernel_->b != block.b) return false;
  const Form &in = kernel_->inputs[0], &out = kernel_->output;
  take_ = backend.reorder_rows(whole, x.begin, in, 0, x.size);
  give_ = backend.reorder_rows(out, 0, block.output, to, out.shape.h);
  if (!take_ || !give_) return false;
  x_ = Tensor(in, backend.memory()), y_ = Tensor(out, backend.memory());
  return true;
}

LAMINA_INLINE std::size_t Edge::scratch() const {
  return std::max({kernel_->scratch, take_->scratch, give_->scratch});
}

}  // namespace lamina
