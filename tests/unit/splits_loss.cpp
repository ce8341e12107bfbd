// The loss under splits of samples and classes, on as many ranks as the rest or fewer: loss, hits
// and gradients are those of one rank.
#include "catch.hpp"
#include "support/peek.hpp"
#include "support/splits.hpp"
#include "support/training.hpp"

using namespace lamina;
using namespace lamina::test;

namespace {

/// Ten classes; the gradients of two layers tell whether dx is right.
auto classifier(double label_smoothing) {
  return [label_smoothing] {
    Network net({.c = 3, .h = 4, .w = 4});
    net.add<Conv2D>({.channels = 4, .kernel = 3}, "conv");
    net.add<Linear>({.features = 10}, "fc");
    net.add<SoftmaxCrossEntropy>({.label_smoothing = label_smoothing}, "it");
    return net;
  };
}

/// {loss, top-1 hits, top-5 hits, rows} of these logits, row by row, as every rank of the loss
/// finds them.
std::vector<double> totals(int ranks, const Split& split, const std::vector<double>& logits,
                           const std::vector<std::int32_t>& labels) {
  const auto n = std::int64_t(labels.size()), classes = std::int64_t(logits.size()) / n;
  std::vector<std::vector<double>> found(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](World& world) {
    Network layers({.c = classes});
    layers.add<SoftmaxCrossEntropy>({}, "loss");
    PlacedNetwork net = layers.place({.batch = n,
                                      .backend = make_backend("reference", DType::f64),
                                      .ranks = world,
                                      .splits = {{.batch = ranks}, split},
                                      .dtype = DType::f64,
                                      .training = false});
    const auto me = std::size_t(world.rank());
    std::copy_n(logits.begin() + net.rows().begin * classes, net.x().shape.size(),
                peek(net.x()).as<double>());
    const Part mine = Blocks::of({n, 1, 1, 1}, split, Axis::batch, ranks).box[me].n;
    const Tensor part({mine.size, 1, 1, 1}, DType::i32, net.placing().backend->memory());
    std::copy_n(labels.begin() + mine.begin, mine.size, peek(part).as<std::int32_t>());
    Stream stream;
    Context context{stream, false};
    context.targets = part;
    net.forward(context);
    if (!net.steps().back().active()) return;
    const auto y = peek(net.y()).elements<double>();
    found[me].assign(y.begin(), y.begin() + 4);
  });
  for (int r = 1; r < split.ways(); ++r)  // bit by bit, even if it is not a number
    CHECK(std::memcmp(found[std::size_t(r)].data(), found[0].data(), 4 * sizeof(double)) == 0);
  return found[0];
}

/// Rows of few different logits.
std::vector<double> full_of_ties(std::int64_t size) {
  std::vector<double> logits;
  for (std::int64_t i = 0; i < size; ++i)
    logits.push_back(std::floor(4 * Random(5).uniform(std::uint64_t(i))));
  return logits;
}

}  // namespace

TEST_CASE("the loss under every split equals one rank") {
  const Split most{.channel = 10};
  check_all(classifier(0), most);
  check_all(classifier(0.1), most);
  check_all(classifier(0.1), most, 1e-10, {.training = false}, {4, 6});
}

TEST_CASE("the loss under every split on the fast back end") {
  if (!has_onednn()) return;
  check_all(classifier(0.1), {.channel = 10}, 1e-4, {.backend = "onednn", .dtype = DType::f32},
            {2, 3, 4});
}

TEST_CASE("the loss on half of the ranks, next to layers that are split otherwise") {
  const auto build = classifier(0.1);
  const Whole alone = step_on(1, build, {});
  for (const Split& loss : {Split{.channel = 3}, Split{.batch = 2}, Split{.batch = 2, .channel = 2},
                            Split{.batch = 3, .channel = 2}, Split{}}) {
    INFO(loss.text());
    const Whole split = step_on(
        8, build,
        {.splits = {{"conv", {.height = 2, .width = 2}}, {"fc", {.channel = 5}}, {"it", loss}}});
    CHECK(difference(alone, split) < 1e-10);
  }
}

TEST_CASE("hits are counted alike where logits tie across ranks") {
  constexpr std::int64_t n = 40, classes = 10;
  const std::vector<double> logits = full_of_ties(n * classes);
  std::vector<std::int32_t> labels;
  double loss = 0, top1 = 0, top5 = 0, rows = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    // The first ranks have no label at all.
    const std::int64_t label = i < 9 || i % 3 == 0 ? -1 - i : 3 * i % classes;
    labels.push_back(std::int32_t(label));
    if (label < 0) continue;
    const double* row = &logits[std::size_t(i * classes)];
    int ahead = 0;
    double sum = 0;
    for (std::int64_t k = 0; k < classes; ++k) {
      ahead += row[k] > row[label] || (row[k] == row[label] && k < label);
      sum += std::exp(row[k]);
    }
    loss += std::log(sum) - row[label];
    top1 += ahead < 1, top5 += ahead < 5, ++rows;
  }
  loss /= rows;
  REQUIRE((0 < top1 && top1 < top5 && top5 < rows && rows == 20));
  for (const Split& split : {Split{}, Split{.channel = 2}, Split{.channel = 3}, Split{.channel = 4},
                             Split{.channel = 10}, Split{.batch = 2, .channel = 4},
                             Split{.batch = 3, .channel = 3}, Split{.batch = 10}}) {
    INFO(split.text());
    const std::vector<double> y = totals(10, split, logits, labels);
    CHECK(y[0] == Approx(loss).epsilon(1e-12));
    CHECK(y[1] == top1);
    CHECK(y[2] == top5);
    CHECK(y[3] == rows);
  }
}

TEST_CASE("a batch in which no row counts has no loss") {
  for (const Split& split : {Split{}, Split{.batch = 2}, Split{.channel = 2}})
    CHECK(totals(2, split, {1, 2, 3, 4, 5, 6, 7, 8}, {-1, -100}) == std::vector<double>(4));
}

TEST_CASE("logits whose exponentials overflow, on several ranks") {
  // The largest logit is on another rank than the label's.
  const std::vector<double> y =
      totals(2, {.channel = 2}, {-900, 1000, 1001, 5000, 1e4, 1e4, 1e4, 1e4}, {0, 3});
  CHECK(y[0] == Approx((5900 + std::log(4)) / 2).epsilon(1e-14));
}

TEST_CASE("a label whose logit is not a number is no hit, on several ranks neither") {
  const double nan = std::nan("");
  for (const Split& split : {Split{}, Split{.channel = 2}, Split{.channel = 4}}) {
    const std::vector<double> y =
        totals(4, split, {1, 2, 3, nan, 1, 2, 3, 4, 0, 0, 9, 0, 0, 0, 0, 1}, {3, 3, 2, 3});
    CHECK(std::isnan(y[0]));
    CHECK(y[1] == 3);
    CHECK(y[2] == 3);
  }
}

TEST_CASE("what a loss that is split by classes sends") {
  const SoftmaxCrossEntropy loss({});
  const std::vector<Shape> x{{8, 10, 1, 1}};
  const Cost c = loss.cost(x, {.batch = 2, .channel = 4}, DType::f32);
  CHECK(c.forward.flops == 5 * 4 * 3);
  REQUIRE(c.messages.size() == 3);
  CHECK(c.messages[0].axes == Axis::batch);
  CHECK((c.messages[1].bytes == (4 * 2 + 1) * 8 && c.messages[1].axes == Axis::channel));
  CHECK((c.messages[2].bytes == 4 * 3 * 8 && c.messages[2].axes == Axis::channel));
}

TEST_CASE("more parts than classes are refused") {
  const auto place = [] {
    step_on(11, classifier(0), {.batch = 11, .splits = {{"it", {.channel = 11}}}});
  };
  CHECK_THROWS_WITH(place(), ContainsSubstring("it (SoftmaxCrossEntropy): split channel:11: there "
                                               "are only 10 channels to be cut"));
}

namespace {

struct Trained {
  std::vector<double> losses;
  Evaluation evaluation;
};

/// Five steps, and the loss on data that do not fill the last batch.
Trained train(int ranks, const std::map<std::string, Split>& splits) {
  Trained result;
  const auto data = small_data(), validation = small_data(50, false);
  std::vector<std::vector<double>> all(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](World& world) {
    set_threads(1);
    Network net = small_network(true);
    net.add<SoftmaxCrossEntropy>({.label_smoothing = 0.1}, "loss");
    Trainer trainer(net, world, SGD{.rate = 0.05, .momentum = 0.9},
                    {.batch = 24,
                     .backend = "reference",
                     .dtype = DType::f64,
                     .splits = splits_of(net, {.splits = splits}, ranks)});
    auto& mine = all[std::size_t(world.rank())];
    mine = losses(trainer, *data, 5, {.epochs = 10});
    const Evaluation e = trainer.evaluate(*validation);
    for (const double v : {e.loss, e.top1, e.top5}) mine.push_back(v);
    if (world.rank() == 0) result = {mine, e};
  });
  for (const auto& mine : all) CHECK(mine == all[0]);  // bit by bit
  return result;
}

}  // namespace

TEST_CASE("training with a loss on other ranks than the samples equals one rank") {
  const Trained one = train(1, {});
  REQUIRE(one.losses.size() == 8);
  CHECK(one.evaluation.samples == 50);
  const auto check_same = [&](const std::map<std::string, Split>& splits) {
    const Trained four = train(4, splits);
    CHECK(four.evaluation.samples == 50);
    for (std::size_t i = 0; i < one.losses.size(); ++i)
      CHECK(four.losses[i] == Approx(one.losses[i]).epsilon(1e-11));
  };
  for (const Split& loss : {Split{.channel = 2}, Split{.batch = 2}, Split{.channel = 4},
                            Split{.batch = 2, .channel = 2}, Split{}}) {
    INFO(loss.text());
    check_same({{"loss", loss}});
  }
  // Running averages, of which not all ranks have the same channels, or any.
  check_same({{"norm", {.channel = 2}}, {"loss", {.batch = 2}}});
  check_same({{"norm", {.batch = 2, .channel = 2}}});
  check_same({{"norm", {.batch = 2, .height = 2}}, {"loss", {.channel = 4}}});
}
