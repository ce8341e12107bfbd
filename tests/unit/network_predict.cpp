// What a network takes is known without ranks, back end or buffers.
#include "catch.hpp"
#include "support/allocations.hpp"
#include "support/random_plans.hpp"

#include <lamina/comm/imagined.hpp>
#include <lamina/comm/threads.hpp>

#include <algorithm>
#include <optional>

using namespace lamina;
using namespace lamina::test;

namespace {

constexpr std::int64_t batch = 8;

struct Planned {
  std::string name;
  std::vector<Split> splits;
};

/// All built-in plans, and some drawn at random.
std::vector<Planned> plans_for(const Network& net, int ranks, std::uint64_t seed) {
  std::vector<Planned> all;
  for (const std::string_view name : plan_names())
    all.push_back(
        {std::string(name), splits_of(decide(built_in_plan(name, net, batch, ranks), net, batch))});
  if (ranks == 4) {
    const Split wish{.batch = 2, .height = 2, .shares = {.height = {3, 1}}};
    all.push_back({"uneven", {{.batch = 4, .shares = {.batch = {3, 1, 2, 2}}}}});
    for (const auto& v : net.graph())
      if (v.layer)
        all.back().splits.push_back(
            why_illegal(*v.layer, net.input_shapes(v, batch), wish, ranks).empty()
                ? wish
                : input_split(batch, ranks));
  }
  std::uint64_t draw = 0;
  for (int i = 0; i < 4 && ranks > 1; ++i)
    all.push_back({text("random ", i), random_plan(net, ranks, batch, Random(seed), draw)});
  return all;
}

/// What the ranks themselves say once the network is placed on them.
std::vector<Memory> placed_memory(const Network& net, const PlaceOptions& options, int ranks,
                                  const Optimizer& optimizer) {
  std::vector<Memory> all(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](World& world) {
    PlaceOptions mine = options;
    mine.backend = make_backend("reference", options.dtype), mine.ranks = world;
    all[std::size_t(world.rank())] = optimizer.memory(PlacedNetwork(net, mine));
  });
  return all;
}

void check_same(const std::vector<Memory>& a, const std::vector<Memory>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t r = 0; r < a.size(); ++r) {
    INFO("rank " << r);
    CHECK(a[r].parameters == b[r].parameters);
    CHECK(a[r].gradients == b[r].gradients);
    CHECK(a[r].optimizer == b[r].optimizer);
    CHECK(a[r].activations == b[r].activations);
    CHECK(a[r].workspace == b[r].workspace);
    CHECK(a[r].messages == b[r].messages);
  }
}

}  // namespace

TEST_CASE("predicted memory is what placing takes, under every plan", "[splits]") {
  const std::string_view model = GENERATE("lenet", "resnet20", "alexnet");
  const Network net = thin(model);
  for (const int ranks : {1, 2, 3, 4, 6, 8})
    for (const Planned& plan : plans_for(net, ranks, 5)) {
      INFO(model << " on " << ranks << " ranks, " << plan.name << "\n"
                 << describe(net, plan.splits));
      const PlaceOptions options{.batch = batch, .splits = plan.splits};
      const Optimizer adam = Adam{};
      const auto predicted = predict_memory(net, options, ranks, adam.rule());
      check_same(predicted, placed_memory(net, options, ranks, adam));
      CHECK(predicted[0].optimizer == 2 * predicted[0].gradients);
    }
}

namespace {

struct Change {
  const char* name;
  void (*make)(PlaceOptions&);
};

/// In which a network may be placed otherwise.
const Change changes[] = {
    {"frozen",
     [](PlaceOptions& o) {
       o.frozen = {"*conv*", "*bn1*"};
     }},
    {"all but the last frozen",
     [](PlaceOptions& o) {
       o.frozen = {"layer*", "bn1*", "conv*"};
     }},
    {"recompute", [](PlaceOptions& o) { o.recompute.assign(o.splits.size(), true); }},
    {"sharded", [](PlaceOptions& o) { o.shard_optimizer = true; }},
    {"micro-batches", [](PlaceOptions& o) { o.micro_batches = 2, o.bucket_mb = 0; }},
    {"fuse", [](PlaceOptions& o) { o.fuse = true; }},
    {"inference", [](PlaceOptions& o) { o.training = false; }},
    {"narrow, sharded, frozen, fuse", [](PlaceOptions& o) {
       o.dtype = DType::bf16, o.shard_optimizer = true, o.fuse = true, o.frozen = {"*.weight"};
     }}};

}  // namespace

TEST_CASE("predicted memory is what placing takes however that is done", "[splits]") {
  const Network net = thin("resnet20");
  const Optimizer sgd = SGD{.momentum = 0.9};
  for (const int ranks : {3, 4})
    for (const Planned& plan : plans_for(net, ranks, 11))
      for (const Change& change : changes) {
        INFO(ranks << " ranks, " << plan.name << ", " << change.name << "\n"
                   << describe(net, plan.splits));
        PlaceOptions options{.batch = batch, .splits = plan.splits};
        change.make(options);
        check_same(predict_memory(net, options, ranks, sgd.rule()),
                   placed_memory(net, options, ranks, sgd));
      }
}

TEST_CASE("of ranks that are alike one stands for all", "[splits]") {
  const std::string_view model = GENERATE("lenet", "resnet20", "alexnet");
  const Network net = thin(model);
  constexpr std::int64_t many = 48;
  for (const int ranks : {12, 48}) {
    std::vector<Planned> plans;
    for (const std::string_view name : plan_names())
      plans.push_back(
          {std::string(name), splits_of(decide(built_in_plan(name, net, many, ranks), net, many))});
    std::uint64_t draw = 0;
    for (int i = 0; i < 2 && ranks < 48; ++i)  // where few are alike
      plans.push_back({text("random ", i), random_plan(net, ranks, many, Random(3), draw)});
    for (const Planned& plan : plans) {
      INFO(model << " on " << ranks << " ranks, " << plan.name << "\n"
                 << describe(net, plan.splits));
      const PlaceOptions options{.batch = many, .splits = plan.splits};
      const auto predicted = predict_memory(net, options, ranks);
      std::vector<Memory> each;
      for (int r = 0; r < ranks; ++r) each.push_back(imagine(net, options, r, ranks).memory());
      check_same(predicted, each);
    }
  }
}

namespace {

/// Numbers drawn one after the other.
struct Draw {
  Random random;
  std::uint64_t drawn = 0;
  int operator()(int least, int most) {
    return std::min(most, least + int(random.uniform(drawn++) * double(most - least + 1)));
  }
};

/// One to three layers, most of them with windows; none where these do not fit.
std::optional<Network> small_windows(Draw& draw) {
  const std::int64_t c = draw(1, 12), h = draw(1, 24), w = draw(1, 6);
  Network net({.c = c, .h = h, .w = w});
  try {
    for (int left = draw(1, 3); left > 0; --left) {
      const int kind = draw(0, 5), window = draw(1, 6), stride = draw(1, 3);
      const int top = draw(0, 3), bottom = draw(0, 3), channels = draw(1, 12);
      const Pad pad{top, 0, bottom, 0}, less{top % window, 0, bottom % window, 0};
      if (kind < 3)
        net.add<Conv2D>(
            {.channels = channels, .kernel = {window, 1}, .stride = stride, .pad = pad});
      else if (kind == 3)
        net.add<MaxPool2D>({.window = {window, 1}, .stride = stride, .pad = less});
      else if (kind == 4)
        net.add<LRN>({.size = window / 2 * 2 + 1});
      else
        net.add<ReLU>();
    }
    if (draw(0, 2) == 0) net.add<Flatten>(), net.add<Linear>({.features = draw(1, 12)});
  } catch (const Error&) {
    return {};
  }
  return net;
}

/// A legal split of each layer along one or two axes, half of them into parts that are not alike.
std::vector<Split> uneven_plan(const Network& net, int ranks, std::int64_t samples, Draw& draw) {
  std::vector<Split> plan;
  for (const auto& v : net.graph()) {
    plan.push_back(input_split(samples, ranks));
    for (int tries = v.layer ? 30 : 0; tries > 0; --tries) {
      Split split;
      int left = draw(1, ranks);
      int* const ways[] = {&split.batch, &split.channel, &split.input, &split.height, &split.width};
      Shares* const shares[] = {&split.shares.batch, &split.shares.channel, &split.shares.input,
                                &split.shares.height, &split.shares.width};
      for (int axes = 0; axes < 2; ++axes) {
        const int axis = draw(0, 4), parts = draw(1, left);
        *ways[axis] = parts, left /= parts;
        shares[axis]->clear();
        for (int i = draw(0, 1) ? parts : 0; i > 0 && parts > 1; --i)
          shares[axis]->push_back(draw(1, 3));
      }
      if (!why_illegal(*v.layer, net.input_shapes(v, samples), split, ranks).empty()) continue;
      plan.back() = split;
      break;
    }
  }
  return plan;
}

}  // namespace

TEST_CASE("ranks that differ by a window, a part or a neighbour are told apart", "[splits]") {
  int ranks_in_all = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    Draw draw{Random(seed)};
    const int ranks = draw(2, 9);
    const std::int64_t samples = draw(ranks, ranks + 5);
    const std::optional<Network> net = small_windows(draw);
    if (!net) continue;
    const PlaceOptions options{.batch = samples,
                               .splits = uneven_plan(*net, ranks, samples, draw),
                               .training = draw(0, 3) > 0};
    const auto predicted = predict_memory(*net, options, ranks);
    for (int r = 0; r < ranks; ++r) {
      if (imagine(*net, options, r, ranks).memory() == predicted[std::size_t(r)]) continue;
      FAIL_CHECK("seed " << seed << ", rank " << r << " of " << ranks << "\n"
                         << describe(*net, options.splits));
    }
    ranks_in_all += ranks;
  }
  CHECK(ranks_in_all > 10000);
}

TEST_CASE("ranks are told apart by what their windows reach, though nothing is exchanged") {
  // Of 15 rows each rank has 5 and makes 3 or 4 of y, from every other row, three above the first:
  // those from 5 to 9, and those from 11 on, whose last is padding.
  Network net({.c = 8, .h = 15, .w = 1});
  net.add<Conv2D>({.channels = 2, .kernel = 1, .stride = {2, 1}, .pad = {3, 0, 2, 0}});
  const PlaceOptions options{.batch = 4, .splits = {{.batch = 3}, {.height = 3}}};
  const auto predicted = predict_memory(net, options, 3);
  CHECK(predicted[1].messages == predicted[2].messages);
  CHECK(predicted[1].workspace == predicted[2].workspace + 4 * 8 * sizeof(float));
}

TEST_CASE("a network on imagined ranks has the steps, costs and buckets of a real one",
          "[splits]") {
  const Network net = thin("resnet20");
  for (const int ranks : {3, 4})
    for (const Planned& plan : plans_for(net, ranks, 23)) {
      INFO(ranks << " ranks, " << plan.name << "\n" << describe(net, plan.splits));
      PlaceOptions options{.batch = batch, .splits = plan.splits, .frozen = {"layer1*"}};
      options.recompute.assign(net.graph().size(), true), options.bucket_mb = 0.001;
      run_ranks(ranks, [&](World& world) {
        PlaceOptions mine = options;
        mine.backend = make_backend("reference", options.dtype), mine.ranks = world;
        const PlacedNetwork real(net, mine), imagined = imagine(net, options, world.rank(), ranks);
        check(imagined.rows() == real.rows(), "rows");
        check(imagined.steps().size() == real.steps().size(), "the number of steps");
        for (std::size_t i = 0; i < real.steps().size(); ++i) {
          const Step &a = imagined.steps()[i], &b = real.steps()[i];
          check(a.name == b.name && a.kind == b.kind && a.inputs == b.inputs, i, ": ", a.name);
          check(a.output.form() == b.output.form() && a.output.box == b.output.box, a.name, " y");
          check(a.blocks.same(b.blocks) && a.active() == b.active(), a.name, " blocks");
          check(a.needs_grad == b.needs_grad && a.trained == b.trained, a.name, " gradients");
          check(a.recomputed == b.recomputed && a.recomputes == b.recomputes, a.name, " again");
          check(a.memory == b.memory, a.name, " memory");
        }
        check(imagined.memory() == real.memory(), "memory");
        check(imagined.buckets().size() == real.buckets().size(), "the number of buckets");
        for (std::size_t i = 0; i < real.buckets().size(); ++i) {
          const Bucket &a = imagined.buckets()[i], &b = real.buckets()[i];
          check(a.ranks.size() == b.ranks.size() && a.ranks.rank() == b.ranks.rank(), "its ranks");
          check(a.step == b.step && a.gradients.form() == b.gradients.form(), "bucket ", i);
        }
        const auto &all = imagined.all_parameters(), &theirs = real.all_parameters();
        check(all.size() == theirs.size(), "the number of parameters");
        for (std::size_t i = 0; i < all.size(); ++i) {
          check(all[i].name == theirs[i].name && all[i].frozen == theirs[i].frozen, all[i].name);
          for (const int r : {0, world.rank()})
            check(all[i].blocks[std::size_t(r)] == theirs[i].blocks[std::size_t(r)], all[i].name);
        }
        const auto decisions = decide(built_in_plan("data", net, batch, ranks), net,
                                      batch);  // any: the messages are net's
        check(plan_table(decisions, imagined) == plan_table(decisions, real), "the table");
      });
    }
}

TEST_CASE("a thousand ranks are predicted one by one") {
  // Under data parallelism each has what one of eight has that get as many samples.
  const Network net = make_model("resnet50");
  const auto few = predict_memory(net, {.batch = 8 * 4}, 8);
  const auto many = predict_memory(net, {.batch = 1024 * 4}, 1024);
  REQUIRE(many.size() == 1024);
  for (const Memory& m : many) CHECK(m == few[0]);
  // Where the optimizer is sharded, a part of each bucket and at most a cache line more.
  const PlaceOptions shards{.batch = 1024 * 4, .shard_optimizer = true};
  const UpdateRule rule = Optimizer(SGD{.momentum = 0.9}).rule();
  const Memory first = predict_memory(net, shards, 1024, rule)[0];
  const auto net_buckets = imagine(net, shards, 0, 1024).buckets().size();
  CHECK(first.optimizer >= few[0].gradients / 1024);
  CHECK(first.optimizer <= few[0].gradients / 1024 + net_buckets * 64);
}

TEST_CASE("a network on imagined ranks never runs") {
  const Network net = thin("lenet");
  PlacedNetwork placed = imagine(net, {.batch = 8}, 1, 2);
  const std::string refused =
      "the ranks on which the network is placed are imagined: it never runs, and has no buffers";
  CHECK_THROWS_WITH(placed.allocate(), refused);
  CHECK_THROWS_WITH(placed.initialize(1), ContainsSubstring("must have its buffers"));
  Stream s;
  Context context{s};
  CHECK_THROWS_WITH(placed.forward(context), ContainsSubstring("no buffers yet"));
  CHECK_THROWS_WITH(imagine(net, {.batch = 8}, 0, 1).allocate(), refused);
  CHECK_THROWS_WITH(net.place({.batch = 8,
                               .backend = make_backend("reference", DType::f32),
                               .ranks = ImaginedRanks(2).as(0)}),
                    refused);
  CHECK_THROWS_WITH(imagine(net, {.batch = 8}, 2, 2), "expected a rank from 0 to 1, got 2");
}

TEST_CASE("predicted memory knows how else a network is placed", "[splits]") {
  const Network net = thin("resnet20");
  const Optimizer sgd = SGD{.momentum = 0.9};
  const auto changed = [&](auto&& change) {
    PlaceOptions o{.batch = batch};
    change(o);
    const auto predicted = predict_memory(net, o, 2, sgd.rule());
    check_same(predicted, placed_memory(net, o, 2, sgd));
    return predicted[0];
  };
  const Memory plain = changed([](PlaceOptions&) {});
  const Memory wide = changed([](PlaceOptions& o) { o.dtype = DType::f64; });
  CHECK(wide.activations > 1.9 * double(plain.activations));
  const Memory half = changed([](PlaceOptions& o) { o.dtype = DType::bf16; });
  CHECK(half.activations < 0.6 * double(plain.activations));
  CHECK(half.gradients >= plain.gradients);
  CHECK(half.optimizer > 1.9 * double(plain.optimizer));  // with master weights
  changed([](PlaceOptions& o) {
    o.dtype = DType::bf16, o.dtype.gradients = DType::bf16, o.shard_optimizer = true;
    o.micro_batches = 2, o.frozen = {"*.weight"};
  });
  const Memory again =
      changed([&](PlaceOptions& o) { o.recompute.assign(net.graph().size(), true); });
  CHECK(again.activations != plain.activations);
  const Memory shard = changed([](PlaceOptions& o) { o.shard_optimizer = true; });
  CHECK(shard.optimizer < plain.optimizer);
  const Memory parts = changed([](PlaceOptions& o) { o.micro_batches = 2; });
  CHECK(parts.gradients == 2 * plain.gradients);
  CHECK(changed([](PlaceOptions& o) { o.training = false; }).gradients == 0);
}

TEST_CASE("a prediction allocates no buffers and needs no ranks") {
  if (!counts_allocations()) return;
  const Network net = make_model("vgg16");  // would take gigabytes
  const Allocations seen;
  const auto predicted = predict_memory(net, {.batch = 256}, 4);
  CHECK(seen.largest() < std::size_t(1) << 20);
  REQUIRE(predicted.size() == 4);
  CHECK(predicted[0].activations > std::size_t(3) << 30);
  CHECK(predicted[0].parameters >= std::size_t(4) * 138357544);
}

TEST_CASE("what cannot be placed is not predicted either") {
  const Network net = thin("lenet");
  CHECK_THROWS_WITH(predict_memory(net, {.batch = 8}, 0),
                    "the number of ranks must be positive, got 0");
  CHECK_THROWS_WITH(predict_memory(net, {.batch = 1}, 2),
                    ContainsSubstring("a global batch of 1 is smaller than the 2 ranks"));
  const auto kernel =
      planning_backend()->conv({.channels = 2, .kernel = 3}, {{1, 2, 5, 5}, DType::f32, {}});
  CHECK(kernel->workspace == 4 * 18 * 9);
  const Tensor x({1, 2, 5, 5}, DType::f32, planning_backend()->memory());
  CHECK_THROWS_WITH(copy_bytes(x, x),
                    "a network that was placed for planning has no memory to run in");
}
