// Parts that are unlike by intent: 3:1 of samples, rows, columns or channels.
#include "catch.hpp"
#include "support/random_plans.hpp"
#include "support/splits.hpp"

#include <lamina/train/data/loader.hpp>

using namespace lamina;
using namespace lamina::test;

TEST_CASE("shares: parts cover an axis in proportion, and none is empty") {
  CHECK((part(8, Shares{3, 1}, 0) == Part{0, 6} && part(8, Shares{3, 1}, 1) == Part{6, 2}));
  CHECK((part(9, Shares{3, 1}, 0) == Part{0, 7} && part(2, Shares{3, 1}, 0) == Part{0, 1}));
  CHECK((part(2, Shares{1, 3}, 0) == Part{0, 1} && part(4, Shares{1, 3}, 1) == Part{1, 3}));
  for (const Shares& shares : {Shares{3, 1}, {1, 3}, {1, 1, 1}, {1, 5, 1, 1}, {9, 1, 1}, {7}}) {
    double all = 0;
    for (const int s : shares) all += s;
    for (std::int64_t extent = 0; extent < 60; ++extent) {
      const bool enough = extent >= std::int64_t(shares.size());
      std::int64_t end = 0;
      for (int i = 0; i < int(shares.size()); ++i) {
        const Part p = part(extent, shares, i);
        CHECK(p.begin == end);
        end = p.end();
        if (enough) CHECK(p.size >= 1);
        const double exact = double(extent) * shares[std::size_t(i)] / all;
        if (exact > 2 && extent > 30) CHECK(std::abs(double(p.size) - exact) <= 3);
      }
      CHECK(end == extent);
    }
  }
  const Split split{.batch = 2, .height = 3, .shares = {.batch = {1, 3}, .height = {1, 2, 1}}};
  CHECK(split.of_output({8, 5, 8, 3}) == Shape{6, 5, 4, 3});
  CHECK((split.smallest(Axis::batch, 8) == 2 && split.smallest(Axis::height, 8) == 2));
  CHECK(split.part(Axis::height, 8, split.place(4)) == Part{2, 4});
}

namespace {

/// 3:1 and 1:3 along each axis, alone and with others, on two and on four ranks.
std::vector<Split> uneven(int ranks) {
  if (ranks == 2)
    return {{.batch = 2, .shares = {.batch = {3, 1}}},
            {.batch = 2, .shares = {.batch = {1, 3}}},
            {.channel = 2, .shares = {.channel = {3, 1}}},
            {.channel = 2, .shares = {.channel = {1, 3}}},
            {.input = 2, .shares = {.input = {3, 1}}},
            {.input = 2, .shares = {.input = {1, 3}}},
            {.height = 2, .shares = {.height = {3, 1}}},
            {.height = 2, .shares = {.height = {1, 3}}},
            {.width = 2, .shares = {.width = {3, 1}}}};
  return {{.batch = 4, .shares = {.batch = {3, 1, 2, 2}}},
          {.batch = 2, .channel = 2, .shares = {.batch = {3, 1}, .channel = {1, 3}}},
          {.batch = 2, .height = 2, .shares = {.batch = {1, 3}, .height = {3, 1}}},
          {.channel = 2, .height = 2, .shares = {.channel = {3, 1}}},
          {.channel = 2, .input = 2, .shares = {.channel = {1, 3}, .input = {3, 1}}},
          {.height = 2, .width = 2, .shares = {.height = {3, 1}, .width = {1, 3}}},
          {.height = 4, .shares = {.height = {1, 3, 1, 1}}}};
}

/// Under each of them, with all other layers by samples: in even parts, or as unlike as the input.
template <class Build>
int check_uneven(Build&& build) {
  const StepOn base{.batch = 8};
  const Whole alone = step_on(1, build, base);
  const Network net = build();
  const auto it = std::ranges::find(net.graph(), "it", &Network::Vertex::name);
  const auto xs = net.input_shapes(*it, base.batch);
  int tried = 0;
  for (const int ranks : {2, 4})
    for (const Split& split : uneven(ranks)) {
      if (!why_illegal(*it->layer, xs, split, ranks).empty()) continue;
      for (const bool input : {false, true}) {
        StepOn o = base;
        if (input)
          for (const auto& v : net.graph()) o.splits[v.name] = uneven(ranks)[0];
        o.splits["it"] = split;
        std::string where;
        const double d = difference(alone, step_on(ranks, build, o), &where);
        INFO(split.text() << " on " << ranks << " ranks, " << where);
        CHECK(d < 1e-10);
        ++tried;
      }
    }
  return tried;
}

}  // namespace

TEST_CASE("shares: layers under unlike parts equal one rank", "[splits]") {
  CHECK(check_uneven(between<Conv2D>({.channels = 6, .kernel = 3, .pad = 1})) == 32);
  CHECK(check_uneven(between<Conv2D>({.channels = 8, .kernel = 3, .stride = 2, .groups = 4})) > 20);
  CHECK(check_uneven(between<Linear>({.features = 6})) > 10);
  CHECK(check_uneven([] {  // before it a bias has no gradient
          Network net({.c = 3, .h = 8, .w = 8});
          net.add<Conv2D>({.channels = 8, .kernel = 3, .bias = false}, "first");
          net.add<BatchNorm>({.global = true}, "it");
          net.add<ReLU>();
          net.add<Linear>({.features = 5}, "fc");
          net.add<SoftmaxCrossEntropy>({}, "loss");
          return net;
        }) > 20);
  CHECK(check_uneven(between<MaxPool2D>({.window = 3, .stride = 2, .pad = 1})) > 20);
  CHECK(check_uneven(between<AvgPool2D>({.window = 3, .stride = 1, .pad = 1})) > 20);
  CHECK(check_uneven(between<GlobalAvgPool>({})) > 20);
  CHECK(check_uneven(between<LRN>({.size = 5})) > 20);
  CHECK(check_uneven(between<Dropout>({.rate = 0.3})) > 20);
  CHECK(check_uneven(between<Softmax>({})) > 8);
  CHECK(check_uneven(between<Flatten>({})) >= 12);
  CHECK(check_uneven(between<PadChannels>({.channels = 11})) > 20);
}

TEST_CASE("shares: sums, concatenations and the loss under unlike parts", "[splits]") {
  const auto join = [](auto type) {
    using L = typename decltype(type)::type;
    return [] {
      Network net({.c = 3, .h = 8, .w = 8});
      const Node a = net.input().add<Conv2D>({.channels = 8, .kernel = 3, .pad = 1}, "a");
      net.join<L>({a, a.add<ReLU>({}, "b")}, {}, "it");
      net.add<Linear>({.features = 6}, "fc");
      net.add<SoftmaxCrossEntropy>({}, "loss");
      return net;
    };
  };
  CHECK(check_uneven(join(std::type_identity<Add>())) > 20);
  CHECK(check_uneven(join(std::type_identity<Concat>())) > 20);
  CHECK(check_uneven([] {
          Network net({.c = 3, .h = 4, .w = 4});
          net.add<Linear>({.features = 8}, "fc");
          net.add<SoftmaxCrossEntropy>({.label_smoothing = 0.1}, "it");
          return net;
        }) > 8);
}

TEST_CASE("shares: whole networks train as on one rank", "[splits]") {
  const std::string_view model = GENERATE("lenet", "resnet20");
  const Network net = thin(model);
  constexpr std::int64_t batch = 8;
  const auto losses = [&](int ranks, const std::vector<Split>& splits) {
    std::vector<double> all;
    run_ranks(ranks, [&](World& world) {
      const auto mine = five_losses(
          net, world,
          {.batch = batch, .backend = "reference", .dtype = DType::f64, .splits = splits});
      if (world.rank() == 0) all = mine;
    });
    return all;
  };
  const auto alone = losses(1, {});
  for (const int ranks : {2, 4}) {
    const auto wishes = uneven(ranks);
    std::vector<Split> splits = {wishes[0]};  // the input
    std::vector<int> used(wishes.size());
    for (std::size_t i = 1; i < net.graph().size(); ++i) {
      const auto& v = net.graph()[i];
      const std::size_t number = (i + i / 3) % wishes.size();
      const Split& wish = wishes[number];
      const bool legal = why_illegal(*v.layer, net.input_shapes(v, batch), wish, ranks).empty();
      splits.push_back(i % 3 && legal ? wish : input_split(batch, ranks));
      used[number] += i % 3 && legal;
    }
    INFO(model << " on " << ranks << " ranks\n" << describe(net, splits));
    const auto shared = losses(ranks, splits);
    REQUIRE(shared.size() == alone.size());
    for (std::size_t i = 0; i < alone.size(); ++i)
      CHECK(std::abs(shared[i] - alone[i]) < 1e-10 * std::abs(alone[i]));
    CHECK(std::ranges::count_if(used, [](int n) { return n > 0; }) > 3);
  }
}

TEST_CASE("shares: micro-batches and evaluation take every sample once", "[splits]") {
  const Network net = thin("lenet");
  const Shape sample = net.sample();
  const auto data = synthetic({.limit = 35,
                               .channels = int(sample.c),
                               .height = int(sample.h),
                               .width = int(sample.w),
                               .classes = 10,
                               .seed = 3});
  const auto run = [&](int ranks, const Split& split, std::int64_t evaluation) {
    std::vector<double> all;
    run_ranks(ranks, [&](World& world) {
      TrainerOptions o{.batch = 16, .micro_batch = 8, .evaluation_batch = evaluation};
      o.backend = "reference", o.dtype = DType::f64;
      if (ranks > 1) o.splits.assign(net.graph().size(), split);
      Trainer t(net, world, SGD{.rate = 0.02}, o);
      Loader loader = t.loader(*data, true);
      const double first = t.step(loader, 10).loss, second = t.step(loader, 10).loss;
      const Evaluation e = t.evaluate(*data);
      if (world.rank() == 0) all = {first, second, e.loss, e.top1, e.top5, double(e.samples)};
    });
    return all;
  };
  for (const std::int64_t evaluation : {8, 10, 5}) {
    const auto alone = run(1, {}, evaluation);
    CHECK(alone.back() == 35);
    for (const int ranks : {2, 4}) {
      const auto shared = run(ranks, uneven(ranks)[0], evaluation);
      INFO(ranks << " ranks, evaluation of " << evaluation << " samples at once");
      REQUIRE(shared.size() == alone.size());
      for (std::size_t i = 0; i < alone.size(); ++i)
        CHECK(std::abs(shared[i] - alone[i]) <= 1e-10 * std::abs(alone[i]));
    }
  }
}

TEST_CASE("shares: a profile is made where the loss lies otherwise than the input", "[splits]") {
  const Network net = thin("lenet");
  run_ranks(2, [&](World& world) {
    std::vector<Split> splits(net.graph().size(), uneven(2)[0]);
    splits.back() = {.batch = 2};
    PlacedNetwork placed = net.place({.batch = 8,
                                      .backend = make_backend("reference", DType::f64),
                                      .ranks = world,
                                      .splits = splits,
                                      .dtype = DType::f64});
    placed.initialize(1);
    const Profile p = profile(placed, world, {.warmup = 0, .steps = 1, .alone = false});
    check(p.rows.size() > 8, "rows are missing");
  });
}

TEST_CASE("shares: the loader serves each rank its rows") {
  const auto data = synthetic({.limit = 20, .channels = 1, .height = 2, .width = 2, .seed = 3});
  const auto labels_of = [&](LoaderOptions o) {
    Loader loader(*data, o);
    const Batch& b = loader.next();
    return std::vector<std::int32_t>(b.labels(), b.labels() + b.size);
  };
  for (const int parts : {1, 2}) {
    LoaderOptions o{.global_batch = 16, .micro_batches = parts, .seed = 3};
    const auto whole = labels_of(o);
    o.ranks = 3, o.shares = {3, 1};  // and none for the third
    std::vector<std::vector<std::int32_t>> by_rank;
    for (o.rank = 0; o.rank < 3; ++o.rank) by_rank.push_back(labels_of(o));
    CHECK((by_rank[0].size() == 12 && by_rank[1].size() == 4 && by_rank[2].empty()));
    std::vector<std::int32_t> joined;
    for (int i = 0; i < parts; ++i)
      for (const auto& rows : by_rank) {
        const auto some = std::ptrdiff_t(rows.size()) / parts;
        joined.insert(joined.end(), rows.begin() + i * some, rows.begin() + (i + 1) * some);
      }
    CHECK(joined == whole);
  }
  CHECK_THROWS_WITH(Loader(*data, {.global_batch = 8, .ranks = 2, .shares = {1, 1, 2}}),
                    "there are shares for 3 ranks, but only 2");
}

TEST_CASE("shares: batch norm needs two values in the smallest part") {
  const std::vector<Shape> x{{4, 3, 1, 1}};
  const Split even{.batch = 2}, uneven{.batch = 2, .shares = {.batch = {3, 1}}};
  CHECK(why_illegal(BatchNorm({}), x, even, 2).empty());
  CHECK_THAT(why_illegal(BatchNorm({}), x, uneven, 2),
             ContainsSubstring("split batch:3:1: batch norm needs more than one value"));
  CHECK(why_illegal(BatchNorm({.global = true}), x, uneven, 2).empty());
}

TEST_CASE("shares: the input takes no other split, and no broken shares") {
  const Network net = thin("lenet");
  const auto place = [&](const Split& input) {
    run_ranks(2, [&](World& world) {
      std::vector<Split> splits(net.graph().size(), input_split(8, 2));
      splits[0] = input;
      const PlacedNetwork placed(net, {.batch = 8,
                                       .backend = make_backend("reference", DType::f64),
                                       .ranks = world,
                                       .splits = splits,
                                       .dtype = DType::f64});
      check(placed.rows() == (world.rank() == 0 ? Part{0, 6} : Part{6, 2}), "other rows");
    });
  };
  CHECK_NOTHROW(place({.batch = 2, .shares = {.batch = {3, 1}}}));
  CHECK_THROWS_WITH(place({.batch = 2, .shares = {.batch = {3}}}),
                    ContainsSubstring("expected a share for each of 2 parts, got 1"));
  CHECK_THROWS_WITH(place({.height = 2}), ContainsSubstring("the input is split by batch:2"));
}
