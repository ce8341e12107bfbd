// bench_inference: how fast a model answers: from plain images in f32 to plain logits in f32, one
// batch after the other, on one rank.
#include "flags.hpp"
#include "session.hpp"

#include <lamina/base/clock.hpp>
#include <lamina/base/median.hpp>
#include <lamina/base/random.hpp>
#include <lamina/base/threads.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/network/placed.hpp>
#include <lamina/train/targets.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

namespace {

using namespace lamina;

struct BenchOptions : cli::RunOptions {
  std::int64_t warmup = 5, iters = 50;
};

Tensor random_images(const Shape& shape, std::uint64_t seed) {
  const Tensor images(shape, DType::f32);
  const Random random(seed);
  for (std::size_t i = 0; float& v : images.elements<float>()) v = random.normal(i++);
  return images;
}

int bench(BenchOptions& o, World& world) {
  if (cli::lists_models(o, world)) return 0;
  check(world.size() == 1, "bench_inference: expected one rank, got ", world.size());
  cli::prepare(o, world);
  const DType dtype = parse_dtype(o.dtype);
  const auto backend = make_backend(o.backend, dtype);
  PlacedNetwork net = cli::model_of(o).place({.batch = o.batch_size,
                                              .backend = backend,
                                              .ranks = world,
                                              .dtype = dtype,
                                              .training = false,
                                              .fuse = o.fuse});
  net.initialize(o.seed);
  std::printf("# bench_inference: %s, batch %lld, %s on %s, %d threads, %.0f MB\n", o.model.c_str(),
              static_cast<long long>(o.batch_size), std::string(name(dtype)).c_str(),
              backend->name().c_str(), threads(), net.memory().total() / 1e6);
  std::fputs(cli::back_end_line(*backend).c_str(), stdout);
  const Tensor images = random_images(net.x().shape, o.seed);
  const View& found = net.steps().back().buffers.x.at(0);  // what the loss reads
  const Tensor logits(found.shape, DType::f32);
  Stream stream;
  Targets targets(net);  // zeros, for the loss in which models end
  Context context{
      .stream = stream, .training = false, .seed = o.seed, .targets = targets.move(stream)};
  std::vector<double> seconds;
  for (std::int64_t i = 0; i < o.warmup + o.iters; ++i) {
    const double begin = now();
    backend->copy(images, net.x());
    net.forward(context);
    backend->copy(found, logits);
    if (i >= o.warmup) seconds.push_back(now() - begin);
  }
  for (const float v : logits.elements<float>())
    check(std::isfinite(v), "bench_inference: ", o.model, " computes ", v);
  std::sort(seconds.begin(), seconds.end());
  const auto within = [&](double part) {
    return seconds[std::size_t(std::ceil(part * double(o.iters))) - 1];
  };
  const double middle = median(seconds);
  std::printf("latency ms: %.3f  (least %.3f, 95 %% within %.3f, most %.3f)\n", 1e3 * middle,
              1e3 * seconds.front(), 1e3 * within(0.95), 1e3 * seconds.back());
  std::printf("images/sec: %.2f\n", double(o.batch_size) / middle);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("How fast a model answers", "bench_inference");
  BenchOptions o;
  o.batch_size = 1, o.fuse = true;  // nobody asks for the time of a layer
  cli::add_model_flags(app, o);
  cli::count(app, "--batch-size", o.batch_size, 1, "samples at once")->capture_default_str();
  cli::add_kernel_flags(app, o);
  cli::count(app, "--warmup", o.warmup, 0, "batches before the timed ones")->capture_default_str();
  cli::count(app, "--iters", o.iters, 1, "timed batches")->capture_default_str();
  return cli::run(app, argc, argv, [&](World& world) { return bench(o, world); });
}
