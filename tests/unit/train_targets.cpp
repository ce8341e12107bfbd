// Targets of other forms than a label for each sample: values, with a loss that is not the
// library's; and a label for each pixel. Images may be numbers, of any number of channels.
#include "catch.hpp"
#include "support/operands.hpp"
#include "support/splits.hpp"
#include "support/training.hpp"

using namespace lamina;
using namespace lamina::test;

namespace {

/// The mean over samples of the mean over their values of (x - target)^2; dx = 2 (x - target) /
/// (values * samples). A sample with a target that is not a number does not count.
class MeanSquaredError final : public Layer {
 public:
  struct Options {
    bool sums = true;   ///< what ranks found
    bool skips = true;  ///< in forward, what does not count
  };
  explicit MeanSquaredError(Options o) : o_(o) {}
  std::string_view type() const override { return "MeanSquaredError"; }
  bool is_loss() const override { return true; }
  Form targets(std::span<const Shape> xs) const override { return {only(xs), DType::f32, {}}; }
  Shape output(std::span<const Shape>) const override { return {1, 5, 1, 1}; }
  Blocks output_blocks(std::span<const Shape> xs, const Split& split, int ranks) const override {
    return Blocks::of(output(xs), split, Axis::none, ranks);
  }
  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override {
    const auto n = double(split.of_output(only(xs)).size()), bytes = n * double(size_of(t));
    return {.forward = {3 * n, bytes},
            .input_grad = {2 * n, 2 * bytes},
            .messages = {{Collective::all_reduce, Pass::forward, 5 * 8, Axis::batch}}};
  }
  Placement place(std::span<const Spec> xs, const Site& site) const override {
    auto placed = std::make_unique<Placed>();
    if (o_.sums) placed->ranks = site.along(Axis::batch);
    placed->samples = xs[0].whole.n, placed->skips = o_.skips;
    Placement p;
    p.inputs = {{xs[0].shape, xs[0].dtype, {}}};
    p.output = {{1, 5, 1, 1}, DType::f64, {}};
    p.layer = std::move(placed);
    return p;
  }

 private:
  struct Placed final : PlacedLayer {
    void forward(Context& context, std::span<const View> xs, const View& y) override {
      const auto values = std::size_t(xs[0].shape.sample());
      check(context.targets.shape == xs[0].shape, "targets of ", context.targets.shape);
      const auto x = xs[0].elements<double>();
      const auto target = context.targets.elements<float>();
      const auto totals = y.elements<double>();
      std::fill(totals.begin(), totals.end(), 0.0);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const bool counts = !std::isnan(target[i]);
        if (!counts && skips) continue;
        totals[0] += std::pow(x[i] - double(counts ? target[i] : 0), 2) / double(values);
        totals[3] += i % values == 0;
      }
      totals[4] = context.stop;
      ranks.all_reduce(context.stream, Pass::forward, y).wait(context.stream);
      rows = std::max(totals[3], 1.0);
      totals[0] /= rows;
    }
    void backward(Context& context, std::span<const View> xs, const View&, const View&,
                  std::span<const View> dxs) override {
      const double by = context.micro_batches > 1 ? double(context.micro_batches * samples) : rows;
      const auto x = xs[0].elements<double>();
      const auto target = context.targets.elements<float>();
      const auto dx = dxs[0].elements<double>();
      for (std::size_t i = 0; i < x.size(); ++i)
        dx[i] = std::isnan(target[i])
                    ? 0
                    : 2 * (x[i] - double(target[i])) / double(xs[0].shape.sample()) / by;
    }
    Communicator ranks;
    double rows = 1;
    std::int64_t samples = 0;
    bool skips = true;
  };

  Options o_;
};

constexpr std::int64_t samples = 12, inputs = 5, outputs = 3;

float number(std::uint64_t stream, std::int64_t i) {
  return float(Random(7, stream).normal(std::uint64_t(i)));
}
/// Every fourth sample has no target where some have none.
bool counts(std::int64_t sample, bool some) { return !some || sample % 4 != 1; }

/// Samples of five numbers, targets of three.
class Points final : public Dataset {
 public:
  explicit Points(bool some = false, std::int64_t size = samples,
                  Form target = {{1, outputs, 1, 1}, DType::f32, {}})
      : Dataset("points", 1, {.shape = {1, inputs, 1, 1}}, target), some_(some), size_(size) {}
  std::int64_t size() const override { return size_; }
  void read(std::int64_t index, Sample& to) const override {
    to.planes.resize(inputs), to.values.resize(outputs);
    for (std::int64_t i = 0; i < inputs; ++i)
      to.planes[std::size_t(i)] = number(0, index * inputs + i);
    for (std::int64_t i = 0; i < outputs; ++i)
      to.values[std::size_t(i)] =
          counts(index, some_) ? number(1, index * outputs + i) : std::nanf("");
  }

 private:
  bool some_;
  std::int64_t size_;
};

struct Trained {
  std::vector<double> losses, start, weights, evaluation;
};

Network regression() {
  Network net({.c = inputs});
  net.add<Linear>({.features = outputs}, "fc");
  net.add<MeanSquaredError>({}, "loss");
  return net;
}

constexpr double rate = 0.1;
constexpr int steps = 8;

Trained regress(int ranks, bool some, const std::map<std::string, Split>& splits,
                std::int64_t micro_batch) {
  Trained result;
  const Points data(some), validation(some, 7);
  run_ranks(ranks, [&](World& world) {
    set_threads(1);
    const Network net = regression();
    Trainer trainer(net, world, SGD{.rate = rate},
                    {.batch = samples,
                     .micro_batch = micro_batch,
                     .evaluation_batch = splits.empty() && micro_batch == 0 ? 5 : 0,
                     .backend = "reference",
                     .dtype = DType::f64,
                     .splits = splits_of(net, {.splits = splits}, ranks)});
    Trained mine;
    mine.start = weights(trainer.network());
    mine.losses = losses(trainer, data, steps, {.epochs = steps});
    mine.weights = weights(trainer.network());
    const Evaluation e = trainer.evaluate(validation);
    mine.evaluation = {e.loss, double(e.samples)};
    if (world.rank() == 0) result = mine;
  });
  return result;
}

/// The mean squared error of w {outputs, inputs} and b over the first samples, and its gradient.
double error_of(const std::vector<double>& w, std::int64_t size, bool some,
                std::vector<double>& gradient) {
  double loss = 0, rows = 0;
  gradient.assign(w.size(), 0);
  for (std::int64_t n = 0; n < size; ++n) {
    if (!counts(n, some)) continue;
    ++rows;
    for (std::int64_t k = 0; k < outputs; ++k) {
      double y = w[std::size_t(outputs * inputs + k)];
      for (std::int64_t i = 0; i < inputs; ++i)
        y += w[std::size_t(k * inputs + i)] * double(number(0, n * inputs + i));
      const double off = y - double(number(1, n * outputs + k));
      loss += off * off / outputs;
      for (std::int64_t i = 0; i < inputs; ++i)
        gradient[std::size_t(k * inputs + i)] +=
            2 * off / outputs * double(number(0, n * inputs + i));
      gradient[std::size_t(outputs * inputs + k)] += 2 * off / outputs;
    }
  }
  for (double& g : gradient) g /= rows;
  return loss / rows;
}

}  // namespace

TEST_CASE("a loss of one's own trains on values, on any ranks, as arithmetic says", "[host]") {
  for (const bool some : {false, true}) {
    const std::vector<double> start = regress(1, some, {}, 0).start;
    std::vector<double> w = start, gradient, wanted;
    for (int step = 0; step < steps; ++step) {
      wanted.push_back(error_of(w, samples, some, gradient));
      for (std::size_t i = 0; i < w.size(); ++i) w[i] -= rate * gradient[i];
    }
    const double validation = error_of(w, 7, some, gradient);
    struct Case {
      int ranks;
      std::map<std::string, Split> splits;
      std::int64_t micro_batch;
    };
    for (const Case& c : {Case{1, {}, 0}, Case{2, {}, 0}, Case{3, {}, 0}, Case{1, {}, 4},
                          Case{2, {}, 6}, Case{2, {{"loss", {}}}, 0},
                          Case{4, {{"fc", {.channel = 3}}, {"loss", {.batch = 2}}}, 0}}) {
      CAPTURE(some, c.ranks, c.splits.size(), c.micro_batch);
      const Trained got = regress(c.ranks, some, c.splits, c.micro_batch);
      CHECK(difference(got.losses, wanted) < 1e-12);
      if (!c.splits.contains("fc")) CHECK(difference(got.weights, w) < 1e-12);
      CHECK(got.evaluation[0] == Approx(validation).epsilon(1e-12));
      CHECK(got.evaluation[1] == (some ? 5 : 7));
    }
  }
}

namespace {

constexpr std::int64_t height = 3, width = 4, kinds = 5, images = 8;

std::int32_t label_of(std::int64_t pixel) {
  return pixel % 7 == 3 ? -1 : std::int32_t(pixel * 5 % 11 % kinds);
}

/// Images of six channels with a label for each pixel; or each pixel as an image.
class Pixels final : public Dataset {
 public:
  explicit Pixels(bool apart)
      : Dataset("pixels", kinds, {.shape = apart ? Shape{1, 6, 1, 1} : Shape{1, 6, height, width}},
                {apart ? Shape{1, 1, 1, 1} : Shape{1, 1, height, width}, DType::i32, {}}),
        apart_(apart) {}
  std::int64_t size() const override { return apart_ ? images * height * width : images; }
  void read(std::int64_t index, Sample& to) const override {
    const std::int64_t pixels = apart_ ? 1 : height * width;
    to.planes.resize(std::size_t(6 * pixels)), to.labels.resize(std::size_t(pixels));
    for (std::int64_t p = 0; p < pixels; ++p) {
      for (std::int64_t c = 0; c < 6; ++c)
        to.planes[std::size_t(c * pixels + p)] = number(2, (index * pixels + p) * 6 + c);
      to.labels[std::size_t(p)] = to.label = label_of(index * pixels + p);
    }
  }

 private:
  bool apart_;
};

Trained classify(bool apart, int ranks, const std::map<std::string, Split>& splits = {},
                 std::int64_t micro_batch = 0) {
  Trained result;
  const Pixels data(apart);
  run_ranks(ranks, [&](World& world) {
    set_threads(1);
    Network net(data.shape());
    net.add<Conv2D>({.channels = kinds, .kernel = 1}, "conv");
    net.add<SoftmaxCrossEntropy>({.label_smoothing = 0.1}, "loss");
    Trainer trainer(net, world, SGD{.rate = 0.5},
                    {.batch = data.size(),
                     .micro_batch = micro_batch,
                     .backend = "reference",
                     .dtype = DType::f64,
                     .splits = splits_of(net, {.splits = splits}, ranks)});
    Trained mine;
    FitOptions fit{.epochs = 4};
    fit.on_step = [&](const StepResult& r) {
      mine.losses.push_back(r.loss), mine.losses.push_back(r.top1);
    };
    for (const Epoch& epoch : trainer.fit(data, fit)) (void)epoch;
    const Evaluation e = trainer.evaluate(data);
    mine.weights = weights(trainer.network());
    mine.evaluation = {e.loss, e.top1, e.top5, double(e.samples)};
    if (world.rank() == 0) result = mine;
  });
  return result;
}

}  // namespace

TEST_CASE("a loss of one's own that is not summed over the ranks ends the first step", "[host]") {
  const Points data;
  const auto said = [&](MeanSquaredError::Options o) {
    try {
      run_ranks(2, [&](World& world) {
        Network net({.c = inputs});
        net.add<Linear>({.features = outputs}, "fc");
        net.add<MeanSquaredError>(o, "mine");
        Trainer trainer(net, world, SGD{.rate = rate},
                        {.batch = samples, .backend = "reference", .dtype = DType::f64});
        losses(trainer, data, 1);
      });
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(said({}).empty());
  const std::string wrong = said({.sums = false});
  CHECK(wrong.starts_with("update: mine: rank 0 found a loss of "));
  CHECK(wrong.ends_with(": expected y to be summed over the ranks that take part"));
}

TEST_CASE("a loss of one's own that counts rows without an image ends the evaluation", "[host]") {
  const auto said = [](bool skips) {
    World world;
    Network net({.c = inputs});
    net.add<Linear>({.features = outputs}, "fc");
    net.add<MeanSquaredError>({.skips = skips}, "mine");
    Trainer trainer(net, world, SGD{.rate = rate},
                    {.batch = samples, .backend = "reference", .dtype = DType::f64});
    try {
      trainer.evaluate(Points(false, samples + 7));
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(said(true) == "");
  CHECK(said(false) ==
        "mine: counts 12 rows of a batch of which 7 have a target: expected those alone");
}

TEST_CASE("a label for each pixel trains as if each pixel were a sample") {
  const Trained wanted = classify(true, 1);
  REQUIRE(wanted.losses.size() == 8);
  REQUIRE(wanted.losses[6] < wanted.losses[0]);
  struct Case {
    int ranks;
    std::map<std::string, Split> splits;
    std::int64_t micro_batch;
  };
  for (const Case& c :
       {Case{1, {}, 0}, Case{2, {}, 0}, Case{3, {}, 0}, Case{1, {}, 2}, Case{2, {}, 4},
        Case{2, {{"loss", {.channel = 2}}}, 0}, Case{2, {{"conv", {.height = 2}}}, 0},
        Case{4, {{"loss", {.batch = 2, .channel = 2}}}, 0}, Case{3, {{"loss", {}}}, 0}}) {
    CAPTURE(c.ranks, c.splits.size(), c.micro_batch);
    const Trained got = classify(false, c.ranks, c.splits, c.micro_batch);
    CHECK(difference(got.losses, wanted.losses) < 1e-12);
    CHECK(difference(got.weights, wanted.weights) < 1e-12);
    CHECK(difference(got.evaluation, wanted.evaluation) < 1e-12);
  }
}

TEST_CASE("logits of pixels are those of as many samples, kernel by kernel", "[host]") {
  const std::int64_t n = 3, pixels = height * width, rows = n * pixels;
  for (const std::string backend : {"reference", "auto"}) {
    const auto on = make_backend(backend, DType::f32);
    const Form whole{{n, kinds, height, width}, DType::f32, {}};
    const Form flat{{rows, kinds, 1, 1}, DType::f32, {}};
    const Tensor x(whole), row(flat), labels({n, 1, height, width}, DType::i32);
    const auto at = [&](std::int64_t r, std::int64_t k) {
      return std::size_t((r / pixels * kinds + k) * pixels + r % pixels);
    };
    for (std::int64_t r = 0; r < rows; ++r) {
      labels.as<std::int32_t>()[r] = label_of(r);
      for (std::int64_t k = 0; k < kinds; ++k)
        row.as<float>()[r * kinds + k] = x.as<float>()[at(r, k)] = number(3, r * kinds + k);
    }
    const auto run = [&](const Form& form, const View& logits, const View& of) {
      const auto kernel = on->softmax_cross_entropy({0.1, kinds, 0}, form);
      const Tensor largest({1, 2 * rows + 1, 1, 1}, DType::f64);
      const Tensor sums({3, rows, 1, 1}, DType::f64), totals({1, 5, 1, 1}, DType::f64);
      const Tensor by({1, 1, 1, 1}, DType::f64), p(form);
      Tensor dx(form);
      Stream s;
      kernel->largest(s, logits, of, passed({.stop = 1}), largest);
      kernel->sums(s, logits, of, largest, p, sums);
      kernel->finish(s, of, largest, sums, p, totals);
      kernel->input_grad(s, p, of, by, 4, dx);
      const auto t = totals.elements<double>();
      return std::pair(std::vector<double>(t.begin(), t.end()), std::move(dx));
    };
    const Tensor plain_labels({rows, 1, 1, 1}, DType::i32);
    std::copy_n(labels.as<std::int32_t>(), rows, plain_labels.as<std::int32_t>());
    const auto [totals, dx] = run(whole, x, labels);
    const auto [wanted, wanted_dx] = run(flat, row, plain_labels);
    CHECK(totals == wanted);
    bool same = true;
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t k = 0; k < kinds; ++k)
        same &= dx.as<float>()[at(r, k)] == wanted_dx.as<float>()[r * kinds + k];
    CHECK(same);
  }
}

TEST_CASE("targets that do not fit are refused") {
  World world;
  Trainer trainer(regression(), world, SGD{},
                  {.batch = 4, .backend = "reference", .dtype = DType::f64});
  CHECK_THROWS_WITH(
      trainer.loader(Points(false, 12, {{1, 2, 1, 1}, DType::f32, {}}), true),
      ContainsSubstring("points: its targets are ") && ContainsSubstring("loss takes"));
  Network net({.c = inputs});
  net.add<Linear>({.features = outputs}, "fc");
  Trainer classifier(net, world, SGD{}, {.batch = 4, .backend = "reference"});
  CHECK_THROWS_WITH(classifier.loader(Points(), true), ContainsSubstring("its targets are"));
  // As many as the data set says.
  const Points four(false, 12, {{1, 4, 1, 1}, DType::f32, {}});
  Loader short_of(four, {.global_batch = 4});
  CHECK_THROWS_WITH(short_of.next(), "points: a target has 3 elements, expected 4");
  class Odd final : public Dataset {
   public:
    explicit Odd(Transform t) : Dataset("odd", 2, t, {{1, 1, 8, 8}, DType::i32, {}}) {}
    std::int64_t size() const override { return 4; }
    void read(std::int64_t, Sample& to) const override {
      to.height = 6, to.width = 8, to.channels = 1;
      to.pixels.assign(48, 1), to.labels.assign(64, 1);
    }
  };
  const Odd moved({.shape = {1, 1, 8, 8}, .augment = true, .pad = 2});
  CHECK_THROWS_WITH(Loader(moved, {.global_batch = 2}), ContainsSubstring("cannot be augmented"));
  CHECK_NOTHROW(Loader(moved, {.global_batch = 2, .augment = false}));
  CHECK_THROWS_WITH(Loader(Odd({.shape = {1, 1, 8, 8}, .resize = 10}), {.global_batch = 2}),
                    ContainsSubstring("Transform::resize 10 would cut off what the targets"));
  CHECK_NOTHROW(Loader(Odd({.shape = {1, 1, 8, 8}, .resize = 8}), {.global_batch = 2}));
  const Odd small({.shape = {1, 1, 8, 8}});
  Loader stretched(small, {.global_batch = 2});
  CHECK_THROWS_WITH(stretched.next(), ContainsSubstring("is 6x8, expected 8x8"));
}

TEST_CASE("ranks whose targets differ are told so") {
  std::string error;
  class Other final : public Dataset {
   public:
    explicit Other(float by)
        : Dataset("points", 1, {.shape = {1, inputs, 1, 1}}, {{1, outputs, 1, 1}, DType::f32, {}}),
          by_(by) {}
    std::int64_t size() const override { return 8; }
    void read(std::int64_t, Sample& to) const override {
      to.planes.assign(inputs, 1), to.values.assign(outputs, by_);
    }

   private:
    float by_;
  };
  try {
    run_ranks(2, [&](World& world) {
      Trainer trainer(regression(), world, SGD{},
                      {.batch = 4, .backend = "reference", .dtype = DType::f64});
      trainer.loader(Other(float(world.rank())), true);
    });
  } catch (const Error& e) {
    error = e.what();
  }
  CHECK_THAT(error, ContainsSubstring("image 0 is "));
}
