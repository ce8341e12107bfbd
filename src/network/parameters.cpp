// The parameters of a network: where they lie, who holds which block of them, and how they start.
#include <lamina/network/network.hpp>

#include <map>
#include <sstream>

namespace lamina {

namespace {

std::size_t room_of(const Parameter& p) { return room(p.form.bytes()); }

Form flat(std::size_t bytes, DType t) {
  return {{1, std::int64_t(bytes / size_of(t)), 1, 1}, t, {}};
}

/// How it starts and whether it decays, in words.
std::string start_of(const Parameter& p) {
  constexpr const char* kinds[] = {"constant", "uniform", "normal"};
  return text("initially ", kinds[int(p.initial.kind)], ' ', exact(p.initial.value),
              p.decay ? "" : ", without decay");
}

/// The parameters that a rank holds, as text for the others.
std::string to_text(const Network& network) {
  std::ostringstream to;
  for (const Network::Named& n : network.parameters()) {
    const Parameter& p = *n.parameter;
    to << n.name << '\n' << p.form.text() << '\n' << start_of(p) << '\n';
    to << p.form.fingerprint() << ' ';
    to << network.steps()[std::size_t(n.step)].vertex << ' ' << p.trained;
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

}  // namespace

/// Who holds which block of every parameter. Copies must lie alike: their gradients are added up as
/// they lie. Collective.
void Network::spread_parameters() {
  const std::vector<std::string> all = options_.ranks.all_gather_text(to_text(*this));
  struct Lies {
    std::string form;
    std::uint64_t fingerprint = 0;
  };
  std::map<std::string, std::vector<Lies>> forms;  // by rank
  std::map<std::string, std::string> starts;
  for (std::size_t r = 0; r < all.size(); ++r) {
    std::istringstream in(all[r]);
    std::string name, start;
    Lies lies;
    while (std::getline(in, name) && std::getline(in, lies.form) && std::getline(in, start)) {
      std::size_t dims = 0;
      Box block;
      int variant = 0;
      Spread s{.name = name, .dtype = options_.dtype};
      in >> lies.fingerprint >> s.vertex >> s.trained >> s.variants >> variant;
      in >> s.whole.n >> s.whole.c >> s.whole.h >> s.whole.w;
      for (Part* part : {&block.n, &block.c, &block.h, &block.w}) in >> part->begin >> part->size;
      in >> dims;
      s.dims.resize(dims);
      for (std::int64_t& d : s.dims) in >> d;
      in.ignore(1, '\n');

      auto at = std::find_if(all_parameters_.begin(), all_parameters_.end(),
                             [&](const Spread& known) { return known.name == name; });
      if (at == all_parameters_.end()) {
        const auto after = std::ranges::upper_bound(all_parameters_, s.vertex, {}, &Spread::vertex);
        at = all_parameters_.insert(after, s);
        at->blocks.resize(all.size()), at->variant.resize(all.size());
        forms[name].resize(all.size());
        starts[name] = start;
      }
      check(at->whole == s.whole && at->dims == s.dims && at->trained == s.trained &&
                starts[name] == start,
            "the ranks were started unlike: ", name, " is ", at->whole,
            at->trained ? ", trained, " : ", ", starts[name], " on ranks below ", r, ", but ",
            s.whole, s.trained ? ", trained, " : ", ", start, " on rank ", r);
      for (std::size_t other = 0; other < r; ++other)
        check(at->blocks[other] != block ||
                  (lies.fingerprint != 0 && lies.fingerprint == forms[name][other].fingerprint),
              name, ": rank ", r, " keeps it as ", lies.form, ", but rank ", other, " as ",
              forms[name][other].form);
      at->blocks[r] = block, at->variant[r] = variant, forms[name][r] = lies;
    }
  }
  const auto me = std::size_t(options_.ranks.rank());
  for (Named& n : parameters_)
    for (std::size_t i = 0; i < all_parameters_.size(); ++i) {
      Spread& s = all_parameters_[i];
      if (s.name != n.name) continue;
      s.mine = n.parameter, n.number = int(i);
      n.counts = std::find(s.blocks.begin(), s.blocks.end(), s.blocks[me]) == s.blocks.begin() + me;
    }
}

/// Values lie in forward order; gradients in the order in which backward finishes them, in buckets.
void Network::plan_parameters() {
  for (int i = 0; i < int(steps_.size()); ++i) {
    Step& step = steps_[std::size_t(i)];
    if (!step.layer || !step.active) continue;
    for (Parameter* p : step.layer->parameters()) {
      if (p->block.empty()) p->whole = p->form.shape, p->block = Box::of(p->whole);
      if (p->trained || !options_.training) p->variants = Communicator();
      if (!p->variants) p->variants = p->replicas;
      parameters_.push_back({text(step.name, '.', p->name), p, i});
      p->room = std::int64_t(room_of(*p) / size_of(p->form.dtype));
      step.memory.parameters += room_of(*p), memory_.parameters += room_of(*p);
    }
  }
  spread_parameters();
  plan_sums();
  if (!options_.training) return;

  // A bucket takes parameters of whole layers, with the same replicas, until it is full. Ranks that
  // share some layers, but not others, must find the same buckets: each group has its own first
  // one.
  struct Draft {
    std::vector<Parameter*> members = {};
    double bytes = 0, limit = 0;
    int last_step = -1;
  };
  std::vector<Draft> drafts;
  for (int s = int(steps_.size()) - 1; s >= 0; --s) {
    if (!steps_[std::size_t(s)].layer || !steps_[std::size_t(s)].active) continue;
    for (Parameter* p : steps_[std::size_t(s)].layer->parameters()) {
      if (!p->trained) continue;
      Draft* draft = nullptr;
      for (Draft& d : drafts)
        if (d.members[0]->replicas.same(p->replicas)) draft = &d;
      const double limit = (draft ? options_.bucket_mb : options_.first_bucket_mb) * 1e6;
      if (!draft || (draft->bytes >= draft->limit && draft->last_step != s)) {
        drafts.push_back({.limit = limit});
        draft = &drafts.back();
      }
      draft->members.push_back(p);
      draft->bytes += double(room_of(*p)), draft->last_step = s;
    }
  }
  buckets_ = std::vector<Bucket>(drafts.size());
  for (std::size_t i = 0; i < drafts.size(); ++i) {
    buckets_[i].ranks = drafts[i].members[0]->replicas;
    buckets_[i].members = std::move(drafts[i].members);
    plan_bucket(buckets_[i]);
  }
}

/// Those of a parameter are of its layer, also where this rank takes no part in that.
void Network::plan_sums() {
  const std::size_t sums = sums_form().bytes();
  if (sums == 0) return;
  memory_.workspace += sums;
  for (Step& step : steps_)
    for (const Spread& s : all_parameters_)
      if (step.layer && step.layer == graph_[std::size_t(s.vertex)].layer.get())
        step.memory.workspace += sums / all_parameters_.size();
}

/// Where its members lie in it; and what its parts take beside, in equal ones of whole cache lines:
/// the last member takes what is too much.
void Network::plan_bucket(Bucket& bucket) {
  const auto ranks = std::size_t(bucket.ranks.size());
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
  const std::size_t size = size_of(options_.dtype), bytes = std::size_t(elements) * size;
  bucket.sharded = options_.shard_optimizer && ranks > 1;
  const std::size_t part = bucket.sharded ? room((bytes + ranks - 1) / ranks) : 0;
  const std::size_t whole = bucket.sharded ? part * ranks : bytes;
  bucket.gradients = bucket.values = View(nullptr, flat(whole, options_.dtype));
  bucket.part = View(nullptr, flat(part, options_.dtype));
  bucket.members.back()->room += std::int64_t((whole - bytes) / size);
  memory_.parameters += whole - bytes, memory_.gradients += whole, memory_.messages += part;
  for (Named& n : parameters_) {
    const Parameter& p = *n.parameter;
    if (p.bucket != &bucket) continue;
    Memory& its = steps_[std::size_t(n.step)].memory;
    const std::size_t taken = std::size_t(p.room) * size;
    its.parameters += taken - room_of(p), its.gradients += taken;
    if (bucket.sharded) its.messages += p.state_bytes();
    if (options_.shard_optimizer)  // every rank adds the squares of its part
      n.counts = bucket.ranks.all_reduce_value(int(n.counts), ReduceOp::max) > 0;
  }
}

Form Network::sums_form() const {
  const auto everywhere = [](const Spread& s) { return s.everywhere(); };
  if (!options_.training ||
      (!options_.shard_optimizer &&
       std::all_of(all_parameters_.begin(), all_parameters_.end(), everywhere)))
    return {{0, 0, 0, 0}, DType::f64, {}};
  return {{1, 2 * std::int64_t(all_parameters_.size()), 1, 1}, DType::f64, {}};
}

void Network::allocate_parameters() {
  sums_ = Tensor(sums_form());
  // What ranks sum or gather is where they can do so in place.
  const Form values = flat(memory_.parameters, options_.dtype);
  values_ = options_.shard_optimizer ? options_.ranks.tensor(values) : Tensor(values);
  char* value = values_.as<char>();
  if (options_.shard_optimizer)  // as the gradients lie
    for (Bucket& bucket : buckets_) {
      bucket.values.data = value;
      for (Parameter* p : bucket.members)
        p->value = View(value + std::size_t(p->at) * size_of(options_.dtype), p->form);
      value += bucket.values.bytes();
    }
  for (const Named& n : parameters_) {
    if (n.parameter->value) continue;
    n.parameter->value = View(value, n.parameter->form);
    value += room_of(*n.parameter);
  }
  std::size_t parts = 0;
  for (const Bucket& bucket : buckets_) parts += bucket.part.bytes();
  gradients_ = options_.ranks.tensor(flat(memory_.gradients, options_.dtype));
  parts_ = Tensor(flat(parts, options_.dtype));
  char *grad = gradients_.as<char>(), *part = parts_.as<char>();
  for (Bucket& bucket : buckets_) {
    bucket.gradients.data = grad, bucket.part.data = part;
    for (Parameter* p : bucket.members)
      p->grad = View(grad + std::size_t(p->at) * size_of(options_.dtype), p->form);
    grad += bucket.gradients.bytes(), part += bucket.part.bytes();
  }
}

void Network::initialize(std::uint64_t seed) {
  check(placed(), "the network must be placed before it is initialized");
  for (const Named& n : parameters_) {
    const Parameter& p = *n.parameter;
    const Random random(seed, key_of(n.name));
    const Tensor plain(p.form.shape, p.form.dtype);
    const auto draw = [&](auto values) {
      const double v = p.initial.value;
      const Box& b = p.block;
      std::size_t i = 0;  // a number is that of the element's place in the whole parameter
      for (std::int64_t k = b.n.begin; k < b.n.end(); ++k)
        for (std::int64_t c = b.c.begin; c < b.c.end(); ++c)
          for (std::int64_t r = b.h.begin; r < b.h.end(); ++r)
            for (std::int64_t s = b.w.begin; s < b.w.end(); ++s) {
              const auto at = std::uint64_t(((k * p.whole.c + c) * p.whole.h + r) * p.whole.w + s);
              values[i++] = p.initial.kind == Initial::Kind::constant ? v
                            : p.initial.kind == Initial::Kind::uniform
                                ? v * (2 * random.uniform(at) - 1)
                                : v * random.normal(at);
            }
    };
    if (p.form.dtype == DType::f64)
      draw(plain.elements<double>());
    else
      draw(plain.elements<float>());
    options_.backend->copy(plain, p.value);
  }
}

}  // namespace lamina
