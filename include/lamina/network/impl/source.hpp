// How a network gets the parameters of another one.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/network/detail/source.hpp>

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

namespace lamina::detail {

namespace blocks_held {

/// Of each parameter, the block that this rank wants, as text for the others.
inline std::string to_text(const Parameters& parameters) {
  std::ostringstream to;
  for (const NamedParameter& n : parameters.mine) {
    to << n.name << '\n';
    const Box& b = n.parameter->block;
    for (const Part& part : {b.n, b.c, b.h, b.w}) to << part.begin << ' ' << part.size << ' ';
  }
  return to.str();
}

inline std::map<std::string, Box> to_boxes(const std::string& s) {
  std::map<std::string, Box> boxes;
  std::istringstream in(s);
  std::string name;
  while (std::getline(in, name)) {
    Box& b = boxes[name];
    for (Part* part : {&b.n, &b.c, &b.h, &b.w}) in >> part->begin >> part->size;
    in.ignore(1);
  }
  return boxes;
}

/// Ranks with the same block have copies of it.
inline Blocks blocks_of(const Shape& whole, std::vector<Box> boxes) {
  Blocks blocks{whole, std::move(boxes), {}};
  for (const Box& box : blocks.box) {
    const auto first = std::find(blocks.box.begin(), blocks.box.end(), box);
    blocks.number.push_back(box.empty() ? -1 : int(first - blocks.box.begin()));
  }
  return blocks;
}

/// Whether every rank that wants something holds just that.
inline bool in_place(const Blocks& held, const Blocks& wanted) {
  for (std::size_t r = 0; r < held.box.size(); ++r)
    if (!wanted.box[r].empty() && wanted.box[r] != held.box[r]) return false;
  return true;
}

inline void check_fits(const PlacedNetwork& from, const Parameters& to) {
  check(from.allocated(), "the network whose parameters are taken has no buffers yet");
  for (const WholeParameter& mine : to.all) {
    const auto& all = from.all_parameters();
    const auto theirs = std::find_if(all.begin(), all.end(),
                                     [&](const WholeParameter& p) { return p.name == mine.name; });
    check(theirs != all.end(), mine.name, ": the network whose parameters are taken has none");
    check(theirs->whole == mine.whole && theirs->dtype == mine.dtype, mine.name, " is ", mine.whole,
          " of ", name(mine.dtype), ", but in the network whose parameters are taken it is ",
          theirs->whole, " of ", name(theirs->dtype));
  }
}

}  // namespace blocks_held

LAMINA_INLINE Source::Source(const PlacedNetwork& from, std::shared_ptr<const Backend> backend,
                             const Parameters& to, std::vector<Step>& steps, Memory& total)
    : their_backend_(from.placing().backend),
      backend_(std::move(backend)),
      memory_(from.parameter_memory()),
      changes_(from.changes()) {
  blocks_held::check_fits(from, to);
  std::vector<std::map<std::string, Box>> wanted;  // by rank of theirs
  for (const std::string& s : from.placing().ranks.all_gather_text(blocks_held::to_text(to)))
    wanted.push_back(blocks_held::to_boxes(s));
  for (const WholeParameter& p : from.all_parameters()) {
    std::vector<Box> boxes;
    for (const auto& theirs : wanted) {
      const auto box = theirs.find(p.name);
      boxes.push_back(box == theirs.end() ? Box() : box->second);
    }
    const Blocks blocks = blocks_held::blocks_of(p.whole, std::move(boxes)),
                 held = blocks_held::blocks_of(p.whole, p.blocks);
    if (blocks.largest() == 0) continue;
    Copied c;
    const auto mine = std::find_if(to.mine.begin(), to.mine.end(),
                                   [&](const NamedParameter& n) { return n.name == p.name; });
    if (mine != to.mine.end()) c.mine = mine->parameter;
    c.moves = !blocks_held::in_place(held, blocks);
    if (p.mine) c.theirs = p.mine->value;
    if (p.mine && p.variants > 1) c.variants = *p.mine->variants;
    const bool alike = c.mine && c.theirs && c.mine->form == c.theirs.form();
    if (alike && !c.moves && p.variants == 1) {
      mine->parameter->value = c.theirs;
      const std::size_t bytes = std::size_t(c.mine->room) * size_of(c.mine->form.dtype);
      steps[std::size_t(mine->step)].memory.parameters -= bytes, total.parameters -= bytes;
      continue;
    }
    const auto me = std::size_t(from.placing().ranks.rank());
    // On the host, by way of which they move.
    if (c.theirs) c.held = View(nullptr, {held.box[me].shape(), p.dtype, {}});
    if (c.moves) {
      c.exchange = Exchange(held, blocks, p.dtype, from.placing().ranks);
      if (c.mine) c.wanted = View(nullptr, {blocks.box[me].shape(), p.dtype, {}});
      total.workspace += c.exchange.workspace();
    }
    copied_.push_back(std::move(c));
  }
  share_buffers(total);
}

/// One after the other they pass through the same two.
LAMINA_INLINE void Source::share_buffers(Memory& total) {
  for (auto [buffer, view] : {std::pair(&held_, &Copied::held), {&wanted_, &Copied::wanted}}) {
    std::size_t most = 0;
    for (const Copied& c : copied_) most = std::max(most, room((c.*view).bytes()));
    *buffer = Tensor({1, std::int64_t(most / 8), 1, 1}, DType::f64);
    total.workspace += most;
    for (Copied& c : copied_)
      if ((c.*view).bytes() > 0) (c.*view).data = buffer->as<char>();
  }
}

LAMINA_INLINE void Source::refresh() {
  const auto changes = changes_.lock();
  check(changes != nullptr, "the network whose parameters are taken is gone");
  check(!changes->of_one_worker, of_one_worker);
  for (Copied& c : copied_) copy(c);
  seen_ = changes->count;
}

LAMINA_INLINE void Source::copy(Copied& c) {
  if (c.theirs) their_backend_->copy(c.theirs, c.held);
  if (c.variants.size() > 1) {
    c.variants.all_reduce(stream_, Pass::forward, c.held).wait(stream_);
    const double part = 1.0 / c.variants.size();
    visit(c.held.dtype, [&]<Floating T>(T) {
      for (T& v : c.held.elements<T>()) v = T(double(v) * part);
    });
  }
  if (c.moves) c.exchange.run(stream_, Pass::forward, c.held, c.wanted);
  if (c.mine) backend_->copy(c.moves ? c.wanted : c.held, c.mine->value);
}

}  // namespace lamina::detail
