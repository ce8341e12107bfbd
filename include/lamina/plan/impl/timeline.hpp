// A step, simulated on two lanes: kernels, and collectives in program order.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/plan/detail/step_parts.hpp>

#include <algorithm>

namespace lamina {

namespace detail {

/// Seconds at which the two lanes are free.
struct Lanes {
  double contention = 1;
  double compute = 0, comm = 0;

  /// Runs kernels, which take longer while something travels. Returns what that took.
  double run(double seconds) {
    const double begin = compute, busy = std::max(0.0, comm - compute);
    const double slowed = std::min(busy, seconds * contention);
    compute += slowed + std::max(0.0, seconds - slowed / contention);
    return compute - begin;
  }
  /// Starts a collective, if there is any; returns when it ends.
  double start(double seconds) {
    return seconds > 0 ? comm = std::max(comm, compute) + seconds : 0;
  }
  /// Has the kernels wait; returns how long.
  double wait(double until) {
    const double waited = std::max(0.0, until - compute);
    compute += waited;
    return waited;
  }
  double start_and_wait(double seconds) { return wait(start(seconds)); }
};

/// In the order in which PlacedNetwork and Optimizer run it.
class StepSimulation {
 public:
  /// Adds up what each layer takes, or, quicker, all of them in one.
  StepSimulation(const StepParts& parts, const Selection& selection, bool by_layer)
      : parts_(parts),
        graph_(parts.network.graph()),
        selection_(selection),
        by_layer_(by_layer),
        layers(by_layer ? graph_.size() : 1) {
    lanes_.contention = parts.cluster.contention;
    plan_buckets();
    const int micro_batches = std::max(1, parts.options.micro_batches);
    for (int i = 1; i <= micro_batches; ++i) {
      for (int v = 1; v < int(graph_.size()); ++v) forward(v);
      for (int v = int(graph_.size()) - 1; v >= 1; --v) backward(v, i == micro_batches);
    }
    update();
  }

  double seconds() const { return lanes_.compute; }

 private:
  const StepParts& parts_;
  const std::vector<Network::Vertex>& graph_;
  const Selection& selection_;
  bool by_layer_;

 public:
  std::vector<PredictedLayer> layers;

 private:
  struct Bucket {
    int group = -1, last = -1;               ///< the vertex whose backward completes it
    double bytes = 0, sent = 0, values = 0;  ///< see Reduction
    double limit = 0, done = 0;
    std::vector<std::pair<int, double>> members = {};  ///< vertices, with their bytes
  };

  const OptionCost& cost(int v) const { return parts_.cost(v, selection_); }
  PredictedLayer& layer(int v) { return layers[by_layer_ ? std::size_t(v) : 0]; }
  const std::vector<int>& inputs(int v) const { return graph_[std::size_t(v)].inputs; }

  /// As Parameters::plan_buckets cuts them.
  void plan_buckets() {
    const PlaceOptions& o = parts_.options;
    for (int v = int(graph_.size()) - 1; v >= 1; --v)
      for (const Reduction& r : cost(v).reductions) {
        Bucket* bucket = nullptr;
        for (Bucket& b : buckets_)
          if (b.group == r.group) bucket = &b;
        const double limit = (bucket ? o.bucket_mb : o.first_bucket_mb) * 1e6;
        if (!bucket || (bucket->bytes >= bucket->limit && bucket->last != v)) {
          buckets_.push_back({.group = r.group, .limit = limit});
          bucket = &buckets_.back();
        }
        bucket->bytes += r.bytes, bucket->sent += r.sent, bucket->values += r.values;
        bucket->last = v, bucket->members.push_back({v, r.bytes});
      }
  }

  /// Seconds to make one arrangement of another.
  double to_move(int held, int wanted) const {
    const double element = double(size_of(parts_.options.dtype.compute));
    return parts_.arrangements.seconds(held, wanted, element);
  }
  /// Whether v brings y of `from` so: the first of all that want it does.
  bool brings(int from, int wanted, int v) const {
    for (const auto& [reader, input] : parts_.readers[std::size_t(from)])
      if (cost(reader).wanted[std::size_t(input)] == wanted) return reader == v;
    return false;
  }

  void forward(int v) {
    const OptionCost& c = cost(v);
    for (std::size_t k = 0; k < c.wanted.size(); ++k)
      if (brings(inputs(v)[k], c.wanted[k], v))
        layer(v).redistribution +=
            lanes_.start_and_wait(to_move(cost(inputs(v)[k]).made, c.wanted[k]));
    run_forward(v, c.kernels.forward, c.forward, &LayerSeconds::forward);
  }

  /// Of a layer: seconds that a pass waited for `what`.
  void add(int v, double PredictedLayer::*what, double LayerSeconds::*pass, double waited) {
    layer(v).*what += waited, layer(v).waiting.*pass += waited;
  }

  void run_forward(int v, double kernels, const OptionCost::Messages& messages,
                   double LayerSeconds::*pass) {
    double& seconds = layer(v).kernels.*pass;
    if (cost(v).overlaps && messages.halo > 0) {
      const double arrives = lanes_.start(messages.halo);
      seconds += lanes_.run(kernels);
      add(v, &PredictedLayer::halo, pass, lanes_.wait(arrives));
    } else {
      add(v, &PredictedLayer::halo, pass, lanes_.start_and_wait(messages.halo));
      seconds += lanes_.run(kernels);
    }
    add(v, &PredictedLayer::collectives, pass, lanes_.start_and_wait(messages.others));
  }

  void backward(int v, bool reduces) {
    const OptionCost& c = cost(v);
    LayerSeconds& kernels = layer(v).kernels;
    if (parts_.recomputed[std::size_t(v)])
      run_forward(v, c.kernels.recompute, c.recompute, &LayerSeconds::recompute);
    const Gradients& gradients = parts_.gradients;
    if (!gradients.needed[std::size_t(v)]) return;
    kernels.input_grad += lanes_.run(c.sum);
    const bool has_dx = gradients.of_inputs[std::size_t(v)], parts = c.backward.others > 0;
    double arrives = 0, halo = 0;
    if (has_dx && c.multiplies) {  // one of the two travels while dw is computed
      kernels.input_grad += lanes_.run(c.kernels.input_grad);
      (parts ? arrives : halo) = lanes_.start(parts ? c.backward.others : c.backward.halo);
    }
    kernels.weight_grad += lanes_.run(c.kernels.weight_grad);
    if (!c.multiplies) arrives = lanes_.start(c.backward.others);
    if (reduces)
      for (Bucket& b : buckets_)
        if (b.last == v) reduce(b);
    add(v, &PredictedLayer::collectives, &LayerSeconds::input_grad, lanes_.wait(arrives));
    if (has_dx && !c.multiplies) kernels.input_grad += lanes_.run(c.kernels.input_grad);
    if (has_dx && (parts || !c.multiplies)) halo = lanes_.start(c.backward.halo);
    add(v, &PredictedLayer::halo, &LayerSeconds::input_grad, lanes_.wait(halo));
    if (has_dx) return_gradients(v);
  }

  /// Redistributions, the other way round.
  void return_gradients(int v) {
    const std::vector<int>& wanted = cost(v).wanted;
    for (std::size_t k = 0; k < wanted.size(); ++k)
      if (const int from = inputs(v)[k];
          parts_.gradients.needed[std::size_t(from)] && brings(from, wanted[k], v))
        layer(v).redistribution += lanes_.start_and_wait(to_move(wanted[k], cost(from).made));
  }

  void reduce(Bucket& b) {
    const bool parts = parts_.options.shard_optimizer;
    const double took = parts_.groups.seconds(
        b.group, parts ? Collective::reduce_scatter : Collective::all_reduce, b.sent);
    b.done = lanes_.start(took);
    for (const auto& [v, bytes] : b.members) layer(v).reduction += took * bytes / b.bytes;
  }

  /// Bucket by bucket, as backward finished them. With a sharded optimizer each rank updates its
  /// part, and they gather the whole.
  void update() {
    const bool parts = parts_.options.shard_optimizer;
    double gathered = 0;
    for (const Bucket& b : buckets_) {
      const double waited = lanes_.wait(b.done);
      const double share = parts ? 1.0 / parts_.groups.ranks(b.group) : 1;
      for (const auto& [v, bytes] : b.members) {
        add(v, &PredictedLayer::gradients, &LayerSeconds::weight_grad, waited * bytes / b.bytes);
        const double all = cost(v).kernels.update * bytes / bytes_reduced(v);
        layer(v).kernels.update += lanes_.run(all * share);
      }
      if (!parts) continue;
      const double took = parts_.groups.seconds(b.group, Collective::all_gather, b.values);
      gathered = lanes_.start(took);
      for (const auto& [v, bytes] : b.members) layer(v).reduction += took * bytes / b.bytes;
    }
    for (int v = int(graph_.size()) - 1; v >= 1; --v)  // what no other rank has
      if (cost(v).reductions.empty()) layer(v).kernels.update += lanes_.run(cost(v).kernels.update);
    if (!buckets_.empty())
      add(buckets_.back().last, &PredictedLayer::gradients, &LayerSeconds::update,
          lanes_.wait(gathered));
  }
  double bytes_reduced(int v) const {
    double bytes = 0;
    for (const Reduction& r : cost(v).reductions) bytes += r.bytes;
    return bytes;
  }

  Lanes lanes_;
  std::vector<Bucket> buckets_;
};

}  // namespace detail

LAMINA_INLINE double StepModel::seconds(const Selection& selection) const {
  return detail::StepSimulation(*parts_, selection, false).seconds();
}

LAMINA_INLINE PredictedStep StepModel::predict(const Selection& selection) const {
  detail::StepSimulation simulation(*parts_, selection, true);
  PredictedStep step{std::move(simulation.layers), simulation.seconds()};
  const std::vector<Split> splits = splits_of(selection);
  for (std::size_t v = 0; v < step.layers.size(); ++v)
    step.layers[v].name = parts_->network.graph()[v].name, step.layers[v].split = splits[v];
  return step;
}

LAMINA_INLINE PredictedLayer PredictedStep::total() const {
  PredictedLayer sum{.name = "step"};
  for (const PredictedLayer& l : layers) {
    sum.kernels += l.kernels;
    sum.collectives += l.collectives, sum.halo += l.halo;
    sum.redistribution += l.redistribution, sum.gradients += l.gradients;
    sum.reduction += l.reduction, sum.waiting += l.waiting;
  }
  return sum;
}

}  // namespace lamina
