// The parameters of a placed network: who holds which block of them, and where they lie.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/base/pattern.hpp>
#include <lamina/base/random.hpp>
#include <lamina/network/parameters.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <sstream>

namespace lamina {

namespace detail {

/// Bytes of its room in a buffer with elements of type t.
inline std::size_t room_of(const Parameter& p, DType t) { return std::size_t(p.room) * size_of(t); }
inline std::size_t room_of(const Parameter& p) { return room_of(p, p.form.dtype); }

/// So many elements that each of its buffers has whole cache lines of them.
inline std::int64_t whole_lines(std::int64_t elements, DType values, const Precision& p) {
  const std::size_t least = std::min({size_of(values), size_of(p.gradients), size_of(p.states)});
  return std::int64_t(room(std::size_t(elements) * least) / least);
}

inline Form flat(std::size_t bytes, DType t) {
  return {{1, std::int64_t(bytes / size_of(t)), 1, 1}, t, {}};
}

/// How it starts and whether it decays, in words.
inline std::string start_of(const Parameter& p) {
  constexpr const char* kinds[] = {"constant", "uniform", "normal"};
  return text("initially ", kinds[int(p.initial.kind)], ' ', exact(p.initial.value),
              p.decay ? "" : ", without decay");
}

/// The parameters that a rank holds, as text for the others.
inline std::string to_text(const std::vector<NamedParameter>& mine,
                           const std::vector<Step>& steps) {
  std::ostringstream to;
  for (const NamedParameter& n : mine) {
    const Parameter& p = *n.parameter;
    to << n.name << '\n' << p.form.text() << '\n' << start_of(p) << '\n';
    to << p.form.fingerprint() << ' ' << int(p.form.dtype) << ' ';
    to << steps[std::size_t(n.step)].vertex << ' ' << p.trained << ' ' << p.frozen;
    to << ' ' << p.variants->size() << ' ' << p.variants->rank();
    to << ' ' << p.whole.n << ' ' << p.whole.c << ' ' << p.whole.h << ' ' << p.whole.w;
    for (const Part& part : {p.block.n, p.block.c, p.block.h, p.block.w})
      to << ' ' << part.begin << ' ' << part.size;
    to << ' ' << p.dims.size();
    for (const std::int64_t d : p.dims) to << ' ' << d;
    to << '\n';
  }
  return to.str();
}

/// What all ranks say, by rank. Of imagined ones only rank 0 and this one say anything.
inline std::vector<std::string> said_by(const Communicator& ranks, const std::string& mine) {
  if (!ranks.imagined()) return ranks.all_gather_text(mine);
  std::vector<std::string> texts(std::size_t(ranks.size()));
  texts[0] = ranks.broadcast_text(mine);
  texts[std::size_t(ranks.rank())] = mine;
  return texts;
}

}  // namespace detail

/// Who holds which block of every parameter. Copies must lie alike: their gradients are added up as
/// they lie. Collective.
LAMINA_INLINE void Parameters::spread(const std::vector<Step>& steps, const PlaceOptions& options) {
  const auto texts = detail::said_by(options.ranks, detail::to_text(mine, steps));
  struct Lies {
    std::size_t rank = 0;  // the first that holds this block
    std::string form = {};
    std::uint64_t fingerprint = 0;
  };
  std::map<std::string, std::vector<Lies>> forms;  // of its different blocks
  std::map<std::string, std::string> starts;
  for (std::size_t r = 0; r < texts.size(); ++r) {
    std::istringstream in(texts[r]);
    std::string name, start;
    Lies lies{.rank = r};
    while (std::getline(in, name) && std::getline(in, lies.form) && std::getline(in, start)) {
      std::size_t dims = 0;
      Box block;
      int variant = 0, dtype = 0;
      WholeParameter s{.name = name};
      in >> lies.fingerprint >> dtype >> s.vertex >> s.trained >> s.frozen >> s.variants >> variant;
      in >> s.whole.n >> s.whole.c >> s.whole.h >> s.whole.w;
      for (Part* part : {&block.n, &block.c, &block.h, &block.w}) in >> part->begin >> part->size;
      in >> dims;
      s.dims.resize(dims);
      for (std::int64_t& d : s.dims) in >> d;
      in.ignore(1, '\n');
      s.dtype = DType(dtype);

      auto at = std::find_if(all.begin(), all.end(),
                             [&](const WholeParameter& known) { return known.name == name; });
      if (at == all.end()) {
        const auto after = std::ranges::upper_bound(all, s.vertex, {}, &WholeParameter::vertex);
        at = all.insert(after, s);
        at->blocks.resize(texts.size()), at->variant.resize(texts.size());
        starts[name] = start;
      }
      check(at->whole == s.whole && at->dims == s.dims && at->trained == s.trained &&
                starts[name] == start,
            "the ranks were started unlike: ", name, " is ", at->whole,
            at->trained ? ", trained, " : ", ", starts[name], " on ranks below ", r, ", but ",
            s.whole, s.trained ? ", trained, " : ", ", start, " on rank ", r);
      auto& known = forms[name];
      const auto same = std::ranges::find(
          known, block, [&](const Lies& other) -> const Box& { return at->blocks[other.rank]; });
      if (same == known.end())
        known.push_back(lies);
      else
        check(lies.fingerprint != 0 && lies.fingerprint == same->fingerprint, name, ": rank ", r,
              " keeps it as ", lies.form, ", but rank ", same->rank, " as ", same->form);
      at->blocks[r] = block, at->variant[r] = variant;
    }
  }
  const auto me = std::size_t(options.ranks.rank());
  for (NamedParameter& n : mine)
    for (std::size_t i = 0; i < all.size(); ++i) {
      WholeParameter& s = all[i];
      if (s.name != n.name) continue;
      s.mine = n.parameter, n.number = int(i);
      n.counts = std::find(s.blocks.begin(), s.blocks.end(), s.blocks[me]) == s.blocks.begin() + me;
    }
}

/// Where ranks have other samples or rows, each has but a term of a gradient.
LAMINA_INLINE void Parameters::check_replicas(const std::vector<Step>& steps,
                                              const Communicator& ranks) const {
  constexpr Axis axes = Axis::batch | Axis::height | Axis::width;
  for (const NamedParameter& n : mine) {
    const int ways = steps[std::size_t(n.step)].output.split.ways(axes);
    const WholeParameter& whole = all[std::size_t(n.number)];
    const Box& block = whole.blocks[std::size_t(ranks.rank())];
    const auto terms = std::min<std::ptrdiff_t>(std::ranges::count(whole.blocks, block), ways);
    const int summed = n.parameter->replicas.size();
    check(!whole.trained || summed >= terms, n.name, ": ", terms,
          " ranks have terms of its gradient, but its `replicas`, which add them up, are ", summed);
  }
}

LAMINA_INLINE Parameters::Parameters(std::vector<Step>& steps, const PlaceOptions& options,
                                     Memory& total) {
  for (int i = 0; i < int(steps.size()); ++i) {
    Step& step = steps[std::size_t(i)];
    for (Parameter* p : step.parameters()) {
      if (p->block.empty()) p->whole = p->form.shape, p->block = Box::of(p->whole);
      if (p->trained || p->frozen || !options.training) p->variants = Communicator();
      if (!p->variants) p->variants = p->replicas;
      mine.push_back({text(step.name, '.', p->name), p, i});
      const DType t = p->form.dtype;
      p->room = detail::whole_lines(std::int64_t(p->form.bytes() / size_of(t)), t, options.dtype);
      step.memory.parameters += detail::room_of(*p), total.parameters += detail::room_of(*p);
    }
  }
  spread(steps, options);
  plan_squares(steps, options, total);
  if (!options.training) return;
  if (!options.ranks.imagined()) check_replicas(steps, options.ranks);
  check_frozen(options.frozen);
  plan_unread(steps, options, total);
  plan_buckets(steps, options, total);
}

LAMINA_INLINE void Parameters::check_frozen(const std::vector<std::string>& patterns) const {
  std::vector<std::string_view> names;
  bool trains = false;
  for (const WholeParameter& p : all) {
    if (p.trained || p.frozen) names.push_back(p.name);
    trains |= p.trained;
  }
  for (const std::string& pattern : patterns)
    check(std::any_of(names.begin(), names.end(),
                      [&](std::string_view name) { return matches(pattern, name); }),
          "frozen: ", no_match("parameter", pattern, names));
  check(patterns.empty() || trains, "frozen: all parameters are: nothing is left to train");
}

/// One buffer serves all of them.
LAMINA_INLINE void Parameters::plan_unread(std::vector<Step>& steps, const PlaceOptions& options,
                                           Memory& total) {
  std::size_t most = 0;
  for (Step& step : steps)
    for (Parameter* p : step.parameters()) {
      if (!p->frozen || !step.needs_grad || !step.placement.layer->writes_frozen(*p)) continue;
      written_.push_back(p);
      const std::size_t bytes = detail::room_of(*p, options.dtype.gradients);
      step.memory.workspace += bytes, most = std::max(most, bytes);
    }
  total.workspace += most;
}

LAMINA_INLINE void Parameters::plan_buckets(std::vector<Step>& steps, const PlaceOptions& options,
                                            Memory& total) {
  // A bucket takes parameters of whole layers, with the same replicas and of one dtype, until it is
  // full. Ranks that share some layers, but not others, must find the same buckets: each group has
  // its own first one.
  struct Draft {
    std::vector<Parameter*> members = {};
    double bytes = 0, limit = 0;
    int last_step = -1;
  };
  std::vector<Draft> drafts;
  for (int s = int(steps.size()) - 1; s >= 0; --s) {
    for (Parameter* p : steps[std::size_t(s)].parameters()) {
      if (!p->trained) continue;
      Draft* draft = nullptr;
      for (Draft& d : drafts)
        if (d.members[0]->replicas.same(p->replicas) && d.members[0]->form.dtype == p->form.dtype)
          draft = &d;
      const double limit = (draft ? options.bucket_mb : options.first_bucket_mb) * 1e6;
      if (!draft || (draft->bytes >= draft->limit && draft->last_step != s)) {
        drafts.push_back({.limit = limit});
        draft = &drafts.back();
      }
      draft->members.push_back(p);
      draft->bytes += double(detail::room_of(*p, options.dtype.gradients)), draft->last_step = s;
    }
  }
  buckets = std::vector<Bucket>(drafts.size());
  for (std::size_t i = 0; i < drafts.size(); ++i) {
    const Communicator& replicas = drafts[i].members[0]->replicas;
    buckets[i].ranks = options.narrow() ? replicas.narrow() : replicas;
    buckets[i].members = std::move(drafts[i].members);
    buckets[i].step = drafts[i].last_step;
    plan_bucket(buckets[i], steps, options, total);
  }
}

/// Those of a parameter are of its layer, also where this rank takes no part in that.
LAMINA_INLINE void Parameters::plan_squares(std::vector<Step>& steps, const PlaceOptions& options,
                                            Memory& total) {
  const auto everywhere = [](const WholeParameter& p) { return p.everywhere(); };
  scattered = options.shard_optimizer || !std::all_of(all.begin(), all.end(), everywhere);
  const std::size_t bytes = squares_form(options).bytes();
  if (bytes == 0) return;
  total.workspace += bytes;
  for (Step& step : steps)
    for (const WholeParameter& p : all)
      if (step.kind == Step::Kind::layer && step.vertex == p.vertex)
        step.memory.workspace += bytes / all.size();
}

/// Where its members lie in it; and what its parts take beside, in equal ones of whole cache lines:
/// the last member takes what is too much.
LAMINA_INLINE void Parameters::plan_bucket(Bucket& bucket, std::vector<Step>& steps,
                                           const PlaceOptions& options, Memory& total) {
  const int ranks = bucket.ranks.size();
  const DType value = bucket.members[0]->form.dtype, gradient = options.dtype.gradients;
  std::int64_t elements = 0;
  std::string members;
  for (Parameter* p : bucket.members) {
    p->bucket = &bucket, p->at = elements;
    elements += p->room;
    lamina::append(members, text(p->name, ' ', p->form.fingerprint(), ' '));
  }
  const std::uint64_t lies = key_of(members);
  for (const std::uint64_t theirs : bucket.ranks.all_gather_value(lies))
    check(theirs == lies, "the ranks that add up the gradients of ", bucket.members[0]->name,
          " and what follows it lay them out differently");
  bucket.sharded = options.shard_optimizer && ranks > 1, bucket.unlike = options.unlike_backends;
  const std::int64_t part =
      bucket.sharded ? detail::whole_lines((elements + ranks - 1) / ranks, value, options.dtype)
                     : 0;
  const std::int64_t whole = bucket.sharded ? part * ranks : elements;
  const bool by_turns = options.workers.count > 1 || options.micro_batches > 1;
  bucket.turns = options.turns();
  bucket.in_row = options.workers.count > 0 ? options.workers.in_row() : options.micro_batches;
  const auto buffers =
      std::size_t(1 + Turns{bucket.turns, bucket.in_row}.places());  // of gradients
  bucket.gradients = View(nullptr, {{1, whole, 1, 1}, gradient, {}});
  bucket.values = View(nullptr, {{1, whole, 1, 1}, value, {}});
  bucket.part = View(nullptr, {{1, part, 1, 1}, gradient, {}});
  bucket.state = options.dtype.states;
  if (by_turns) {
    const Form& form = bucket.gradients;
    bucket.hold = options.backend->reorder(form, form);
    bucket.add = options.backend->sum(std::array{form, form});
  }
  const std::size_t before = detail::room_of(*bucket.members.back());
  bucket.members.back()->room += whole - elements;
  const std::size_t added = detail::room_of(*bucket.members.back()) - before;
  total.parameters += added;
  total.gradients += buffers * bucket.gradients.bytes(), total.messages += bucket.part.bytes();
  for (NamedParameter& n : mine) {
    const Parameter& p = *n.parameter;
    if (p.bucket != &bucket) continue;
    Memory& its = steps[std::size_t(n.step)].memory;
    if (&p == bucket.members.back()) its.parameters += added;
    its.gradients += buffers * detail::room_of(p, gradient);
    if (bucket.sharded) its.messages += std::size_t(p.own_room()) * size_of(gradient);
    if (options.shard_optimizer)  // every rank adds the squares of its part
      n.counts = bucket.ranks.all_reduce_value(int(n.counts), ReduceOp::max) > 0;
  }
}

LAMINA_INLINE Form Parameters::squares_form(const PlaceOptions& options) const {
  const std::int64_t sums = options.training ? 2 * std::int64_t(all.size()) : 0;
  return {{1, sums, 1, 1}, DType::f64, {}};
}

LAMINA_INLINE void Parameters::begin_turn(int turn) {
  for (Bucket& bucket : buckets) {
    bucket.turn = turn;
    for (Parameter* p : bucket.members) p->reduced = 0;
  }
}

LAMINA_INLINE void Parameters::check_reduced() const {
  for (const NamedParameter& n : mine)
    check(!n.parameter->bucket || n.parameter->reduced == 1, n.name,
          ": expected backward to call reduce() once, got ", n.parameter->reduced, " calls");
}

LAMINA_INLINE Form Parameters::gradient_form(const PlaceOptions& options) const {
  std::size_t bytes = 0;
  for (const Bucket& bucket : buckets) bytes += bucket.gradients.bytes();
  return detail::flat(bytes, options.dtype.gradients);
}

LAMINA_INLINE void Parameters::make_room(const PlaceOptions& options, int places) {
  while (int(held.size()) < places)
    held.emplace_back(gradient_form(options), options.backend->memory());
}

LAMINA_INLINE std::size_t Parameters::lacks(const PlaceOptions& options, int places) const {
  const int more = std::max(0, places - int(held.size()));
  return std::size_t(more) * gradient_form(options).bytes();
}

LAMINA_INLINE void Parameters::hold(const PlaceOptions& options) {
  if (buckets.empty()) return;
  const auto places = std::size_t(Turns{buckets[0].turns, buckets[0].in_row}.places());
  make_room(options, int(places));
  std::size_t grad = 0;
  for (Bucket& bucket : buckets) {
    bucket.held.clear();
    for (std::size_t i = 0; i < places; ++i)
      bucket.held.push_back(held[i].view().at(grad, bucket.gradients.form()));
    grad += bucket.gradients.bytes();
  }
}

LAMINA_INLINE void Parameters::allocate(const PlaceOptions& options, const Memory& total,
                                        Tensor given) {
  MemorySpace& memory = options.backend->memory();
  squares = Tensor(squares_form(options), memory);
  // What ranks sum or gather is where they can do so in place.
  const Form all_values = detail::flat(total.parameters, options.dtype.weights);
  values = options.shard_optimizer ? options.ranks.tensor(all_values, memory)
                                   : Tensor(all_values, memory);
  std::size_t value = 0;
  for (Bucket& bucket : buckets) {
    bucket.values = values.view().at(value, bucket.values);
    for (Parameter* p : bucket.members)
      p->value = bucket.values.at(std::size_t(p->at) * size_of(p->form.dtype), p->form);
    value += bucket.values.bytes();
  }
  for (const NamedParameter& n : mine) {
    if (n.parameter->value) continue;
    n.parameter->value = values.view().at(value, n.parameter->form);
    value += detail::room_of(*n.parameter);
  }
  const DType gradient = options.dtype.gradients;
  std::size_t unread_bytes = 0;
  for (const Parameter* p : written_)
    unread_bytes = std::max(unread_bytes, detail::room_of(*p, gradient));
  unread = Tensor(detail::flat(unread_bytes, gradient), memory);
  for (Parameter* p : written_) p->grad = unread.view().at(0, p->form_of(gradient));
  std::size_t part_bytes = 0;
  for (const Bucket& bucket : buckets) part_bytes += bucket.part.bytes();
  const Form form = gradient_form(options);
  gradients = given.view() ? std::move(given) : options.ranks.tensor(form, memory);
  check(gradients.bytes() == form.bytes(), "there is memory for ", gradients.bytes(),
        " bytes of gradients, not ", form.bytes(),
        ": this rank keeps its parameters otherwise than the others, by another instruction set");
  parts = Tensor(detail::flat(part_bytes, gradient), memory);
  std::size_t grad = 0, part = 0;
  for (Bucket& bucket : buckets) {
    bucket.gradients = gradients.view().at(grad, bucket.gradients);
    bucket.part = parts.view().at(part, bucket.part);
    for (Parameter* p : bucket.members)
      p->grad = bucket.gradients.at(std::size_t(p->at) * size_of(gradient), p->form_of(gradient));
    grad += bucket.gradients.bytes(), part += bucket.part.bytes();
  }
  hold(options);
}

LAMINA_INLINE void detail::set_own(const Backend& backend, const Parameter& p, const View& plain,
                                   const View& own) {
  if (!p.bucket || !p.bucket->sharded) return backend.copy(plain, own);
  const Tensor whole(p.form_of(own.dtype), backend.memory());
  backend.copy(plain, whole);
  copy_bytes(whole.view().at(std::size_t(p.own().begin) * size_of(own.dtype), own), own);
}

LAMINA_INLINE void detail::set_value(const Backend& backend, const Parameter& p,
                                     const View& plain) {
  backend.copy(plain, p.value);
  if (const View master = p.bucket ? p.bucket->master() : View())
    set_own(backend, p, plain, p.own_of(master));
}

}  // namespace lamina
