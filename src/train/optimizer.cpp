// How parameters are updated.
#include <lamina/base/pattern.hpp>
#include <lamina/base/random.hpp>
#include <lamina/train/optimizer.hpp>

#include <algorithm>
#include <cmath>
#include <utility>

namespace lamina {

Optimizer::Optimizer(const SGD& o) : name_("sgd"), rate_(o.rate), weight_decay_(o.weight_decay) {
  rule_.momentum = o.momentum, rule_.nesterov = o.nesterov;
  check(!o.nesterov || o.momentum > 0, "nesterov needs a momentum above zero");
  settle();
}

Optimizer::Optimizer(const LARS& o)
    : name_("lars"), rate_(o.rate), weight_decay_(o.weight_decay), trust_(o.trust) {
  rule_.momentum = o.momentum;
  check(o.trust > 0, "trust must be positive, got ", o.trust);
  settle();
}

Optimizer::Optimizer(CustomRule o)
    : name_(std::move(o.name)),
      custom_(std::move(o.update)),
      rate_(o.rate),
      weight_decay_(o.weight_decay) {
  rule_.kind = UpdateRule::Kind::custom;
  rule_.custom_name = name_, rule_.custom_states = o.states;
  check(!name_.empty(), "a rule of one's own needs a name");
  check(custom_ != nullptr, name_, ": expected a function that updates");
  check(o.states >= 0, name_, ": states must not be negative, got ", o.states);
  settle();
}

void Optimizer::validate() const {
  check(rate_ >= 0, "learning rate must not be negative, got ", rate_);
  check(weight_decay_ >= 0, "weight decay must not be negative, got ", weight_decay_);
  check(rule_.momentum >= 0 && rule_.momentum < 1, "momentum must be in [0, 1), got ",
        rule_.momentum);
  for (const double beta : {rule_.beta1, rule_.beta2})
    check(beta >= 0 && beta < 1, "beta must be in [0, 1), got ", beta);
}

void Optimizer::settle() {
  validate();
  Optimizer o = *this;
  o.clip_norm_ = 0;
  key_ = key_of(o.text());
}

Optimizer& Optimizer::decay_weights_only(bool on) {
  weights_only_ = on;
  settle();
  return *this;
}

Optimizer& Optimizer::group(std::string pattern, ParameterGroup group) {
  check(group.rate >= 0, "group ", pattern, ": rate must not be negative, got ", group.rate);
  check(group.weight_decay.value_or(0) >= 0, "group ", pattern,
        ": weight decay must not be negative, got ", group.weight_decay.value_or(0));
  groups_.emplace_back(std::move(pattern), group);
  settle();
  return *this;
}

std::string Optimizer::text() const {
  std::string s = lamina::text(name_, ", rate ", exact(rate_));
  if (custom_) {
    append(s, lamina::text(", ", rule_.states(), " states"));
  } else if (rule_.kind == UpdateRule::Kind::sgd) {
    append(s,
           lamina::text(", momentum ", exact(rule_.momentum), rule_.nesterov ? " (nesterov)" : ""));
  } else {
    append(s, lamina::text(", beta1 ", exact(rule_.beta1), ", beta2 ", exact(rule_.beta2),
                           ", epsilon ", exact(rule_.epsilon)));
  }
  append(s, lamina::text(", weight decay ", exact(weight_decay_),
                         weights_only_ ? " (of weights only)" : ""));
  if (trust_ > 0) append(s, ", trust " + exact(trust_));
  for (const auto& [pattern, g] : groups_) {
    append(s, lamina::text(", of ", pattern, " rate x ", exact(g.rate)));
    if (g.weight_decay) append(s, " and weight decay " + exact(*g.weight_decay));
  }
  if (clip_norm_ > 0) append(s, ", clipped to norm " + exact(clip_norm_));
  return s;
}

std::size_t Optimizer::bytes(const Parameter& p) const { return p.state_bytes(rule_.states()); }

ParameterGroup Optimizer::settings(const NamedParameter& n) const {
  const bool decays = n.parameter->decay || (trust_ == 0 && !weights_only_);
  ParameterGroup s{1, decays ? weight_decay_ : 0};
  for (const auto& [pattern, group] : groups_)
    if (matches(pattern, n.name))
      s = {group.rate, group.weight_decay.value_or(decays ? weight_decay_ : 0)};
  return s;
}

void Optimizer::check_groups(const PlacedNetwork& network) const {
  std::vector<std::string_view> names;
  for (const WholeParameter& p : network.all_parameters())
    if (p.trained) names.push_back(p.name);
  for (const auto& [pattern, group] : groups_)
    check(std::any_of(names.begin(), names.end(),
                      [&](std::string_view name) { return matches(pattern, name); }),
          "group of the optimizer: ", no_match("trained parameter", pattern, names));
}

Tensor Optimizer::attach(PlacedNetwork& network) const {
  check_groups(network);
  const Backend& backend = *network.placing().backend;
  const DType dtype = network.placing().dtype.states;
  const std::size_t bytes = memory(network).optimizer;
  Tensor all({1, std::int64_t(bytes / size_of(dtype)), 1, 1}, dtype, backend.memory());
  std::size_t at = 0;
  for (const auto& n : network.parameters()) n.parameter->states.clear();
  for (Bucket& bucket : network.buckets()) {
    bucket.states.clear();
    for (int i = 0; i < rule_.states() + bucket.keeps_master(); ++i) {
      bucket.states.push_back(all.view().at(at, {{1, bucket.own().size, 1, 1}, dtype, {}}));
      at += bucket.states.back().bytes();
      for (Parameter* p : bucket.members) p->states.push_back(p->own_of(bucket.states.back()));
    }
    if (const View master = bucket.master()) {
      backend.copy(bucket.own_values(), master);
      bucket.round = backend.reorder(master, bucket.own_values());
    }
    plan_runs(bucket, network.parameters());
    bucket.attached = key_;
  }
  return all;
}

void Optimizer::plan_runs(Bucket& bucket, const std::vector<NamedParameter>& all) const {
  struct Member {
    const NamedParameter* named;
    ParameterGroup settings;
    bool alone;  // it has norms of its own
  };
  std::vector<Member> members;
  for (const Parameter* p : bucket.members) {
    const auto named = std::find_if(all.begin(), all.end(),
                                    [&](const NamedParameter& n) { return n.parameter == p; });
    members.push_back({&*named, settings(*named), trust_ > 0 && p->decay});
  }
  const auto alike = [](const Member& a, const Member& b) {
    return !a.alone && !b.alone && a.settings == b.settings;
  };
  bucket.runs.clear();
  const Part own = bucket.own();
  for (std::size_t i = 0, next = 0; i < members.size(); i = next) {
    const Member& first = members[i];
    Part run{first.named->parameter->at, 0};
    for (next = i; next == i || (next < members.size() && alike(first, members[next])); ++next)
      run.size += members[next].named->parameter->room;
    run = common(run, own);
    if (run.size == 0) continue;
    const auto of = [&](const View& v) {
      return v.at(std::size_t(run.begin - own.begin) * size_of(v.dtype),
                  {{1, run.size, 1, 1}, v.dtype, {}});
    };
    bucket.runs.push_back(
        {.first = first.named->parameter,
         .number = first.named->number,
         .rate = first.settings.rate,
         .weight_decay = *first.settings.weight_decay,
         .value = of(bucket.keeps_master() ? bucket.master() : bucket.own_values()),
         .grad = of(bucket.own_gradients()),
         .states = {}});
    for (int s = 0; s < rule_.states(); ++s)
      bucket.runs.back().states.push_back(of(bucket.states[std::size_t(s)]));
  }
}

Memory Optimizer::memory(const PlacedNetwork& network) const {
  Memory m = network.memory();
  for (const auto& n : network.parameters()) m.optimizer += bytes(*n.parameter);
  return m;
}

Memory Optimizer::memory(const Step& step) const {
  Memory m = step.memory;
  for (const Parameter* p : step.parameters()) m.optimizer += bytes(*p);
  return m;
}

namespace {

/// By which ranks know each other's collectives: they number their steps differently where one has
/// a reorder more.
const char* layer_name(const PlacedNetwork& network, const NamedParameter& n) {
  return network.steps()[std::size_t(n.step)].name.c_str();
}

}  // namespace

void Optimizer::update(PlacedNetwork& network, Stream& stream, double rate, std::int64_t step,
                       double scale) const {
  check(network.micro_batch() == 0, "update: ", network.micro_batch(), " of ",
        network.placing().micro_batches, " micro-batches have run backward");
  for (const Bucket& bucket : network.buckets())
    check(bucket.attached == key_, "update: the network's states are ",
          bucket.attached == 0 ? "missing" : "of another optimizer, or of other settings",
          ": expected attach() before");
  network.changed();
  if (network.sums() && (clip_norm_ > 0 || trust_ > 0)) add_up_squares(network, stream);
  if (clip_norm_ > 0) scale = clipped(network, stream, scale);
  for (Bucket& bucket : network.buckets()) {
    const char* layer = network.steps()[std::size_t(bucket.step)].name.c_str();
    const LayerScope scope(stream, bucket.step, layer, LayerRun::Phase::update);
    stream.enter(bucket.step, layer);
    bucket.sum.wait(stream);
    for (const Bucket::Run& run : bucket.runs)
      update(network, stream, run, {rate * run.rate, run.weight_decay, scale, step});
    bucket.update(stream);
  }
  stream.enter(-1);
  for (Bucket& bucket : network.buckets()) bucket.gathered.wait(stream);
}

void Optimizer::update(const PlacedNetwork& network, Stream& stream, const Bucket::Run& run,
                       UpdateStep step) const {
  const Parameter& p = *run.first;
  if (trust_ > 0 && p.decay) {
    const double w = std::sqrt(square(network, stream, p, run.number, Square::value));
    const double dw =
        step.grad_scale * std::sqrt(square(network, stream, p, run.number, Square::grad));
    const double below = dw + step.weight_decay * w;
    const double local = w > 0 && below > 0 ? trust_ * w / below : 1;
    step.weight_decay *= local, step.grad_scale *= local;
  }
  if (custom_)
    stream.run(Pass::update, "update",
               [&] { custom_(stream, step, run.value, run.grad, run.states); });
  else
    network.placing().backend->update(stream, rule_, step, run.value, run.grad, run.states);
}

double Optimizer::square(const PlacedNetwork& network, Stream& stream, const Parameter& p,
                         int number, Square of) const {
  if (network.sums()) return network.sums().as<double>()[2 * number + int(of)];
  return network.placing().backend->squared_norm(stream, Pass::update,
                                                 of == Square::value ? p.value : p.grad);
}

void Optimizer::add_up_squares(PlacedNetwork& network, Stream& stream) const {
  const View& sums = network.sums();
  const Backend& backend = *network.placing().backend;
  std::fill_n(sums.as<double>(), sums.shape.size(), 0.0);
  for (const auto& n : network.parameters()) {
    Parameter& p = *n.parameter;
    if (!p.trained || !n.counts) continue;
    stream.enter(n.step, layer_name(network, n));
    p.wait(stream);
    double* s = sums.as<double>() + 2 * n.number;
    if (p.own().size == 0) continue;
    if (trust_ > 0 && p.decay)
      s[int(Square::value)] = backend.squared_norm(stream, Pass::update, p.own_value());
    s[int(Square::grad)] = backend.squared_norm(stream, Pass::update, p.own_grad());
  }
  stream.enter(-1);
  network.placing().ranks.all_reduce(stream, Pass::update, sums).wait(stream);
}

double Optimizer::clipped(PlacedNetwork& network, Stream& stream, double scale) const {
  double sum = 0;
  if (network.sums()) {
    for (std::size_t i = 0; i < network.all_parameters().size(); ++i)
      sum += network.sums().as<double>()[2 * i + std::size_t(Square::grad)];
  } else {
    for (const auto& n : network.parameters()) {
      if (!n.parameter->trained) continue;
      stream.enter(n.step, layer_name(network, n));
      n.parameter->wait(stream);
      sum += square(network, stream, *n.parameter, n.number, Square::grad);
    }
  }
  const double norm = scale * std::sqrt(sum);
  return norm > clip_norm_ ? scale * clip_norm_ / norm : scale;
}

}  // namespace lamina
