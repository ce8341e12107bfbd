// How parameters are updated.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/base/pattern.hpp>
#include <lamina/base/random.hpp>
#include <lamina/kernels/detail/in_turn.hpp>
#include <lamina/train/detail/values.hpp>
#include <lamina/train/optimizer.hpp>

#include <algorithm>
#include <cmath>
#include <utility>

namespace lamina {

LAMINA_INLINE Optimizer::Optimizer(const SGD& o)
    : name_("sgd"), rate_(o.rate), weight_decay_(o.weight_decay) {
  rule_.momentum = o.momentum, rule_.nesterov = o.nesterov;
  check(!o.nesterov || o.momentum > 0, "nesterov needs a momentum above zero");
  settle();
}

LAMINA_INLINE Optimizer::Optimizer(const LARS& o)
    : name_("lars"), rate_(o.rate), weight_decay_(o.weight_decay), trust_(o.trust) {
  rule_.momentum = o.momentum;
  check(o.trust > 0, "trust must be positive, got ", o.trust);
  settle();
}

LAMINA_INLINE Optimizer::Optimizer(CustomRule o)
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

LAMINA_INLINE void Optimizer::validate() const {
  check(rate_ >= 0, "learning rate must not be negative, got ", rate_);
  check(weight_decay_ >= 0, "weight decay must not be negative, got ", weight_decay_);
  check(rule_.momentum >= 0 && rule_.momentum < 1, "momentum must be in [0, 1), got ",
        rule_.momentum);
  for (const double beta : {rule_.beta1, rule_.beta2})
    check(beta >= 0 && beta < 1, "beta must be in [0, 1), got ", beta);
  const bool divides =
      rule_.kind == UpdateRule::Kind::adam || rule_.kind == UpdateRule::Kind::adamw;
  check(rule_.epsilon > 0 || (!divides && rule_.epsilon == 0), "epsilon must be ",
        divides ? "positive" : "not negative", ", got ", rule_.epsilon);  // zeros stay zeros
}

LAMINA_INLINE Optimizer& Optimizer::clip_norm(double norm) {
  check(norm >= 0, "the norm to clip to must not be negative, got ", norm);
  return clip_norm_ = norm, *this;
}

LAMINA_INLINE void Optimizer::settle() {
  validate();
  Optimizer o = *this;
  o.clip_norm_ = 0;
  key_ = key_of(o.text());
}

LAMINA_INLINE Optimizer& Optimizer::decay_weights_only(bool on) {
  weights_only_ = on;
  settle();
  return *this;
}

LAMINA_INLINE Optimizer& Optimizer::group(std::string pattern, ParameterGroup group) {
  check(group.rate >= 0, "group ", pattern, ": rate must not be negative, got ", group.rate);
  check(group.weight_decay.value_or(0) >= 0, "group ", pattern,
        ": weight decay must not be negative, got ", group.weight_decay.value_or(0));
  groups_.emplace_back(std::move(pattern), group);
  settle();
  return *this;
}

LAMINA_INLINE std::string Optimizer::text() const {
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

LAMINA_INLINE std::size_t Optimizer::bytes(const Parameter& p) const {
  return p.state_bytes(rule_.states());
}

LAMINA_INLINE ParameterGroup Optimizer::settings(const NamedParameter& n) const {
  const bool decays = n.parameter->decay || (trust_ == 0 && !weights_only_);
  ParameterGroup s{1, decays ? weight_decay_ : 0};
  for (const auto& [pattern, group] : groups_)
    if (matches(pattern, n.name))
      s = {group.rate, group.weight_decay.value_or(decays ? weight_decay_ : 0)};
  return s;
}

LAMINA_INLINE void Optimizer::check_groups(const PlacedNetwork& network) const {
  std::vector<std::string_view> names;
  for (const WholeParameter& p : network.all_parameters())
    if (p.trained) names.push_back(p.name);
  for (const auto& [pattern, group] : groups_)
    check(std::any_of(names.begin(), names.end(),
                      [&](std::string_view name) { return matches(pattern, name); }),
          "group of the optimizer: ", no_match("trained parameter", pattern, names));
}

LAMINA_INLINE Tensor Optimizer::attach(PlacedNetwork& network) const {
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
    if (const View master = bucket.master()) backend.copy(bucket.own_values(), master);
    bucket.update = update_of(backend, parts_of(network, bucket));
    bucket.squares = backend.squares(squares_of(network, bucket));
    bucket.attached = key_;
  }
  return all;
}

namespace detail {

/// By which ranks know each other's collectives: they number their steps differently where one has
/// a reorder more.
inline const char* layer_name(const PlacedNetwork& network, const Bucket& bucket) {
  return network.steps()[std::size_t(bucket.step)].name.c_str();
}

/// Sums of squares of the gradients of all parameters.
inline View grad_squares(const PlacedNetwork& network) {
  const View& squares = network.squares();
  return squares.at(0, {{1, squares.shape.c / 2, 1, 1}, DType::f64, {}});
}

/// In the order in which they lie there.
inline std::vector<const NamedParameter*> members_of(const PlacedNetwork& network,
                                                     const Bucket& bucket) {
  std::vector<const NamedParameter*> members;
  for (const Parameter* p : bucket.members)
    members.push_back(&*std::ranges::find(network.parameters(), p, &NamedParameter::parameter));
  return members;
}

}  // namespace detail

LAMINA_INLINE std::vector<UpdatePart> Optimizer::parts_of(const PlacedNetwork& network,
                                                          const Bucket& bucket) const {
  struct Member {
    const NamedParameter* named;
    ParameterGroup settings;
    bool alone;  // it has norms of its own
  };
  std::vector<Member> members;
  for (const NamedParameter* n : detail::members_of(network, bucket))
    members.push_back({n, settings(*n), trust_ > 0 && n->parameter->decay});
  const auto alike = [](const Member& a, const Member& b) {
    return !a.alone && !b.alone && a.settings == b.settings;
  };
  std::vector<UpdatePart> parts;
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
    UpdatePart part{.w = of(bucket.keeps_master() ? bucket.master() : bucket.own_values()),
                    .dw = of(bucket.own_gradients()),
                    .rate = first.settings.rate,
                    .weight_decay = *first.settings.weight_decay};
    if (bucket.keeps_master()) part.rounded = of(bucket.own_values());
    for (int s = 0; s < rule_.states(); ++s)
      part.states.push_back(of(bucket.states[std::size_t(s)]));
    if (first.alone) {
      part.value_square = square_of(network, Square::value, first.named->number);
      part.grad_square = square_of(network, Square::grad, first.named->number);
      part.trust = trust_;
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

LAMINA_INLINE std::unique_ptr<UpdateKernel> Optimizer::update_of(
    const Backend& backend, std::vector<UpdatePart> parts) const {
  if (!custom_) return backend.update(rule_, std::move(parts));
  return std::make_unique<detail::UpdateInTurn>(
      &backend, std::move(parts),
      [rule = custom_](Stream& stream, const UpdateStep& numbers, const UpdatePart& p) {
        rule(stream, numbers, p.w, p.dw, p.states);
      });
}

LAMINA_INLINE Memory Optimizer::memory(const PlacedNetwork& network) const {
  Memory m = network.memory();
  for (const auto& n : network.parameters()) m.optimizer += bytes(*n.parameter);
  return m;
}

LAMINA_INLINE Memory Optimizer::memory(const Step& step) const {
  Memory m = step.memory;
  for (const Parameter* p : step.parameters()) m.optimizer += bytes(*p);
  return m;
}

LAMINA_INLINE void Optimizer::update(PlacedNetwork& network, Stream& stream, double rate,
                                     std::int64_t step, double scale) const {
  check_attached(network);
  network.check_update();
  if (!network.compared()) {
    detail::check_weights(network, stream);
    detail::check_loss(network, stream);
    network.note_compared();
  }
  begin_update(network, stream, rate, step, scale);
  run_update(network, stream);
}

LAMINA_INLINE void Optimizer::check_attached(const PlacedNetwork& network) const {
  for (const Bucket& bucket : network.buckets())
    check(bucket.attached == key_, "update: the network's states are ",
          bucket.attached == 0 ? "missing" : "of another optimizer, or of other settings",
          ": expected attach() before");
}

LAMINA_INLINE void Optimizer::begin_update(PlacedNetwork& network, Stream& stream, double rate,
                                           std::int64_t step, double scale) const {
  check_attached(network);
  network.changed(), network.take_gradients();
  network.update_values().put(stream, {rate, double(step), scale});
}

LAMINA_INLINE void Optimizer::run_update(PlacedNetwork& network, Stream& stream) const {
  network.add_up_workers(stream);
  UpdateStep all = step_of(network);
  const bool ahead = all.squares || (trust_ > 0 && network.scattered());
  if (ahead) add_up_squares(network, stream);
  std::vector<Tensor> copies;
  if (custom_) stream.only_once("an update rule of one's own");
  if (custom_ && !network.placing().backend->memory().on_host())
    for (View* v : {&all.values, &all.found, &all.squares, &all.loss_scale})
      if (*v) copy_bytes(*v, copies.emplace_back(v->form())), *v = copies.back();
  for (Bucket& bucket : network.buckets()) {
    const char* layer = detail::layer_name(network, bucket);
    const LayerScope scope(stream, bucket.step, layer, LayerRun::Phase::update);
    stream.enter(bucket.step, layer);
    bucket.sum.wait(stream);
    if (trust_ > 0 && !ahead) bucket.squares->run(stream, Pass::update);
    bucket.update->run(stream, all);
    bucket.gather(stream);
  }
  stream.enter(-1);
  if (const View loss_scale = network.loss_scale())
    network.placing().backend->adjust_loss_scale(stream, network.placing().loss_scaling,
                                                 detail::grad_squares(network), loss_scale);
  for (Bucket& bucket : network.buckets()) bucket.wait_gathered(stream);
}

LAMINA_INLINE UpdateStep Optimizer::step_of(const PlacedNetwork& network) const {
  UpdateStep step{
      .rate = 1, .values = network.update_values().view(), .found = network.found_by_step()};
  const PlaceOptions& o = network.placing();
  step.samples = double(o.batch * o.micro_batches);
  step.clip_norm = clip_norm_, step.loss_scale = network.loss_scale();
  if (clip_norm_ > 0 || step.loss_scale) step.squares = detail::grad_squares(network);
  return step;
}

LAMINA_INLINE View Optimizer::square_of(const PlacedNetwork& network, Square of, int number) const {
  const View& squares = network.squares();
  const std::int64_t at = number + (of == Square::value ? squares.shape.c / 2 : 0);
  return squares.at(std::size_t(at) * sizeof(double), {{1, 1, 1, 1}, DType::f64, {}});
}

LAMINA_INLINE std::vector<SquaresPart> Optimizer::squares_of(const PlacedNetwork& network,
                                                             const Bucket& bucket) const {
  std::vector<SquaresPart> parts;
  for (const NamedParameter* n : detail::members_of(network, bucket)) {
    const Parameter& p = *n->parameter;
    if (p.own().size == 0 || (network.scattered() && !n->counts)) continue;
    parts.push_back({p.own_grad(), square_of(network, Square::grad, n->number)});
    if (trust_ > 0 && p.decay)
      parts.push_back({p.own_value(), square_of(network, Square::value, n->number)});
  }
  return parts;
}

LAMINA_INLINE void Optimizer::add_up_squares(PlacedNetwork& network, Stream& stream) const {
  const View& squares = network.squares();
  const PlaceOptions& placing = network.placing();
  if (network.scattered()) {
    const Box all = Box::of(squares.shape);
    const BoxMove zeros{{}, all, squares, all, all};
    placing.backend->move(stream, Pass::update, "zero", {&zeros, 1});
  }
  for (Bucket& bucket : network.buckets()) {
    stream.enter(bucket.step, detail::layer_name(network, bucket));
    bucket.sum.wait(stream);
    bucket.squares->run(stream, Pass::update);
  }
  stream.enter(-1);
  if (network.scattered()) placing.ranks.all_reduce(stream, Pass::update, squares).wait(stream);
}

}  // namespace lamina
