// Micro-batches: a batch that runs in parts trains as one that runs at once.
#include "catch.hpp"
#include "support/random_plans.hpp"
#include "support/training.hpp"

#include <unistd.h>

#include <cmath>
#include <filesystem>

using namespace lamina;
using namespace lamina::test;

namespace {

struct Trained {
  std::vector<double> losses, weights;
};

struct How {
  std::int64_t micro_batch = 0;
  std::string backend = "reference";
  DType dtype = DType::f64;
  std::string plan = "data";
  bool shard = false;
  Optimizer optimizer = SGD{.rate = 0.05, .momentum = 0.9, .weight_decay = 1e-3};
};

/// Ten steps of 24 samples, four to an epoch; the network has dropout, but no batch norm.
Trained train(int ranks, const Dataset& data, const How& how) {
  Trained all;
  run_ranks(ranks, [&](World& world) {
    set_threads(1);
    Network net = small_network(false);
    net.add<SoftmaxCrossEntropy>({.label_smoothing = 0.1}, "loss");
    TrainerOptions o{.batch = 24,
                     .micro_batch = how.micro_batch,
                     .backend = how.backend,
                     .dtype = how.dtype,
                     .bucket_mb = 1e-3,
                     .first_bucket_mb = 1e-3,
                     .shard_optimizer = how.shard,
                     .schedule = {.warmup = 1}};
    const std::int64_t at_once = how.micro_batch > 0 ? how.micro_batch : o.batch;
    o.splits = splits_of(decide(built_in_plan(how.plan, net, at_once, ranks), net, at_once));
    Trainer trainer(net, world, how.optimizer, o);
    const auto found = losses(trainer, data, 10, {.epochs = 3});
    const auto w = weights(trainer.network());
    if (world.rank() == 0) all = {found, w};
  });
  return all;
}

double apart(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size() || a.empty()) return 1;
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    difference += (a[i] - b[i]) * (a[i] - b[i]), size += b[i] * b[i];
  return std::sqrt(difference / size);
}

/// Some of the labels do not count, so that micro-batches have unlike numbers of rows.
class Unlabelled final : public Dataset {
 public:
  explicit Unlabelled(std::unique_ptr<Dataset> data)
      : Dataset(data->name(), data->classes(), data->transform()), data_(std::move(data)) {}
  std::int64_t size() const override { return data_->size(); }
  void read(std::int64_t index, Sample& sample) const override {
    data_->read(index, sample);
    if (index % 3 == 0 || index % 7 == 2) sample.label = -1;
  }

 private:
  std::unique_ptr<Dataset> data_;
};

}  // namespace

TEST_CASE("micro-batches train as the whole batch does, under every plan") {
  const int ranks = GENERATE(1, 2, 3);
  const std::string plan = GENERATE("data", "owt", "spatial", "filter");
  const std::string backend = GENERATE("reference", "onednn");
  if (ranks == 1 && plan != "data") return;
  CAPTURE(ranks, plan, backend);
  const DType dtype = backend == "onednn" ? DType::f32 : DType::f64;
  const double tolerance = backend == "onednn" ? 1e-5 : 1e-12;
  const Unlabelled data(small_data());
  const How whole{.backend = backend, .dtype = dtype, .plan = plan};
  const Trained expected = train(ranks, data, whole);
  for (const std::int64_t micro_batch : {12, 8, 6, 3}) {
    CAPTURE(micro_batch);
    How how = whole;
    how.micro_batch = micro_batch;
    const Trained found = train(ranks, data, how);
    CHECK(apart(found.losses, expected.losses) < tolerance);
    CHECK(apart(found.weights, expected.weights) < tolerance);
  }
}

TEST_CASE("every optimizer counts the gradients of micro-batches alike, sharded or not") {
  const bool shard = GENERATE(false, true);
  const Unlabelled data(small_data());
  const Optimizer optimizers[] = {SGD{.rate = 0.05, .momentum = 0.9, .nesterov = true},
                                  Adam{.weight_decay = 1e-2},
                                  AdamW{},
                                  LARS{.rate = 2, .weight_decay = 1e-3},
                                  Optimizer(SGD{.rate = 0.05}).clip_norm(0.3),
                                  Optimizer(LARS{.rate = 2}).clip_norm(0.3)};
  for (const Optimizer& optimizer : optimizers) {
    CAPTURE(optimizer.text(), shard);
    How how{.shard = shard, .optimizer = optimizer};
    const Trained expected = train(2, data, how);
    how.micro_batch = 6;
    const Trained found = train(2, data, how);
    CHECK(apart(found.losses, expected.losses) < 1e-11);
    CHECK(apart(found.weights, expected.weights) < 1e-11);
  }
}

TEST_CASE("batch norm has statistics of each micro-batch") {
  // As on as many ranks that each have statistics of their own, whose gradients add up alike.
  const auto data = small_data();
  std::vector<double> micro, ranks;
  for (const bool in_parts : {true, false})
    run_ranks(in_parts ? 1 : 3, [&](World& world) {
      set_threads(1);
      Trainer trainer(local_norm_network(), world, SGD{.rate = 0.05},
                      {.batch = 24,
                       .micro_batch = in_parts ? 8 : 0,
                       .backend = "reference",
                       .dtype = DType::f64});
      const auto found = losses(trainer, *data, 6, {.epochs = 2});
      if (world.rank() == 0) (in_parts ? micro : ranks) = found;
    });
  CHECK(apart(micro, ranks) < 1e-12);
}

TEST_CASE("the gradients of micro-batches are summed over the ranks once in a step") {
  const auto data = small_data();
  std::vector<std::size_t> messages[2];
  for (const std::int64_t micro_batch : {0, 6})
    run_ranks(2, [&](World& world) {
      set_threads(1);
      Trainer trainer(small_network(false), world, SGD{.rate = 0.05},
                      {.batch = 24,
                       .micro_batch = micro_batch,
                       .backend = "reference",
                       .dtype = DType::f64,
                       .bucket_mb = 0,
                       .first_bucket_mb = 0});
      auto loader = trainer.loader(*data, true);
      Profiler profiler;
      profiler.start(trainer.stream());
      trainer.step(loader, 10);
      profiler.end_step(), profiler.stop();
      std::size_t sums = 0;
      for (const Span& span : profiler.last_step())
        sums += span.lane == Lane::communication && span.pass == Pass::weight_grad;
      if (world.rank() == 0) messages[micro_batch > 0].push_back(sums);
    });
  CHECK(messages[0][0] > 0);
  CHECK(messages[0] == messages[1]);
}

TEST_CASE("an update before all micro-batches have run is refused") {
  World world;
  Network net = small_network(false);
  net.add<SoftmaxCrossEntropy>({}, "loss");
  PlacedNetwork placed = net.place(
      {.batch = 6, .backend = reference_backend(), .dtype = DType::f64, .micro_batches = 3});
  placed.initialize(1);
  const Optimizer sgd = SGD{};
  const Tensor states = sgd.attach(placed);
  Stream stream;
  Targets labels(placed);
  for (int step = 0; step < 2; ++step) {
    for (int i = 0; i < 3; ++i) {
      if (i > 0)
        CHECK_THROWS_WITH(sgd.update(placed, stream, 0.1, 1),
                          text("update: ", i, " of 3 micro-batches have run backward"));
      Context context{.stream = stream, .targets = labels.move(stream)};
      placed.forward(context);
      Context other{.stream = stream, .targets = labels.move(stream)};  // need not be the same one
      placed.backward(other);
      CHECK(other.micro_batch == i);
      CHECK(other.micro_batches == 3);
    }
    CHECK_NOTHROW(sgd.update(placed, stream, 0.1, 1));
  }
}

TEST_CASE("what is evaluated between the micro-batches and the update has no say in it") {
  const Unlabelled data(small_data());
  Network layers = small_network(false, 0);
  layers.add<SoftmaxCrossEntropy>({}, "loss");
  const Optimizer sgd = SGD{.rate = 0.05};
  const auto trained = [&](bool evaluates) {
    PlacedNetwork net = layers.place(
        {.batch = 4, .backend = reference_backend(), .dtype = DType::f64, .micro_batches = 3});
    net.initialize(1);
    const Tensor states = sgd.attach(net);
    Targets labels(net);
    Stream stream;
    Loader loader(data, {.global_batch = 12, .micro_batches = 3, .seed = 1});
    const Batch& batch = loader.next();
    for (int i = 0; i < 3; ++i) {
      const Shape& x = net.x().shape;
      net.placing().backend->copy(on_host(batch.images + i * x.size(), x), net.x());
      labels.load(batch.labels() + i * x.n);
      Context context{.stream = stream, .targets = labels.move(stream)};
      net.forward(context), net.backward(context);
    }
    if (evaluates) {  // of rows that do not count
      labels.load(std::vector<std::int32_t>(4, -1).data());
      Context context{.stream = stream, .training = false, .targets = labels.move(stream)};
      net.forward(context);
      CHECK(outcome(net, stream).rows == 0);
    }
    sgd.update(net, stream, 0.05, 1);
    return weights(net);
  };
  CHECK(trained(true) == trained(false));
}

TEST_CASE("a profile of micro-batches is of whole steps") {
  const auto profile_of = [](int micro_batches) {
    std::optional<Profile> first;
    run_ranks(2, [&](World& world) {
      set_threads(1);
      Network net = small_network(false);
      net.add<SoftmaxCrossEntropy>({}, "loss");
      PlacedNetwork placed = net.place({.batch = 24 / micro_batches,
                                        .backend = reference_backend(),
                                        .ranks = world,
                                        .dtype = DType::f64,
                                        .micro_batches = micro_batches});
      placed.initialize(1);
      Profile p = profile(placed, world, {.warmup = 1, .steps = 2, .alone = false});
      if (world.rank() == 0) first = std::move(p);
    });
    return *first;
  };
  const Profile one = profile_of(1), four = profile_of(4);
  CHECK(four.batch == one.batch);
  for (const ProfileRow& row : one.rows) {
    const auto same = std::find_if(four.rows.begin(), four.rows.end(), [&](const ProfileRow& r) {
      return r.name == row.name && r.pass == row.pass;
    });
    CAPTURE(row.name, name(row.pass));
    REQUIRE(same != four.rows.end());
    if (row.name != "loss") CHECK(same->work.flops == Approx(row.work.flops));
    if (row.pass == Pass::weight_grad) CHECK(same->comm_bytes == Approx(row.comm_bytes));
    for (const ProfileKernel& k : same->kernels)
      CHECK((row.pass != Pass::forward || k.what != "sum" || row.name.starts_with("add")));
  }
}

TEST_CASE("steps of micro-batches allocate nothing") {
  const auto data = small_data();
  World world;
  Trainer trainer(small_network(true), world, SGD{.rate = 0.1}, {.batch = 24, .micro_batch = 6});
  if (counts_allocations()) CHECK(allocated_by_steps(trainer, *data).largest < most_of_onednn());
}

TEST_CASE("micro-batches take the memory of one, and gradients twice") {
  const Network net = resnet20({.classes = 10});
  World world;
  const auto memory = [&](std::int64_t batch, std::int64_t micro_batch) {
    Trainer trainer(net, world, SGD{.rate = 0.1}, {.batch = batch, .micro_batch = micro_batch});
    Memory sum;
    for (const Step& s : trainer.network().steps()) sum.gradients += s.memory.gradients;
    CHECK(sum.gradients == trainer.network().memory().gradients);
    return trainer.network().memory();
  };
  const Memory small = memory(4, 0), large = memory(64, 0), parts = memory(64, 4);
  CHECK(parts.activations == small.activations);
  CHECK(parts.workspace == small.workspace);
  CHECK(parts.parameters == small.parameters);
  CHECK(parts.gradients == 2 * small.gradients);
  CHECK(large.activations > 12 * parts.activations);
}

TEST_CASE("an evaluation between steps of micro-batches sees all samples") {
  const auto data = small_data(), validation = small_data(50, false);
  World world;
  std::vector<Evaluation> found;
  for (const std::int64_t micro_batch : {0, 6})
    for (const std::int64_t evaluation_batch : {0, 10}) {
      Trainer trainer(small_network(false), world, SGD{.rate = 0.05},
                      {.batch = 24,
                       .micro_batch = micro_batch,
                       .evaluation_batch = evaluation_batch,
                       .backend = "reference",
                       .dtype = DType::f64});
      losses(trainer, *data, 3);
      found.push_back(trainer.evaluate(*validation));
    }
  for (const Evaluation& e : found) {
    CHECK(e.samples == 50);
    CHECK(e.loss == Approx(found[0].loss).epsilon(1e-12));
    CHECK(e.top1 == found[0].top1);
  }
}

TEST_CASE("a resumed training of micro-batches goes on bit by bit") {
  const auto data = small_data();
  const std::string path = std::filesystem::temp_directory_path() / text("micro.", getpid());
  World world;
  std::vector<double> whole, resumed;
  for (const bool interrupted : {false, true}) {
    const TrainerOptions o{.batch = 24, .micro_batch = 8};
    {
      Trainer trainer(small_network(true), world, SGD{.rate = 0.05, .momentum = 0.9}, o);
      whole = losses(trainer, *data, interrupted ? 6 : 11, {.epochs = 3});
      if (interrupted) trainer.save(path);
    }
    if (!interrupted) {
      resumed.assign(whole.begin() + 6, whole.end());
      continue;
    }
    Trainer trainer(small_network(true), world, SGD{.rate = 0.05, .momentum = 0.9}, o);
    trainer.resume(path);
    CHECK(losses(trainer, *data, 11, {.epochs = 3}) == resumed);
  }
  std::filesystem::remove(path);
}

TEST_CASE("a micro-batch that does not divide the batch is refused") {
  World world;
  const auto refused = [&](std::int64_t micro_batch) {
    Trainer(small_network(false), world, SGD{}, {.batch = 24, .micro_batch = micro_batch});
  };
  CHECK_THROWS_WITH(refused(7), "a global batch of 24 is no multiple of the micro-batch of 7");
  CHECK_THROWS_WITH(refused(48), ContainsSubstring("no multiple"));
}
