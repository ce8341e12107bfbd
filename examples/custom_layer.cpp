// A layer of one's own, in one file: ChannelScale, y = w[c] * x with a trained w per channel, in a
// small network. Start it as it is, or with mpirun -n 2.
#include <lamina/lamina.hpp>

#include <iostream>

/// y[n,c,h,w] = s[c] * x[n,c,h,w]
///
/// split    forward     backward
/// batch                all-reduce ds   behind the layers below
class ChannelScale final : public lamina::Layer {
 public:
  struct Options {
    double initial = 1;
  };
  explicit ChannelScale(Options o) : o_(o) {}

  std::string_view type() const override { return "ChannelScale"; }

  lamina::Shape output(std::span<const lamina::Shape> xs) const override { return only(xs); }

  lamina::Cost cost(std::span<const lamina::Shape> xs, const lamina::Split& split,
                    lamina::DType t) const override {
    const lamina::Shape x = split.of_input(only(xs));
    const double n = double(x.size()), bytes = double(size_of(t));
    return {.forward = {n, 2 * bytes * n},
            .input_grad = {n, 2 * bytes * n},
            .weight_grad = {2 * n, 2 * bytes * n},
            .parameters = double(x.c),  // not zero: so the network asks for gradients here
            .messages = {{lamina::Collective::all_reduce, lamina::Pass::weight_grad,
                          bytes * double(x.c), lamina::Axis::batch, true}}};
  }

  lamina::Placement place(std::span<const lamina::Spec> xs,
                          const lamina::Site& site) const override {
    const lamina::Shape x = xs[0].shape;
    lamina::check(xs[0].dtype == lamina::DType::f32, "expected f32");
    const lamina::Form plain{x, lamina::DType::f32, {}};
    auto placed = std::make_unique<Placed>();
    placed->s = {.name = "scale",
                 .dims = {x.c},
                 .form = {{1, x.c, 1, 1}, lamina::DType::f32, {}},
                 .initial = {lamina::Initial::Kind::constant, o_.initial},
                 .replicas = site.along(lamina::Axis::batch)};
    lamina::Placement p;
    p.output = plain;
    p.inputs = {plain};  // another layout is reordered into this one before the layer runs
    p.algorithm = "loops";
    p.layer = std::move(placed);
    return p;
  }

 private:
  /// What runs: made anew wherever the layer is placed.
  struct Placed final : lamina::PlacedLayer {
    void forward(lamina::Context& context, std::span<const lamina::View> xs,
                 const lamina::View& y) override {
      context.stream.run(lamina::Pass::forward, "scale", [&] {
        each_plane(xs[0].shape, [&](std::int64_t c, std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i)
            y.as<float>()[i] = s.value.as<float>()[c] * xs[0].as<float>()[i];
        });
      });
    }

    void backward(lamina::Context& context, std::span<const lamina::View> xs, const lamina::View&,
                  const lamina::View& dy, std::span<const lamina::View> dxs) override {
      if (dxs[0])
        context.stream.run(lamina::Pass::input_grad, "scale", [&] {
          each_plane(dy.shape, [&](std::int64_t c, std::int64_t begin, std::int64_t end) {
            for (std::int64_t i = begin; i < end; ++i)
              dxs[0].as<float>()[i] = s.value.as<float>()[c] * dy.as<float>()[i];
          });
        });
      context.stream.run(lamina::Pass::weight_grad, "scale", [&] {
        std::ranges::fill(s.grad.elements<float>(), 0.0f);
        each_plane(dy.shape, [&](std::int64_t c, std::int64_t begin, std::int64_t end) {
          double sum = 0;
          for (std::int64_t i = begin; i < end; ++i)
            sum += double(dy.as<float>()[i]) * xs[0].as<float>()[i];
          s.grad.as<float>()[c] += float(sum);
        });
      });
      s.reduce(context.stream);  // summed over the ranks while the layers below compute
    }

    std::vector<lamina::Parameter*> parameters() override { return {&s}; }

    /// Calls work(c, begin, end) for the elements of every channel of every sample.
    template <class Work>
    static void each_plane(lamina::Shape x, Work&& work) {
      const std::int64_t plane = x.h * x.w;
      for (std::int64_t i = 0; i < x.n * x.c; ++i) work(i % x.c, i * plane, (i + 1) * plane);
    }

    lamina::Parameter s;
  };

  Options o_;
};

int main(int argc, char** argv) {
  return lamina::run(argc, argv, [&](lamina::World& world) {
    lamina::Network net({.c = 3, .h = 16, .w = 16});
    net.add<lamina::Conv2D>({.channels = 16, .kernel = 3, .pad = 1});
    net.add<ChannelScale>({.initial = 0.5});
    net.add<lamina::ReLU>();
    net.add<lamina::GlobalAvgPool>();
    net.add<lamina::Linear>({.features = 4});

    lamina::Trainer trainer(net, world, lamina::SGD{.rate = 0.05, .momentum = 0.9}, {.batch = 32});
    const auto data =
        lamina::synthetic({.limit = 1024, .channels = 3, .height = 16, .width = 16, .classes = 4});
    for (const lamina::Epoch& epoch : trainer.fit(*data, {.epochs = 3}))
      if (world.rank() == 0) std::cout << epoch;
    return 0;
  });
}
