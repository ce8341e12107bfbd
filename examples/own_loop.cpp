// A training loop of one's own, without a Trainer: steps, an update rule, a schedule, evaluation,
// checkpoints, and inference from the last of them. usage: own_loop [FILE [EPOCHS]], as it is or
// with mpirun -n 2; goes on from FILE where that exists. docs/own_loop.md goes through it.
#include <lamina/lamina.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>

constexpr std::int64_t batch = 48;  // over all ranks
constexpr std::uint64_t seed = 1;
constexpr int classes = 40;
constexpr lamina::Shape sample{.c = 3, .h = 12, .w = 12};

lamina::Network network() {
  lamina::Network net(sample);
  net.add<lamina::Conv2D>({.channels = 8, .kernel = 3, .bias = false}, "conv1");
  net.add<lamina::BatchNorm>({}, "norm1");  // each rank has statistics of its own
  net.add<lamina::ReLU>({}, "relu1");
  net.add<lamina::Dropout>({.rate = 0.1}, "dropout");
  net.add<lamina::Linear>({.features = classes}, "fc");
  return net;
}

std::unique_ptr<lamina::Dataset> data(bool train) {
  return lamina::synthetic({.train = train,
                            .limit = train ? 480 : 200,
                            .channels = sample.c,
                            .height = sample.h,
                            .width = sample.w,
                            .classes = classes});
}

/// Lion (Chen et al., 2023): w -= rate * sign(beta1 m + (1 - beta1) dw) apart from decay, with
/// m = beta2 m + (1 - beta2) dw.
lamina::CustomRule lion() {
  lamina::CustomRule rule{.name = "lion", .rate = 1e-3, .states = 1};
  rule.update = [](lamina::Stream&, const lamina::UpdateStep& step, const lamina::View& values,
                   const lamina::View& gradients, std::span<const lamina::View> states) {
    const auto w = values.elements<float>(), dw = gradients.elements<float>();
    const auto m = states[0].elements<float>();
    const auto rate = float(step.rate), scale = float(step.grad_scale);
    const auto decay = float(step.weight_decay);
    for (std::size_t i = 0; i < w.size(); ++i) {
      const float g = scale * dw[i], c = 0.9f * m[i] + 0.1f * g;
      w[i] -= rate * (float(c > 0) - float(c < 0) + decay * w[i]);
      m[i] = 0.99f * m[i] + 0.01f * g;
    }
  };
  return rule;
}

/// Means over the images of a data set.
struct Score {
  double loss = 0, top1 = 0;
};

/// What a loop needs beside the network.
struct Loop {
  lamina::PlacedNetwork& net;
  const lamina::Communicator& ranks;
  lamina::Stream stream = {};
  lamina::Targets targets{net};
  lamina::Progress at = {.seed = seed};

  lamina::Loader loader(const lamina::Dataset& of, bool training) const {
    return {of,
            {.global_batch = batch,
             .rank = ranks.rank(),
             .ranks = ranks.size(),
             .seed = seed,
             .shuffle = training,
             .pad_last = !training}};  // evaluation leaves no image out
  }

  /// This rank's part of a batch, forward through the network.
  lamina::Context forward(const lamina::Batch& part, bool training) {
    const lamina::View& x = net.x();
    std::copy_n(part.images, x.shape.size(), x.as<float>());
    targets.load(part.targets);
    lamina::Context context{.stream = stream,
                            .training = training,
                            .seed = seed,
                            .step = at.step,
                            .targets = targets.move(stream)};
    net.forward(context);
    return context;
  }

  /// Over all images, whichever rank has them; the same on all ranks.
  Score evaluate(const lamina::Dataset& of) {
    lamina::Loader images = loader(of, false);
    double loss = 0, hits = 0, rows = 0;
    for (std::int64_t i = 0; i < images.batches(); ++i) {
      forward(images.next(), false);
      const lamina::Outcome found = outcome(net, stream);
      loss += found.loss * found.rows, hits += found.top1, rows += found.rows;
    }
    return {loss / rows, hits / rows};
  }
};

/// Probabilities from a file alone: no loss, no labels, no gradients. Each rank has the rows that
/// it was given.
Score infer(const std::string& file, const lamina::Dataset& of, lamina::World& world) {
  lamina::Network layers = network();
  layers.add<lamina::Softmax>({}, "softmax");
  lamina::PlacedNetwork net =
      layers.place({.batch = batch,
                    .backend = lamina::make_backend("auto", lamina::DType::f32),
                    .ranks = world,
                    .training = false});
  load_parameters(file, net, true, world.comm());
  lamina::Loader images(of, {.global_batch = batch,
                             .rank = world.rank(),
                             .ranks = world.size(),
                             .shuffle = false,
                             .pad_last = true});
  lamina::Stream stream;
  lamina::Context context{.stream = stream, .training = false};
  const lamina::Tensor p(net.y().shape, lamina::DType::f32);
  double loss = 0, hits = 0;
  for (std::int64_t i = 0; i < images.batches(); ++i) {
    const lamina::Batch& part = images.next();
    std::copy_n(part.images, net.x().shape.size(), net.x().as<float>());
    net.forward(context);
    net.placing().backend->copy(net.y(), p);  // from the kernels' layout to a plain one
    for (std::int64_t row = 0; row < part.valid; ++row) {
      const float* of_row = p.as<float>() + row * classes;
      loss -= std::log(of_row[part.labels()[row]]);
      hits += std::max_element(of_row, of_row + classes) - of_row == part.labels()[row];
    }
  }
  const auto images_of_all = double(of.size());
  return {world.comm().all_reduce_value(loss) / images_of_all,
          world.comm().all_reduce_value(hits) / images_of_all};
}

std::ostream& operator<<(std::ostream& to, const Score& score) {
  return to << "loss " << score.loss << "  top-1 " << 100 * score.top1 << " %";
}

int main(int argc, char** argv) {
  return lamina::run(argc, argv, [&](lamina::World& world) {
    const std::string file = argc > 1 ? argv[1] : "own_loop.safetensors";
    const std::int64_t epochs = argc > 2 ? std::atoll(argv[2]) : 4;
    const bool first = world.rank() == 0;
    const auto training = data(true), validation = data(false);

    lamina::Network layers = network();
    layers.add<lamina::SoftmaxCrossEntropy>({}, "loss");
    lamina::PlacedNetwork net =
        layers.place({.batch = batch,
                      .backend = lamina::make_backend("auto", lamina::DType::f32),
                      .ranks = world});
    net.initialize(seed);
    lamina::Optimizer optimizer = lion();
    optimizer.group("norm1.*", {.rate = 0.5});
    const lamina::Tensor states = optimizer.attach(net);
    lamina::Schedule schedule{.warmup = 0.5};
    schedule.factor = [](double epoch, double) { return 1 / (1 + epoch); };

    Loop loop{net, world.comm()};
    lamina::Progress& at = loop.at;
    // What rank 0 sees is what counts: it alone reads and writes the file.
    const bool resumes = world.comm().all_gather_value(int(std::filesystem::exists(file)))[0] > 0;
    if (resumes) at = load_checkpoint(file, net, world.comm());
    lamina::Loader images = loop.loader(*training, true);
    images.seek(at.epoch, at.batch);

    while (at.epoch < epochs) {
      double sum = 0;
      for (std::int64_t i = 0; i < images.batches(); ++i) {
        lamina::Context context = loop.forward(images.next(), true);
        net.backward(context);
        at.rate = schedule.at(optimizer.rate(), at.step, images.batches(), 0);
        optimizer.update(net, loop.stream, at.rate, ++at.step);
        sum += outcome(net, loop.stream).loss;
      }
      ++at.epoch;
      const Score score = loop.evaluate(*validation);
      save_checkpoint(file, net, at, world.comm());
      if (first)
        std::cout << "epoch " << at.epoch << "  loss " << sum / double(images.batches())
                  << "  validation: " << score << std::endl;
    }
    const Score score = infer(file, *validation, world);
    if (first) std::cout << "from " << file << ": " << score << '\n';
    return 0;
  });
}
