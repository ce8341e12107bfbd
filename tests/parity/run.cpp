// parity_run: trains a model of the library from the weights and on the images in files, and writes
// what tests/parity/parity.py compares with PyTorch: a line of JSON about itself, one per step, one
// for the evaluation; and a checkpoint. After one step of SGD with momentum, the momentum in there
// is the gradient, bit by bit.
#include "flags.hpp"
#include "session.hpp"
#include "support/random_plans.hpp"

#include <lamina/base/version.hpp>
#include <lamina/network/models.hpp>
#include <lamina/train/json_log.hpp>
#include <lamina/train/safetensors.hpp>

#include <memory>
#include <optional>

namespace lamina {

namespace {

struct ParityOptions : cli::RunOptions {
  std::string weights, images, out;
  std::int64_t train_images = 0, eval_images = 0, epochs = 0, steps = 0, random_plan = -1;
  double width = 1;
};

/// A run of the images in a file of safetensors: `pixels`, {n, c, h, w} of whole numbers from 0 to
/// 255, and `labels`. The network sees pixel / 64 - 2, which has no rounding.
class StoredImages final : public Dataset {
 public:
  StoredImages(const SafetensorsFile& file, std::int64_t first, std::int64_t count, int classes)
      : Dataset(file.path(), classes, as_stored(file)),
        pixels_(std::size_t(count * shape().sample())),
        labels_(std::size_t(count)) {
    const StoredTensor &pixels = tensor(file, "pixels", 4), &labels = tensor(file, "labels", 1);
    check(labels.dims[0] == pixels.dims[0] && first + count <= pixels.dims[0], file.path(),
          ": has ", pixels.dims[0], " images and ", labels.dims[0], " labels, expected ",
          first + count);
    const std::int64_t sample = shape().sample();
    file.read(pixels, first * sample, count * sample, DType::f32, pixels_.data());
    file.read(labels, first, count, DType::f32, labels_.data());
  }

  std::int64_t size() const override { return std::int64_t(labels_.size()); }

  void read(std::int64_t index, Sample& to) const override {
    const Shape s = shape();
    to.height = s.h, to.width = s.w, to.channels = s.c;
    to.pixels.resize(std::size_t(s.sample()));
    const std::int64_t plane = s.h * s.w;
    const float* from = pixels_.data() + index * s.sample();
    for (std::int64_t i = 0; i < plane; ++i)
      for (std::int64_t c = 0; c < s.c; ++c)
        to.pixels[std::size_t(i * s.c + c)] = std::uint8_t(from[c * plane + i]);
    to.label = std::int32_t(labels_[std::size_t(index)]);
  }

 private:
  static const StoredTensor& tensor(const SafetensorsFile& file, const char* name,
                                    std::size_t dims) {
    const StoredTensor* found = file.find(name);
    check(found && found->dims.size() == dims, file.path(), ": has no '", name, "' of ", dims,
          " dimensions");
    return *found;
  }
  static Transform as_stored(const SafetensorsFile& file) {
    const auto& d = tensor(file, "pixels", 4).dims;
    Transform t;
    t.shape = {1, d[1], d[2], d[3]};
    t.deviation.fill(64.0f / 255), t.mean.fill(128.0f / 255);
    return t;
  }

  std::vector<float> pixels_, labels_;
};

/// Splits and layers to recompute, drawn from the legal ones, as the file of --plan. Every second
/// seed recomputes, every third one shards the optimizer.
void write_random_plan(const ParityOptions& o, const Network& net, std::int64_t batch, int ranks) {
  const auto seed = std::uint64_t(o.random_plan);
  const Random random(seed, key_of(o.model), std::uint64_t(ranks));
  std::uint64_t draw = 0;
  const auto splits = test::random_plan(net, ranks, batch, random, draw);
  Plan plan{.model = o.model, .ranks = ranks, .shard_optimizer = seed % 3 == 0};
  for (std::size_t i = 1; i < splits.size(); ++i) {
    const std::string& layer = net.graph()[i].name;
    plan.split(layer, splits[i]);
    if (seed % 2 == 1 && random.uniform(draw++) < 0.5) plan.recompute(layer);
  }
  write_plan(o.plan, plan);
}

int train(ParityOptions& o, World& world) {
  cli::prepare(o, world, {{"--out", o.out + ".safetensors"}, {"--out", o.out + ".jsonl"}});
  const SafetensorsFile images(o.images);
  const auto classes = int(o.classes);
  const StoredImages data(images, 0, o.train_images, classes);
  const StoredImages held_out(images, o.train_images, o.eval_images, classes);
  const Network net = make_model(o.model, {.classes = o.classes,
                                           .input = data.shape(),
                                           .label_smoothing = o.label_smoothing,
                                           .width = o.width,
                                           .global_norm = o.global_norm});
  const std::int64_t batch = o.batch(world.size(), 8);
  if (o.random_plan >= 0 && world.rank() == 0) write_random_plan(o, net, batch, world.size());
  const cli::RunPlan plan = cli::make_plan(o, net, batch, world);
  cli::write_plan_out(o, plan, world);
  Trainer trainer(net, world, cli::make_optimizer(o), cli::trainer_options(o, batch, plan));
  load_parameters(o.weights, trainer.network(), true, world);

  std::optional<JsonLog> log;
  if (world.rank() == 0) {
    log.emplace(o.out + ".jsonl", false);
    log->write(
        {{"version", version}, {"backend", trainer.network().placing().backend->description()}});
  }
  FitOptions fit{.epochs = o.epochs, .steps = o.steps, .shuffle = false, .augment = false};
  fit.on_step = [&](const StepResult& r) {
    if (log) log->write({{"step", r.step}, {"loss", r.loss}, {"top1", r.top1}, {"rate", r.rate}});
  };
  for (const Epoch& epoch : trainer.fit(data, fit)) (void)epoch;
  trainer.save(o.out + ".safetensors");
  const Evaluation e = trainer.evaluate(held_out);
  if (log)
    log->write({{"samples", e.samples}, {"loss", e.loss}, {"top1", e.top1}, {"top5", e.top5}});
  return 0;
}

}  // namespace

}  // namespace lamina

int main(int argc, char** argv) {
  using namespace lamina;
  CLI::App app("Trains from stored weights on stored images, for comparison", "parity_run");
  ParityOptions o;
  cli::add_model_flags(app, o);
  cli::number(app, "--width", o.width, "hidden channels of AlexNet and VGG, times this");
  cli::word(app, "--weights", o.weights, "FILE", "safetensors with all parameters")->required();
  cli::word(app, "--images", o.images, "FILE", "safetensors with `pixels` and `labels`")
      ->required();
  cli::count(app, "--train-images", o.train_images, 1, "the first N images are trained on")
      ->required();
  cli::count(app, "--eval-images", o.eval_images, 1, "the next N are evaluated")->required();
  cli::word(app, "--out", o.out, "PREFIX", "write PREFIX.jsonl and PREFIX.safetensors")->required();
  cli::count(app, "--random-plan", o.random_plan, 0, "draw a plan, write it to the FILE of --plan");
  cli::count(app, "--epochs", o.epochs, 1, "passes over the images; without --steps 1");
  cli::count(app, "--steps", o.steps, 0, "end after this many steps in all, if not before");
  cli::add_run_flags(app, o);
  cli::add_optimizer_flags(app, o);
  return cli::run(app, argc, argv, [&](World& world) { return train(o, world); });
}
