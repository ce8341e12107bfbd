// Optimizers against their formulas on a whole network, clipping, and what decays.
#include "catch.hpp"
#include "support/peek.hpp"
#include "support/training.hpp"

using namespace lamina;
using namespace lamina::test;

namespace {

/// A network with its gradients, in f64 on the reference back end.
struct Setup {
  World world;
  PlacedNetwork net =
      network().place({.batch = 8, .backend = reference_backend(), .dtype = DType::f64});
  std::unique_ptr<Dataset> data = small_data();
  Stream stream;
  Tensor labels, states;

  explicit Setup(const Optimizer& optimizer) {
    net.initialize(5);
    states = optimizer.attach(net);
    labels = Tensor({8, 1, 1, 1}, DType::i32, net.placing().backend->memory());
    for (int i = 0; i < 8; ++i) peek(labels).as<std::int32_t>()[i] = i % 4;
    const auto x = peek(net.x()).elements<double>();
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = Random(1, 1).normal(i);
    Context context{.stream = stream, .targets = labels};
    net.forward(context);
    net.backward(context);
  }

  static Network network() {
    Network net = small_network(true, 0);
    net.add<SoftmaxCrossEntropy>({}, "loss");
    return net;
  }
  const Parameter& parameter(std::string_view name) const {
    for (const auto& n : net.parameters())
      if (n.name == name) return *n.parameter;
    throw Error(text("no parameter ", name));
  }
  std::vector<double> value(std::string_view name) const {
    const auto v = peek(parameter(name).value).elements<double>();
    return {v.begin(), v.end()};
  }
  std::vector<double> grad(std::string_view name) const {
    const auto v = peek(parameter(name).grad).elements<double>();
    return {v.begin(), v.end()};
  }
  double grad_norm() const {
    double sum = 0;
    for (const auto& n : net.parameters())
      if (n.parameter->trained)
        for (const double v : peek(n.parameter->grad).elements<double>()) sum += v * v;
    return std::sqrt(sum);
  }
};

double norm(const std::vector<double>& v) {
  double sum = 0;
  for (const double x : v) sum += x * x;
  return std::sqrt(sum);
}

}  // namespace

TEST_CASE("weight decay can leave out biases and batch norm") {
  const bool weights_only = GENERATE(false, true);
  Optimizer o = SGD{.rate = 0.5, .weight_decay = 0.1};
  o.decay_weights_only(weights_only);
  Setup s(o);
  for (const auto* name : {"b.weight", "b.bias", "norm.weight", "d.bias"}) {
    CAPTURE(name, weights_only);
    const bool decays = !weights_only || std::string_view(name) == "b.weight";
    const auto w = s.value(name), dw = s.grad(name);
    Setup t(o);
    o.update(t.net, t.stream, 0.5, 1);
    const auto after = t.value(name);
    for (std::size_t i = 0; i < w.size(); ++i)
      CHECK(after[i] == Approx(w[i] - 0.5 * (dw[i] + (decays ? 0.1 * w[i] : 0))).margin(1e-15));
  }
}

namespace {

/// Counts what updates parameters.
struct Updates final : Recorder {
  std::mutex mutex;
  int count = 0;
  void record(const Span& span) override {
    const std::lock_guard lock(mutex);
    count += span.pass == Pass::update && span.lane == Lane::compute;
  }
};

/// One step of Adam, and how many updates it took: by update(), or parameter by parameter.
struct Updated {
  std::vector<double> weights;
  int updates = 0;
};
Updated updated(const std::string& backend, double bucket_mb, bool weights_only, bool one_by_one) {
  const double decay = 0.1;
  PlacedNetwork net = Setup::network().place({.batch = 8,
                                              .backend = make_backend(backend, DType::f32),
                                              .bucket_mb = bucket_mb,
                                              .first_bucket_mb = bucket_mb});
  net.initialize(5);
  Optimizer optimizer = Adam{.weight_decay = decay};
  optimizer.decay_weights_only(weights_only);
  const Tensor states = optimizer.attach(net);
  const Tensor labels({8, 1, 1, 1}, DType::i32, net.placing().backend->memory());
  const View x = peek(net.x());
  for (std::int64_t i = 0; i < x.shape.size(); ++i)
    x.as<float>()[i] = float(Random(1, 1).normal(std::uint64_t(i)));
  Stream stream;
  Updates updates;
  stream.record_to(&updates);
  for (int step = 1; step <= 3; ++step) {
    Context context{.stream = stream, .targets = labels};
    net.forward(context), net.backward(context);
    if (!one_by_one) optimizer.update(net, stream, 0.01, step);
    for (const auto& n : net.parameters())
      if (const Parameter& p = *n.parameter; one_by_one && p.trained)
        net.placing()
            .backend->update(optimizer.rule(), {{.w = p.value, .dw = p.grad, .states = p.states}})
            ->run(
                stream,
                {.rate = 0.01, .weight_decay = p.decay || !weights_only ? decay : 0, .step = step});
  }
  stream.wait();
  return {weights(net), updates.count / 3};
}

}  // namespace

TEST_CASE("a bucket is updated by one call, bit for bit as one by one") {
  for (const std::string backend : {"reference", "auto"})
    for (const bool weights_only : {false, true}) {
      CAPTURE(backend, weights_only);
      const Updated all = updated(backend, 25, weights_only, false);
      CHECK(all.weights == updated(backend, 25, weights_only, true).weights);
      CHECK(all.weights == updated(backend, 0, weights_only, false).weights);
      CHECK(all.updates == 1);
      CHECK(updated(backend, 0, weights_only, false).updates == 5);  // d, c, b, norm, a
      CHECK(updated(backend, 0, weights_only, true).updates == 9);
    }
}

TEST_CASE("an optimizer that is not attached as it is does not update") {
  Optimizer o = SGD{.rate = 1};
  Setup s(o);
  CHECK_NOTHROW(o.clip_norm(100).update(s.net, s.stream, 1, 1));
  CHECK_THROWS_WITH(o.decay_weights_only().update(s.net, s.stream, 1, 1),
                    ContainsSubstring("of other settings: expected attach() before"));
  PlacedNetwork bare =
      Setup::network().place({.batch = 8, .backend = reference_backend(), .dtype = DType::f64});
  CHECK_THROWS_WITH(o.update(bare, s.stream, 1, 1), ContainsSubstring("states are missing"));
}

TEST_CASE("gradients are clipped to a norm over all parameters") {
  Optimizer o = SGD{.rate = 1};
  const double whole = Setup(o).grad_norm();
  for (const double limit : {whole / 4, whole * 2}) {
    Optimizer clipping = o;
    clipping.clip_norm(limit);
    Setup s(clipping);
    const auto w = s.value("c.weight"), dw = s.grad("c.weight");
    clipping.update(s.net, s.stream, 1, 1);
    const auto after = s.value("c.weight");
    const double factor = std::min(1.0, limit / whole);
    for (std::size_t i = 0; i < w.size(); ++i)
      CHECK(after[i] == Approx(w[i] - factor * dw[i]).margin(1e-15));
  }
}

TEST_CASE("LARS scales each weight's gradient by the ratio of norms") {
  const Optimizer o = LARS{.rate = 0.5, .momentum = 0.9, .weight_decay = 0.01, .trust = 0.02};
  Setup s(o);
  const auto w = s.value("b.weight"), dw = s.grad("b.weight");
  const auto b = s.value("b.bias"), db = s.grad("b.bias");
  o.update(s.net, s.stream, 0.5, 1);
  const double local = 0.02 * norm(w) / (norm(dw) + 0.01 * norm(w));
  const auto w1 = s.value("b.weight"), b1 = s.value("b.bias");
  for (std::size_t i = 0; i < w.size(); ++i)
    CHECK(w1[i] == Approx(w[i] - 0.5 * local * (dw[i] + 0.01 * w[i])).margin(1e-15));
  for (std::size_t i = 0; i < b.size(); ++i)
    CHECK(b1[i] == Approx(b[i] - 0.5 * db[i]).margin(1e-15));
}

TEST_CASE("impossible settings are refused") {
  CHECK_THROWS_AS(Optimizer(SGD{.rate = -1}), Error);
  CHECK_THROWS_AS(Optimizer(SGD{.momentum = 1}), Error);
  CHECK_THROWS_AS(Optimizer(SGD{.nesterov = true}), Error);
  CHECK_THROWS_AS(Optimizer(Adam{.beta2 = 1}), Error);
  CHECK_THROWS_AS(Optimizer(SGD{.weight_decay = -0.1}), Error);
  CHECK_THROWS_AS(Optimizer(LARS{.trust = 0}), Error);
  CHECK_THROWS_AS(Optimizer(Adam{.epsilon = 0}), Error);
  CHECK_THROWS_AS(Optimizer(AdamW{.epsilon = -1e-8}), Error);
  CHECK_THROWS_AS(Optimizer(SGD{}).clip_norm(-1), Error);
  CHECK_THROWS_AS(Optimizer(SGD{}).clip_norm(std::nan("")), Error);
}

TEST_CASE("every optimizer learns") {
  const auto data = small_data();
  const int which = GENERATE(0, 1, 2, 3);
  const Optimizer o = which == 0   ? Optimizer(SGD{.rate = 0.05, .momentum = 0.9})
                      : which == 1 ? Optimizer(Adam{.rate = 0.005})
                      : which == 2 ? Optimizer(AdamW{.rate = 0.005})
                                   : Optimizer(LARS{.rate = 2});
  CAPTURE(o.name());
  World world;
  Trainer trainer(small_network(true), world, o, {.batch = 24});
  const auto l = losses(trainer, *data, 40, {.epochs = 10});
  CHECK(l.back() < 0.7 * l.front());
}
