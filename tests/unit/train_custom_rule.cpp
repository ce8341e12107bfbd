// Rules of one's own: SGD with momentum, written as one, trains bit for bit as the built-in.
#include "catch.hpp"
#include "support/training.hpp"
#include "unit/checkpoint_files.hpp"

using namespace lamina;
using namespace lamina::test;
using checkpoint_files::Folder;

namespace {

constexpr double momentum = 0.9;

template <class T>
void momentum_sgd(const UpdateStep& s, const View& w, const View& dw, const View& v) {
  for (std::size_t i = 0; i < std::size_t(w.shape.size()); ++i) {
    const double g = s.grad_scale * dw.as<T>()[i] + s.weight_decay * w.as<T>()[i];
    const double sum = momentum * v.as<T>()[i] + g;
    v.as<T>()[i] = T(sum);
    w.as<T>()[i] = T(w.as<T>()[i] - s.rate * sum);
  }
}

Optimizer own() {
  CustomRule rule{.name = "my momentum", .rate = 0.05, .weight_decay = 1e-3, .states = 1};
  rule.update = [](Stream&, const UpdateStep& step, const View& w, const View& dw,
                   std::span<const View> states) {
    if (w.dtype == DType::f64)
      momentum_sgd<double>(step, w, dw, states[0]);
    else
      momentum_sgd<float>(step, w, dw, states[0]);
  };
  return rule;
}

Optimizer built_in() { return SGD{.rate = 0.05, .momentum = momentum, .weight_decay = 1e-3}; }

struct Trained {
  std::vector<double> losses, weights;
};

Trained train(Optimizer o, int ranks, DType dtype, bool shard, std::int64_t micro_batch) {
  o.decay_weights_only().clip_norm(0.5).group("b.*", {.rate = 0.5, .weight_decay = 0.01});
  Trained result;
  const auto data = small_data();
  run_ranks(ranks, [&](World& world) {
    set_threads(1);
    Trainer trainer(small_network(true), world, o,
                    {.batch = 24,
                     .micro_batch = micro_batch,
                     .backend = "reference",
                     .dtype = dtype,
                     .bucket_mb = 1e-3,
                     .shard_optimizer = shard});
    const auto mine = losses(trainer, *data, 8, {.epochs = 10});
    if (world.rank() == 0) result = {mine, weights(trainer.network())};
  });
  return result;
}

}  // namespace

TEST_CASE("momentum SGD as a rule of one's own equals the built-in bit for bit", "[host]") {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const int ranks : {1, 2, 3})
      for (const bool shard : {false, true}) {
        CAPTURE(ranks, shard);
        const std::int64_t micro_batch = shard ? 12 : 0;
        const Trained wanted = train(built_in(), ranks, dtype, shard, micro_batch);
        const Trained got = train(own(), ranks, dtype, shard, micro_batch);
        CHECK(got.losses == wanted.losses);
        CHECK(got.weights == wanted.weights);
      }
}

TEST_CASE("a rule of one's own has its states in checkpoints and its name in profiles", "[host]") {
  const Folder folder;
  const auto data = small_data();
  for (const bool shard : {false, true})
    run_ranks(2, [&](World& world) {
      set_threads(1);
      const auto make = [&](const Optimizer& o) {
        return Trainer(small_network(true), world, o,
                       {.batch = 24, .backend = "reference", .shard_optimizer = shard});
      };
      Trainer whole = make(own());
      Loader loader = whole.loader(*data, true);
      for (int i = 0; i < 3; ++i) whole.step(loader, 10);
      whole.save(folder / "part");
      for (int i = 0; i < 2; ++i) whole.step(loader, 10);
      Trainer again = make(own());
      again.resume(folder / "part");
      loader.seek(again.progress().epoch, again.progress().batch);
      for (int i = 0; i < 2; ++i) again.step(loader, 10);
      check(weights(again.network()) == weights(whole.network()), "other weights");
      std::string refusal;
      try {
        make(built_in()).resume(folder / "part");
      } catch (const Error& e) {
        refusal = e.what();
      }
      check(refusal.find("was saved with optimizer my momentum, but this run has sgd") !=
                std::string::npos,
            refusal);
      const Profile p =
          profile_steps(whole.network(), whole.stream(), world.comm(), whole.optimizer().rule(),
                        {.warmup = 0, .steps = 1, .alone = false}, [&] { whole.step(loader, 10); });
      check(p.optimizer == "my momentum", p.optimizer);
      int updates = 0;
      for (const ProfileRow& r : p.rows)
        if (r.pass == Pass::update && r.time.mean > 0)
          updates += r.work.bytes > 0 && r.work.flops == 0;
      check(updates == 5, updates, " layers are updated");
    });
}

TEST_CASE("ranks whose rules differ in what can be told are told so") {
  std::string error;
  try {
    run_ranks(2, [&](World& world) {
      CustomRule rule{.name = world.rank() == 0 ? "lion" : "tiger"};
      rule.update = [](Stream&, const UpdateStep&, const View&, const View&,
                       std::span<const View>) {};
      Trainer(small_network(true), world, rule, {.batch = 8, .backend = "reference"});
    });
  } catch (const Error& e) {
    error = e.what();
  }
  CHECK_THAT(error, ContainsSubstring("the optimizer is lion, rate 0.01, 0 states"));
}

TEST_CASE("rules of one's own that cannot be are refused", "[host]") {
  CHECK_THROWS_WITH(Optimizer(CustomRule{.name = "lion"}),
                    ContainsSubstring("lion: expected a function that updates"));
  const auto nothing = [](Stream&, const UpdateStep&, const View&, const View&,
                          std::span<const View>) {};
  CHECK_THROWS_WITH(Optimizer(CustomRule{.states = -1, .update = nothing}),
                    ContainsSubstring("states must not be negative"));
  CHECK_THROWS_WITH(Optimizer(CustomRule{.name = "", .update = nothing}),
                    ContainsSubstring("needs a name"));
  CHECK_THROWS_WITH(Optimizer(CustomRule{.rate = -1, .update = nothing}),
                    ContainsSubstring("learning rate"));
  UpdateRule rule;
  rule.kind = UpdateRule::Kind::custom;
  const Tensor w({1, 4, 1, 1}, DType::f32), dw({1, 4, 1, 1}, DType::f32);
  CHECK_THROWS_WITH(reference_backend()->update(rule, {{.w = w, .dw = dw}}),
                    ContainsSubstring("no kernel"));
}
