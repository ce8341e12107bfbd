// Groups of parameters by pattern: another rate or weight decay, or frozen: then they stay bit by
// bit, the others train as with a rate of zero there, and what they would cost is not spent.
#include "catch.hpp"
#include "support/operands.hpp"
#include "support/splits.hpp"
#include "support/training.hpp"
#include "unit/checkpoint_files.hpp"

#include <lamina/base/pattern.hpp>

using namespace lamina;
using namespace lamina::test;
using checkpoint_files::Folder;

namespace {

Network network() {
  Network net = small_network(true);
  net.add<SoftmaxCrossEntropy>({}, "loss");
  return net;
}

struct Run {
  int ranks = 1;
  std::string backend = "reference";
  DType dtype = DType::f64;
  std::map<std::string, Split> splits = {};
  bool shard = false, recompute = false;
  std::int64_t micro_batch = 0;
  std::vector<std::string> frozen = {};
};

TrainerOptions options_of(const Run& run) {
  const Network net = network();
  return {.batch = 24,
          .micro_batch = run.micro_batch,
          .backend = run.backend,
          .dtype = run.dtype,
          .splits = splits_of(net, {.splits = run.splits}, run.ranks),
          .recompute =
              run.recompute ? std::vector<bool>(net.graph().size(), true) : std::vector<bool>(),
          .frozen = run.frozen,
          .bucket_mb = 1e-3,
          .first_bucket_mb = 1e-4,
          .shard_optimizer = run.shard};
}

/// By rank and name, what some steps make of the values; and the losses.
struct Trained {
  std::vector<std::map<std::string, std::vector<double>>> values;
  std::vector<double> losses;
};

std::map<std::string, std::vector<double>> values_of(const PlacedNetwork& net) {
  std::map<std::string, std::vector<double>> values;
  for (const auto& n : net.parameters()) {
    const Tensor plain(n.parameter->form.shape, n.parameter->form.dtype);
    net.placing().backend->copy(n.parameter->value, plain);
    values[n.name] = numbers(plain);
  }
  return values;
}

Trained train(const Run& run, const Optimizer& optimizer, int steps = 5) {
  Trained result;
  result.values.resize(std::size_t(run.ranks));
  const auto data = small_data();
  run_ranks(run.ranks, [&](World& world) {
    set_threads(1);
    Trainer trainer(network(), world, optimizer, options_of(run));
    const auto mine =
        steps > 0 ? losses(trainer, *data, steps, {.epochs = 10}) : std::vector<double>();
    result.values[std::size_t(world.rank())] = values_of(trainer.network());
    if (world.rank() == 0) result.losses = mine;
  });
  return result;
}

/// Where the others have a rate of zero.
Optimizer stopped(Optimizer o, const std::vector<std::string>& patterns) {
  for (const std::string& p : patterns) o.group(p, {.rate = 0});
  return o;
}

}  // namespace

TEST_CASE("what is frozen stays, and the rest trains as if its rate were zero") {
  const std::vector<std::string> patterns[] = {
      {"a.*", "norm.*"}, {"b.weight"},        {"b.*"},         {"*.bias"},
      {"*.weight"},      {"?.weight", "c.*"}, {"norm.weight"}, {"a.*", "norm.*", "b.*", "c.*"}};
  const Run runs[] = {{},
                      {.backend = "auto", .dtype = DType::f32},
                      {.ranks = 2},
                      {.ranks = 3, .backend = "auto", .dtype = DType::f32},
                      {.ranks = 2, .shard = true},
                      {.ranks = 3, .shard = true, .micro_batch = 12},
                      {.micro_batch = 8},
                      {.ranks = 2, .recompute = true},
                      {.ranks = 2, .splits = {{"a", {.channel = 2}}, {"c", {.input = 2}}}},
                      {.ranks = 4,
                       .splits = {{"a", {.height = 2}},
                                  {"b", {.batch = 2, .height = 2}},
                                  {"c", {.channel = 2}},
                                  {"d", {}}}}};
  const Optimizer sgd = SGD{.rate = 0.05, .momentum = 0.9};
  for (Run run : runs)
    for (const auto& frozen : patterns) {
      CAPTURE(run.ranks, run.backend, run.shard, run.micro_batch, run.recompute, run.splits.size(),
              in_words(frozen));
      run.frozen = {};
      const Trained start = train(run, sgd, 0), wanted = train(run, stopped(sgd, frozen));
      run.frozen = frozen;
      const Trained got = train(run, sgd);
      CHECK(got.losses == wanted.losses);
      CHECK(got.values == wanted.values);
      bool stayed = true, moved = true;
      for (std::size_t r = 0; r < got.values.size(); ++r)
        for (const auto& [name, values] : got.values[r]) {
          if (name.find("running") != name.npos) continue;
          const bool same = values == start.values[r].at(name);
          (matches_any(frozen, name) ? stayed : moved) &= same == matches_any(frozen, name);
        }
      CHECK(stayed);
      CHECK(moved);
    }
}

TEST_CASE("what is frozen counts neither for clipping nor for LARS, and does not decay") {
  const std::vector<std::string> frozen = {"b.*", "d.weight"};
  for (const int ranks : {1, 2}) {
    const Run all{.ranks = ranks}, some{.ranks = ranks, .frozen = frozen};
    // The length of a clipped step is that of all that moves.
    Optimizer clipped = SGD{.rate = 1, .weight_decay = 0};
    clipped.clip_norm(1e-3);
    const Trained start = train(some, clipped, 0), step = train(some, clipped, 1);
    double square = 0;
    for (const auto& [name, values] : step.values[0])
      for (std::size_t i = 0; i < values.size(); ++i)
        if (name.find("running") == name.npos)
          square += std::pow(values[i] - start.values[0].at(name)[i], 2);
    CHECK(std::sqrt(square) == Approx(1e-3));
    const Optimizer lars = LARS{.rate = 1, .weight_decay = 0.01};
    const Trained wanted = train(all, stopped(lars, frozen)), got = train(some, lars);
    CHECK(got.values == wanted.values);
    const Trained decayed = train(some, AdamW{.weight_decay = 0.5});
    for (const std::string name : {"b.weight", "b.bias", "d.weight"})
      CHECK(decayed.values[0].at(name) == start.values[0].at(name));
  }
}

TEST_CASE("what is frozen is neither summed nor goes backward nor takes memory") {
  run_ranks(2, [&](World& world) {
    set_threads(1);
    Run run{.ranks = 2, .dtype = DType::f32};
    Trainer all(network(), world, Adam{}, options_of(run));
    run.frozen = {"a.*", "norm.*", "b.*", "c.bias"};
    Trainer some(network(), world, Adam{}, options_of(run));
    const auto data = small_data();
    const auto measured = [&](Trainer& trainer) {
      Loader loader = trainer.loader(*data, true);
      return profile_steps(trainer.network(), trainer.stream(), world.comm(),
                           trainer.optimizer().rule(), {.warmup = 1, .steps = 2, .alone = false},
                           [&] { trainer.step(loader, 100); });
    };
    const Profile p = measured(some);
    double reduced = 0, calls = 0, planned = 0;
    for (const ProfileRow& r : p.rows) {
      if (r.pass != Pass::weight_grad) continue;
      reduced += r.comm_bytes;
      for (const auto& k : r.kernels)
        if (k.lane == Lane::communication) calls += k.calls;
    }
    for (const Step& step : some.network().steps()) {
      if (!step.layer) continue;
      for (const Message& m : step.cost(DType::f32).messages)
        if (m.pass == Pass::weight_grad && step.split().ways(m.axes) > 1) planned += m.bytes;
    }
    const double c = 16 * 16 * 36 * 4, d = (4 * 16 + 4) * 4;  // bytes; the 4 take 64 bytes, too
    check(reduced == c + 4 * 64 + 64, "summed ", reduced, " bytes");
    check(std::abs(planned - (c + d)) < 1, "planned ", planned, " bytes");
    check(std::abs(calls - double(some.network().buckets().size())) < 1e-9, calls, " sums");
    check(some.network().buckets().size() < all.network().buckets().size(), "as many buckets");
    const std::set<std::string> below = {"a", "norm", "b"};
    for (const ProfileRow& r : p.rows) {
      const bool backward = r.pass != Pass::forward;
      check(!(backward && below.contains(r.name)), r.name, " goes backward: ", name(r.pass));
      check(!(r.name == "c" && r.pass == Pass::input_grad), "c gives a gradient");
    }
    const Memory less = some.memory(), most = all.memory();
    check(less.gradients == std::size_t(c + 4 * 64 + 64), "gradients ", less.gradients);
    check(less.optimizer == 2 * less.gradients && some.state_bytes() == less.optimizer, "states");
    check(less.activations < most.activations && less.parameters == most.parameters, "memory");
  });
}

TEST_CASE("memory: with parts frozen it is what is planned") {
  if (!counts_allocations()) return;
  for (const auto& frozen : {std::vector<std::string>{"a.*"}, {"*.weight"}, {"b.bias", "norm.*"}}) {
    CAPTURE(in_words(frozen));
    const Network net = network();
    PlacedNetwork placed(
        net, {.batch = 8, .backend = reference_backend(), .dtype = DType::f64, .frozen = frozen});
    const TensorBytes bytes;
    placed.allocate();
    const Memory& m = placed.memory();
    std::size_t own = 0, kernels = 0;  // what the constructor made
    for (const Step& step : placed.steps()) {
      own += step.placement.workspace;
      kernels = std::max(kernels, step.placement.scratch);
    }
    const std::size_t planned = m.total() - own - kernels;
    CHECK(planned <= bytes.bytes());
    CHECK(bytes.bytes() - bytes.rounding() <= planned);
  }
}

TEST_CASE("memory: where all but the last layer is frozen, activations are those of inference") {
  const auto activations = [](bool training) {
    const PlacedNetwork net(network(), {.batch = 8,
                                        .backend = reference_backend(),
                                        .training = training,
                                        .frozen = {"a.*", "norm.*", "b.*", "c.*"}});
    return net.memory().activations;
  };
  // And what the last layers keep, each at a page of its own.
  CHECK(activations(true) <= activations(false) + 3 * 4096);
}

TEST_CASE("frozen parameters are in checkpoints, and a run goes on from one") {
  const Folder folder;
  for (const bool shard : {false, true}) {
    const Run run{.ranks = 2, .shard = shard, .frozen = {"a.*", "b.weight"}};
    const auto data = small_data();
    run_ranks(2, [&](World& world) {
      set_threads(1);
      const auto make = [&](const Run& of) {
        return Trainer(network(), world, Adam{}, options_of(of));
      };
      Trainer whole = make(run);
      Loader loader = whole.loader(*data, true);
      for (int i = 0; i < 3; ++i) whole.step(loader, 10);
      whole.save(folder / "part");
      for (const WholeParameter& p : whole.network().all_parameters())
        check(!p.frozen || p.variants == 1, p.name, " is each rank's own");
      for (int i = 0; i < 2; ++i) whole.step(loader, 10);
      Trainer again = make(run);
      again.resume(folder / "part");
      loader.seek(again.progress().epoch, again.progress().batch);
      for (int i = 0; i < 2; ++i) again.step(loader, 10);
      check(values_of(again.network()) == values_of(whole.network()), "other values");
      const auto refusal = [&](const Run& of) {
        Trainer other = make(of);
        try {
          other.resume(folder / "part");
        } catch (const Error& e) {
          return std::string(e.what());
        }
        return std::string("none");
      };
      Run other = run;
      other.frozen = {"a.*"};
      check(refusal(other).find("was saved with frozen a.*, b.weight, but this run has a.*") !=
                std::string::npos,
            refusal(other));
      other.frozen = {};
      check(refusal(other).find("was saved with a.*, b.weight frozen, but this run has nothing") !=
                std::string::npos,
            refusal(other));
      Trainer fresh = make(other);  // what is trained first and frozen then
      load_parameters(folder / "part", fresh.network(), true, world.comm());
    });
  }
}

TEST_CASE("patterns of frozen parameters that fit nothing, or everything, are refused") {
  const auto refusal = [](const std::vector<std::string>& frozen) {
    try {
      network().place({.batch = 4, .backend = reference_backend(), .frozen = frozen});
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(refusal({"b.*", "a.wieght"}) ==
        "frozen: there is no parameter 'a.wieght' (did you mean a.weight?)");
  CHECK(refusal({"e.*"}) == "frozen: no parameter matches 'e.*'");
  CHECK(refusal({"norm.running_*"}).starts_with("frozen: no parameter matches 'norm.running_*'"));
  CHECK(refusal({"*"}) == "frozen: all parameters are: nothing is left to train");
  CHECK(refusal({"?.*"}).empty());
  // Inference trains nothing.
  CHECK_NOTHROW(network().place(
      {.batch = 4, .backend = reference_backend(), .training = false, .frozen = {"*"}}));
}

TEST_CASE("ranks that freeze something else are told so") {
  std::string error;
  try {
    run_ranks(2, [&](World& world) {
      Trainer(network(), world, SGD{},
              options_of({.ranks = 2, .frozen = {world.rank() == 0 ? "a.*" : "b.*"}}));
    });
  } catch (const Error& e) {
    error = e.what();
  }
  CHECK_THAT(error, ContainsSubstring("frozen is a.* on rank 0, but b.* on rank 1"));
}

TEST_CASE("a group has a rate and a weight decay of its own") {
  Optimizer o = SGD{.rate = 0.5, .weight_decay = 0.1};
  o.decay_weights_only().group("*.bias", {.rate = 2}).group("b.*", {.weight_decay = 0.3});
  o.group("norm.weight", {.rate = 3, .weight_decay = 0.2});
  struct Own {
    double rate, decay;
  };
  const auto own = [](const std::string& name) -> Own {
    if (name == "norm.weight") return {3, 0.2};
    if (name.starts_with("b.")) return {1, 0.3};  // the last one that matches, bias or not
    if (name.ends_with(".bias")) return {2, 0};
    return {1, 0.1};
  };
  // Two steps apart in nothing but the rate give the gradient: w - w' = rate * (dw + decay * w).
  Optimizer plain = SGD{.rate = 0.5};
  for (const bool shard : {false, true}) {
    const Run run{.ranks = shard ? 2 : 1, .shard = shard};
    const Trained start = train(run, plain, 0), step = train(run, plain, 1), got = train(run, o, 1);
    for (const auto& [name, values] : got.values[0]) {
      if (name.find("running") != name.npos) continue;
      CAPTURE(name, shard);
      const auto& w = start.values[0].at(name);
      const auto& w1 = step.values[0].at(name);
      double most = 0;
      for (std::size_t i = 0; i < w.size(); ++i) {
        const double dw = (w[i] - w1[i]) / 0.5;
        const double wanted = w[i] - 0.5 * own(name).rate * (dw + own(name).decay * w[i]);
        most = std::max(most, std::abs(values[i] - wanted));
      }
      CHECK(most < 1e-14);
    }
  }
}

TEST_CASE("groups that are impossible, or of nothing, are refused") {
  Optimizer o = SGD{};
  CHECK_THROWS_WITH(o.group("a.*", {.rate = -1}),
                    ContainsSubstring("group a.*: rate must not be negative"));
  CHECK_THROWS_WITH(o.group("a.*", {.weight_decay = -1}), ContainsSubstring("weight decay"));
  o.group("fc.weight", {.rate = 2});
  PlacedNetwork net = network().place({.batch = 4, .backend = reference_backend()});
  CHECK_THROWS_WITH(o.attach(net), ContainsSubstring("no trained parameter 'fc.weight' (did you "
                                                     "mean c.weight?)"));
  CHECK(o.text() != Optimizer(SGD{}).text());  // so that ranks that differ are told
}
