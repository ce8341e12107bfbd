// How parameters are updated.
#include <lamina/train/optimizer.hpp>

#include <algorithm>
#include <cmath>

namespace lamina {

Optimizer::Optimizer(const SGD& o) : name_("sgd"), rate_(o.rate), weight_decay_(o.weight_decay) {
  rule_.momentum = o.momentum, rule_.nesterov = o.nesterov;
  check(!o.nesterov || o.momentum > 0, "nesterov needs a momentum above zero");
  validate();
}

Optimizer::Optimizer(const LARS& o)
    : name_("lars"), rate_(o.rate), weight_decay_(o.weight_decay), trust_(o.trust) {
  rule_.momentum = o.momentum;
  check(o.trust > 0, "trust must be positive, got ", o.trust);
  validate();
}

void Optimizer::validate() const {
  check(rate_ >= 0, "learning rate must not be negative, got ", rate_);
  check(weight_decay_ >= 0, "weight decay must not be negative, got ", weight_decay_);
  check(rule_.momentum >= 0 && rule_.momentum < 1, "momentum must be in [0, 1), got ",
        rule_.momentum);
  for (const double beta : {rule_.beta1, rule_.beta2})
    check(beta >= 0 && beta < 1, "beta must be in [0, 1), got ", beta);
}

std::string Optimizer::text() const {
  std::string s = lamina::text(name_, ", rate ", exact(rate_));
  if (rule_.kind == UpdateRule::Kind::sgd) {
    append(s,
           lamina::text(", momentum ", exact(rule_.momentum), rule_.nesterov ? " (nesterov)" : ""));
  } else {
    append(s, lamina::text(", beta1 ", exact(rule_.beta1), ", beta2 ", exact(rule_.beta2),
                           ", epsilon ", exact(rule_.epsilon)));
  }
  append(s, lamina::text(", weight decay ", exact(weight_decay_),
                         weights_only_ ? " (of weights only)" : ""));
  if (trust_ > 0) append(s, ", trust " + exact(trust_));
  if (clip_norm_ > 0) append(s, ", clipped to norm " + exact(clip_norm_));
  return s;
}

std::size_t Optimizer::bytes(const Parameter& p) const {
  return p.trained ? std::size_t(rule_.states()) * p.state_bytes() : 0;
}

Tensor Optimizer::attach(PlacedNetwork& network) const {
  const DType dtype = network.placing().dtype;
  const std::size_t bytes = memory(network).optimizer;
  Tensor all({1, std::int64_t(bytes / size_of(dtype)), 1, 1}, dtype,
             network.placing().backend->memory());
  std::size_t at = 0;
  for (const auto& n : network.parameters()) n.parameter->states.clear();
  for (const auto& n : network.parameters()) {
    Parameter& p = *n.parameter;
    if (!p.trained || (p.bucket && p.bucket->sharded)) continue;
    for (int i = 0; i < rule_.states(); ++i, at += room(p.form.bytes()))
      p.states.push_back(all.view().at(at, p.form));
  }
  for (Bucket& bucket : network.buckets()) {
    bucket.states.clear();
    for (int i = 0; bucket.sharded && i < rule_.states(); ++i, at += bucket.part.bytes()) {
      bucket.states.push_back(all.view().at(at, bucket.part));
      for (Parameter* p : bucket.members)
        p->states.push_back(
            p->run(bucket.states.back(), p->at + p->own().begin - bucket.own().begin));
    }
  }
  return all;
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
  network.changed();
  const Backend& backend = *network.placing().backend;
  if (network.sums() && (clip_norm_ > 0 || trust_ > 0)) add_up_squares(network, stream);
  if (clip_norm_ > 0) scale = clipped(network, stream, scale);
  const auto& all = network.parameters();
  for (auto i = all.size(); i-- > 0;) {
    Parameter& p = *all[i].parameter;
    if (!p.trained) continue;
    const LayerScope scope(stream, all[i].step, layer_name(network, all[i]),
                           LayerRun::Phase::update);
    stream.enter(all[i].step, layer_name(network, all[i]));
    p.wait(stream);
    UpdateStep s{rate, p.decay || !weights_only_ ? weight_decay_ : 0, scale, step};
    if (trust_ > 0) {
      if (p.decay) {
        const double w = std::sqrt(square(network, stream, all[i], Square::value));
        const double dw = scale * std::sqrt(square(network, stream, all[i], Square::grad));
        const double below = dw + s.weight_decay * w;
        const double local = w > 0 && below > 0 ? trust_ * w / below : 1;
        s.weight_decay *= local, s.grad_scale *= local;
      } else {
        s.weight_decay = 0;
      }
    }
    if (p.own().size > 0) backend.update(stream, rule_, s, p.own_value(), p.own_grad(), p.states);
    if (p.bucket) p.bucket->update(stream);
  }
  stream.enter(-1);
  for (Bucket& bucket : network.buckets()) bucket.gathered.wait(stream);
}

double Optimizer::square(const PlacedNetwork& network, Stream& stream, const NamedParameter& n,
                         Square of) const {
  if (network.sums()) return network.sums().as<double>()[2 * n.number + int(of)];
  const Parameter& p = *n.parameter;
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
      sum += square(network, stream, n, Square::grad);
    }
  }
  const double norm = scale * std::sqrt(sum);
  return norm > clip_norm_ ? scale * clip_norm_ / norm : scale;
}

}  // namespace lamina
