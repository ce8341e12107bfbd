// Rows without a label: the loss, its gradients and the hits are those of the rows that have one,
// however ranks share the batch.
#include "catch.hpp"
#include "support/operands.hpp"
#include "support/splits.hpp"
#include "support/training.hpp"

using namespace lamina;
using namespace lamina::test;

namespace {

constexpr std::int64_t batch = 24, steps = 4;

/// In each batch, the first rows and every third one have no label: 10 of 24 have one.
bool has_label(std::int64_t index) { return index % batch >= 9 && index % 3 != 0; }
constexpr std::int64_t labelled = 10;

/// The images of another set, with some of the labels, or only those that have one.
class Labelled final : public Dataset {
 public:
  enum Which { some, those, none };
  Labelled(const Dataset& of, Which which)
      : Dataset("odd", of.classes(), of.transform()), of_(of), which_(which) {
    for (std::int64_t i = 0; i < of.size(); ++i)
      if (which != those || has_label(i)) at_.push_back(i);
  }
  std::int64_t size() const override { return std::int64_t(at_.size()); }
  void read(std::int64_t index, Sample& to) const override {
    const std::int64_t i = at_[std::size_t(index)];
    of_.read(i, to);
    if (which_ == none || !has_label(i)) to.label = i % 2 ? -1 : -100;
  }

 private:
  const Dataset& of_;
  Which which_;
  std::vector<std::int64_t> at_;
};

struct Trained {
  std::vector<double> losses, hits, weights, evaluation;
};

/// The steps of two epochs, and an evaluation whose last batch is padded.
Trained train(int ranks, Labelled::Which which, const std::map<std::string, Split>& splits = {}) {
  const auto all = small_data(2 * batch), more = small_data(60, false);
  const Labelled data(*all, which), validation(*more, which);
  Trained result;
  run_ranks(ranks, [&](World& world) {
    set_threads(1);
    Network net = small_network(false, 0);
    net.add<SoftmaxCrossEntropy>({.label_smoothing = 0.1}, "loss");
    Trainer trainer(net, world, SGD{.rate = 0.05, .momentum = 0.9},
                    {.batch = which == Labelled::those ? labelled : batch,
                     .backend = "reference",
                     .dtype = DType::f64,
                     .splits = splits_of(net, {.splits = splits}, ranks)});
    Trained mine;
    FitOptions fit{.epochs = 2, .shuffle = false};
    fit.on_step = [&](const StepResult& r) {
      mine.losses.push_back(r.loss), mine.hits.push_back(r.top1);
    };
    for (const Epoch& epoch : trainer.fit(data, fit)) (void)epoch;
    const Evaluation e = trainer.evaluate(validation);
    mine.weights = weights(trainer.network()),
    mine.evaluation = {e.loss, e.top1, e.top5, double(e.samples)};
    if (world.rank() == 0) result = mine;
  });
  return result;
}

}  // namespace

TEST_CASE("labels below zero neither count nor divide, on one rank and on several") {
  const Trained wanted = train(1, Labelled::those);
  REQUIRE(wanted.losses.size() == steps);
  REQUIRE(wanted.evaluation[3] == 22);
  struct Case {
    int ranks;
    std::map<std::string, Split> splits;
  };
  for (const Case& c :
       {Case{1, {}}, Case{2, {}}, Case{3, {}}, Case{5, {}}, Case{2, {{"loss", {.channel = 2}}}},
        Case{4, {{"loss", {.batch = 2, .channel = 2}}}}, Case{4, {{"loss", {.batch = 2}}}},
        Case{3, {{"loss", {}}}}}) {
    CAPTURE(c.ranks, c.splits.size());
    const Trained got = train(c.ranks, Labelled::some, c.splits);
    CHECK(difference(got.losses, wanted.losses) < 1e-12);
    CHECK(difference(got.hits, wanted.hits) < 1e-12);
    CHECK(difference(got.weights, wanted.weights) < 1e-12);
    CHECK(difference(got.evaluation, wanted.evaluation) < 1e-12);
  }
}

TEST_CASE("a step without any label changes no weight and an evaluation without one is refused") {
  const auto all = small_data(batch);
  const Labelled data(*all, Labelled::none);
  run_ranks(2, [&](World& world) {
    set_threads(1);
    Trainer trainer(small_network(false), world, SGD{.rate = 0.05},
                    {.batch = batch, .backend = "reference"});
    const std::vector<double> before = weights(trainer.network());
    Loader loader = trainer.loader(data, true);
    const StepResult r = trainer.step(loader, 1);
    check(r.loss == 0 && r.top1 == 0, "a loss of ", r.loss);
    check(weights(trainer.network()) == before, "other weights");
    std::string error;
    try {
      trainer.evaluate(data);
    } catch (const Error& e) {
      error = e.what();
    }
    check(error.find("odd: has no image with a label") != error.npos, "said '", error, "'");
  });
}
