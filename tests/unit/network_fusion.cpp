// Which layers are absorbed by which, and what becomes of those: their rows, their parameters, and
// what they take.
#include "catch.hpp"
#include "profile_small.hpp"
#include "support/no_kernels.hpp"
#include "support/peek.hpp"
#include "support/random_plans.hpp"
#include "support/training.hpp"

#include <lamina/profile/report.hpp>
#include <lamina/profile/table.hpp>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

using namespace lamina;
using namespace lamina::test;

namespace {

using Names = std::vector<std::string>;

/// "relu in norm, ...": what is absorbed.
Names absorbed(const Network& net, PlaceOptions o = {.batch = 4}) {
  if (!o.backend) o.backend = reference_backend();
  const Fusion fusion = plan_fusion(net, o);
  Names names;
  for (std::size_t v = 0; v < net.graph().size(); ++v)
    if (const int by = fusion.vertices[v].absorbed_by; by >= 0)
      names.push_back(text(net.graph()[v].name, " in ", net.graph()[std::size_t(by)].name));
  return names;
}

Network start() { return Network({.c = 3, .h = 8, .w = 8}); }

template <class L>
Network behind_norm() {
  Network net = start();
  net.add<Conv2D>({.channels = 4, .kernel = 3}, "conv");
  net.add<BatchNorm>({}, "norm");
  net.add<L>({}, "act");
  net.add<Linear>({.features = 3}, "fc");
  net.add<SoftmaxCrossEntropy>({}, "loss");
  return net;
}

/// Two layers, of which the sum's other operand comes from the second.
Network sum_of(bool norm_last) {
  Network net = start();
  const Node x = net.add<Conv2D>({.channels = 4, .kernel = 3}, "conv");
  const auto norm = [&] { return x.add<BatchNorm>({}, "norm"); };
  const auto pool = [&] { return x.add<MaxPool2D>({.window = 3, .stride = 1, .pad = 1}, "pool"); };
  const Node first = norm_last ? pool() : norm(), second = norm_last ? norm() : pool();
  net.join<Add>({first, second}, {}, "add");
  net.add<ReLU>({}, "relu");
  net.add<Linear>({.features = 3}, "fc");
  net.add<SoftmaxCrossEntropy>({}, "loss");
  return net;
}

std::vector<double> train(const Network& net, TrainerOptions o, int ranks = 1,
                          std::vector<double>* state = nullptr) {
  std::vector<double> all;
  run_ranks(ranks, [&](World& world) {
    set_threads(1);
    Trainer trainer(net, world, SGD{.rate = 0.05, .momentum = 0.9}, o);
    const Shape x = net.sample();
    const auto data = synthetic({.limit = 4 * o.batch,
                                 .channels = int(x.c),
                                 .height = int(x.h),
                                 .width = int(x.w),
                                 .classes = 3,
                                 .seed = 3});
    const auto found = losses(trainer, *data, 4);
    if (world.rank() != 0) return;
    all = found;
    if (state) *state = weights(trainer.network());
  });
  return all;
}

void check_close(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  REQUIRE(a.size() == b.size());
  double largest = 0, apart = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, std::abs(a[i])), apart = std::max(apart, std::abs(a[i] - b[i]));
  CHECK(apart <= tolerance * largest);
}

}  // namespace

TEST_CASE("a kernel absorbs the rectifier behind it, and the sum before that") {
  CHECK(absorbed(behind_norm<ReLU>()) == Names{"act in norm"});
  CHECK(absorbed(behind_norm<LeakyReLU>()) == Names{"act in norm"});
  CHECK(absorbed(sum_of(true)) == Names{"add in norm", "relu in norm"});
  CHECK(absorbed(make_model("lenet")) ==
        Names{"relu1 in conv1", "relu2 in conv2", "relu3 in fc1", "relu4 in fc2"});
  const Names all = absorbed(make_model("resnet18"));
  CHECK(all.size() == 17 + 8);
  CHECK(std::ranges::count(all, "layer1.0.add in layer1.0.bn2") == 1);
  CHECK(std::ranges::count(all, "layer1.0.relu2 in layer1.0.bn2") == 1);
}

TEST_CASE("what a kernel cannot do, or somebody else must see, is not absorbed") {
  CHECK(absorbed(behind_norm<Tanh>()).empty());
  CHECK(absorbed(behind_norm<Sigmoid>()).empty());
  CHECK(absorbed(sum_of(false)).empty());  // the other operand comes later

  Network twice = start();  // two layers read what the norm makes
  const Node x = twice.add<BatchNorm>({}, "norm");
  twice.join<Concat>({x.add<ReLU>({}, "relu"), x});
  CHECK(absorbed(twice).empty());

  Network doubled = start();
  const Node y = doubled.add<BatchNorm>({}, "norm");
  doubled.join<Add>({y, y}, {}, "add");
  CHECK(absorbed(doubled).empty());

  Network three = start();
  const Node in = three.input();
  three.join<Add>({in, in, in.add<BatchNorm>({}, "norm")}, {}, "add");
  CHECK(absorbed(three).empty());
}

TEST_CASE("layers that are split or recomputed otherwise are not absorbed") {
  const Network net = behind_norm<ReLU>();
  run_ranks(2, [&](World& world) {
    PlaceOptions o{.batch = 4, .ranks = world};
    o.splits.assign(net.graph().size(), {.batch = 2});
    check(absorbed(net, o) == Names{"act in norm"}, "expected it to be absorbed");
    o.splits[3] = {.height = 2};
    check(absorbed(net, o).empty(), "expected it to stand alone: another split");
  });
  PlaceOptions o{.batch = 4, .recompute = {false, false, true, true, false, false}};
  CHECK(absorbed(net, o) == Names{"act in norm"});
  o.recompute[2] = false;
  CHECK(absorbed(net, o).empty());
}

TEST_CASE("a layer that is absorbed has no kernel in forward, but a name and parameters stay") {
  const Network net = sum_of(true);
  const PlacedNetwork placed =
      net.place({.batch = 2, .backend = reference_backend(), .dtype = DType::f64, .fuse = true});
  const Step &norm = placed.steps()[3], &add = placed.steps()[4], &relu = placed.steps()[5];
  CHECK((norm.name == "norm" && norm.epilogue == Epilogue{true, Activation{}}));
  CHECK(norm.inputs == std::vector<int>{1, 2});  // what it normalises, and what it adds
  CHECK((add.name == "add" && add.absorber == 3 && add.inputs == std::vector<int>{3}));
  CHECK((relu.name == "relu" && relu.absorber == 3 && relu.inputs == std::vector<int>{4}));
  CHECK(relu.buffers.y.data == norm.buffers.y.data);
  CHECK(placed.fusion().of(3).added == 2);
  CHECK(placed.all_parameters().size() ==
        net.place({.batch = 2, .backend = reference_backend()}).all_parameters().size());
}

TEST_CASE("networks train alike whether layers are absorbed or not") {
  const Network resnet =
      make_model("resnet20", {.classes = 3, .input = {.c = 3, .h = 16, .w = 16}});
  for (const int ranks : {1, 2}) {
    TrainerOptions o{.batch = 8, .backend = "reference", .dtype = DType::f64};
    std::vector<double> apart, fused;
    const auto losses = train(resnet, o, ranks, &apart);
    o.fuse = true;
    check_close(train(resnet, o, ranks, &fused), losses, 1e-9);
    check_close(fused, apart, 1e-9);
  }
}

TEST_CASE("ResNet-18 trains alike on the fast back end", "[host]") {
  if (!has_onednn()) return;
  const Network resnet =
      make_model("resnet18", {.classes = 3, .input = {.c = 3, .h = 32, .w = 32}});
  TrainerOptions o{.batch = 8, .backend = "onednn"};
  const auto losses = train(resnet, o);
  o.fuse = true;
  check_close(train(resnet, o), losses, 1e-4);
}

TEST_CASE("absorbed layers go with micro-batches, frozen parameters and a sharded optimizer") {
  const auto check_same = [](const Network& net, TrainerOptions o, int ranks) {
    o.batch = 12, o.backend = "reference", o.dtype = DType::f64;
    std::vector<double> apart, fused;
    const auto losses = train(net, o, ranks, &apart);
    o.fuse = true;
    check_close(train(net, o, ranks, &fused), losses, 1e-10);
    check_close(fused, apart, 1e-10);
  };
  for (const int ranks : {1, 2}) {
    check_same(sum_of(true), {.micro_batch = 4}, ranks);
    check_same(sum_of(true), {.frozen = {"norm.*"}}, ranks);
    check_same(sum_of(true), {.frozen = {"conv.*", "norm.*"}}, ranks);
    check_same(sum_of(true), {.frozen = {"conv.*"}}, ranks);
    check_same(sum_of(true), {.shard_optimizer = true}, ranks);
  }
  check_same(make_model("lenet", {.classes = 3}), {.frozen = {"conv2.*"}}, 2);
}

TEST_CASE("an evaluation has the parameters of the training, with and without fusion") {
  Evaluation found[2];
  for (const bool fuse : {false, true}) {
    const auto data = small_data(40);
    Trainer trainer(small_network(true), Communicator(), SGD{.rate = 0.05},
                    {.batch = 16,
                     .evaluation_batch = 10,
                     .backend = "reference",
                     .dtype = DType::f64,
                     .fuse = fuse});
    losses(trainer, *data, 2);
    found[fuse] = trainer.evaluate(*data);
  }
  CHECK(found[0].loss == Approx(found[1].loss).epsilon(1e-10));
  CHECK(found[0].top1 == found[1].top1);
}

TEST_CASE("checkpoints do not know what was absorbed") {
  const std::string path = text("fusion-", ::getpid(), ".safetensors");
  const auto data = small_data();
  const auto trainer = [](bool fuse) {
    return Trainer(small_network(true), Communicator(), SGD{.rate = 0.05, .momentum = 0.9},
                   {.batch = 16, .backend = "reference", .dtype = DType::f64, .fuse = fuse});
  };
  for (const bool fuse : {false, true}) {
    Trainer first = trainer(fuse), second = trainer(!fuse);
    losses(first, *data, 3);
    first.save(path);
    second.resume(path);
    CHECK(weights(first.network()) == weights(second.network()));
    check_close(losses(first, *data, 6), losses(second, *data, 6), 1e-10);
  }
  std::filesystem::remove(path);
}

TEST_CASE("predicted memory knows what is absorbed", "[splits]") {
  const Network net = thin("resnet20");
  for (const int ranks : {1, 2}) {
    PlaceOptions o{.batch = 8, .fuse = true};
    const auto predicted = predict_memory(net, o, ranks);
    run_ranks(ranks, [&](World& world) {
      PlaceOptions mine = o;
      mine.backend = reference_backend(), mine.ranks = world;
      const Memory m = PlacedNetwork(net, mine).memory();
      check(m == predicted[std::size_t(world.rank())], "predicted ",
            predicted[std::size_t(world.rank())].total(), " bytes, took ", m.total());
    });
    o.fuse = false;
    const double apart = double(predict_memory(net, o, ranks)[0].total());
    CHECK(double(predicted[0].total()) < 1.01 * apart);  // what lies where is by luck, too
  }
}

TEST_CASE("a prediction absorbs no more than the back end would", "[splits]") {
  Network net = start();
  const Node x = net.add<Conv2D>({.channels = 4, .kernel = 3, .pad = 1}, "conv");
  net.join<Add>({x.add<Conv2D>({.channels = 4, .kernel = 3, .pad = 1}, "it"), x}, {}, "add");
  net.add<Linear>({.features = 3}, "fc");
  net.add<SoftmaxCrossEntropy>({}, "loss");
  const Split rows{.height = 2}, samples{.batch = 2};
  PlaceOptions o{.batch = 4, .splits = {samples, rows, rows, rows, samples, samples}};
  const auto apart = predict_memory(net, o, 2);
  o.fuse = true;
  CHECK(predict_memory(net, o, 2) != apart);  // where something is added, rows do not overlap
  o.backend = std::make_shared<const NoKernels>();
  CHECK(predict_memory(net, o, 2) == apart);
}

TEST_CASE("a step with absorbed layers allocates nothing") {
  if (!counts_allocations()) return;
  const auto data = small_data();
  for (const char* backend : {"reference", "onednn"}) {
    if (backend == std::string("onednn") && !has_onednn()) continue;
    run_ranks(1, [&](World& world) {
      set_threads(1);
      Trainer trainer(small_network(true), world, Adam{},
                      {.batch = 16, .backend = backend, .fuse = true});
      const Allocated all = allocated_by_steps(trainer, *data);
      check(backend == std::string("onednn") ? all.largest < most_of_onednn() : all.count == 0,
            backend, ": ", all.count, " allocations");
    });
  }
}

TEST_CASE("ranks must agree on fusion") {
  std::vector<std::string> errors(2);
  run_ranks(2, [&](World& world) {
    try {
      behind_norm<ReLU>().place(
          {.batch = 4, .backend = reference_backend(), .ranks = world, .fuse = world.rank() == 1});
    } catch (const Error& e) {
      errors[std::size_t(world.rank())] = e.what();
    }
  });
  CHECK_THAT(errors[0], ContainsSubstring("fuse"));
  CHECK(errors[0] == errors[1]);
}

// ---- profiles ----------------------------------------------------------------------------------

namespace {

Profile profile_of(const Network& net, bool fuse) {
  TrainerOptions o{.batch = 4, .backend = "reference", .fuse = fuse};
  Trainer trainer(net, Communicator(), SGD{.rate = 0.01}, o);
  const auto data = synthetic({.limit = 8, .channels = 3, .height = 8, .width = 8, .classes = 3});
  auto loader = trainer.loader(*data, true);
  return profile_steps(trainer.network(), trainer.stream(), trainer.ranks(),
                       trainer.optimizer().rule(), {.steps = 2},
                       [&] { trainer.step(loader, 100); });
}

Work all_work(const Profile& p) {
  Work sum;
  for (const ProfileRow& r : p.rows) sum += r.work;
  return sum;
}

}  // namespace

TEST_CASE("an absorbed layer keeps its row, and its work is that of the kernel that ran") {
  const Profile apart = profile_of(sum_of(true), false), fused = profile_of(sum_of(true), true);
  for (const char* name : {"add", "relu"}) {
    const ProfileRow& r = row(fused, name, Pass::forward);
    CHECK(r.fused_into == "norm");
    CHECK((r.time.mean == 0 && r.work.flops == 0 && r.work.bytes == 0));
    CHECK(find(fused, name, Pass::input_grad) == nullptr);
  }
  CHECK(row(apart, "relu", Pass::forward).fused_into.empty());
  // The same arithmetic; but the operand is added while y is at hand, and written once.
  const double n = 4 * 4 * 6 * 6, s = 4;
  CHECK(all_work(fused).flops == all_work(apart).flops);
  const double signs = n / 8;
  CHECK(row(fused, "norm", Pass::forward).work.bytes == 4 * s * n + signs);      // 3 for itself
  CHECK(row(fused, "norm", Pass::weight_grad).work.bytes == 3 * s * n + signs);  // x, dy, dadded
  CHECK(row(fused, "norm", Pass::input_grad).work.bytes == 3 * s * n);
  CHECK(all_work(apart).bytes - all_work(fused).bytes == (3 - 1 + 2 + 3 - 1) * s * n - 2 * signs);
}

TEST_CASE("an activation behind a convolution has its own gradient still") {
  const Profile apart = profile_of(small(), false), fused = profile_of(small(), true);
  CHECK(row(fused, "relu", Pass::forward).fused_into == "conv");
  CHECK(row(fused, "relu", Pass::input_grad).work.bytes ==
        row(apart, "relu", Pass::input_grad).work.bytes);
  CHECK(row(fused, "relu", Pass::input_grad).time.mean > 0);
  CHECK(row(fused, "conv", Pass::forward).work.bytes ==
        row(apart, "conv", Pass::forward).work.bytes);
  CHECK(all_work(fused).flops == all_work(apart).flops);
}

TEST_CASE("tables and files say into which layer one was absorbed") {
  const Profile p = profile_of(sum_of(true), true);
  const std::string narrow = table(p, {.width = 80}), wide = table(p, {.wide = true});
  CHECK_THAT(narrow, ContainsSubstring("in norm"));
  CHECK_THAT(wide, ContainsSubstring("in norm"));
  const std::string path = text("fusion-", ::getpid(), ".json");
  write_profile_json(path, p);
  const Profile read = read_profile_json(path);
  CHECK(row(read, "add", Pass::forward).fused_into == "norm");
  CHECK(row(read, "conv", Pass::forward).fused_into.empty());
  std::filesystem::remove(path);
}
