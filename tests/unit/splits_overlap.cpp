// A halo travels while a convolution computes what does not need it, and that changes no value.
#include "catch.hpp"
#include "support/peek.hpp"
#include "support/splits.hpp"

#include <cstring>
#include <limits>

using namespace lamina;
using namespace lamina::test;

namespace {

/// Spans of one step of a network on the compute thread, in the order in which they ended.
class Order final : public Recorder {
 public:
  explicit Order(std::int32_t layer) : layer_(layer) {}
  void record(const Span& s) override {
    if (s.lane != Lane::compute || s.layer != layer_) return;
    const std::lock_guard lock(mutex_);
    all_ += text(' ', name(s.pass), ' ', s.what, ',');
  }
  const std::string& all() const { return all_; }

 private:
  std::int32_t layer_;
  std::mutex mutex_;
  std::string all_;
};

/// A tall image, so that few of its rows are at an edge.
auto tall(Conv2D::Options options, std::int64_t channels = 8) {
  return [=] {
    Network net({.c = 3, .h = 25, .w = 7});
    net.add<Conv2D>({.channels = channels, .kernel = 3, .pad = 1}, "first");
    net.add<Conv2D>(options, "it");
    net.add<Conv2D>({.channels = 4, .kernel = 2, .stride = 2, .pad = 1}, "then");
    net.add<Linear>({.features = 5}, "fc");
    net.add<SoftmaxCrossEntropy>({}, "loss");
    return net;
  };
}

int step_of(const PlacedNetwork& net, const std::string& name) {
  for (std::size_t i = 0; i < net.steps().size(); ++i)
    if (net.steps()[i].name == name) return int(i);
  throw Error(text("no step ", name));
}

PlacedNetwork place(const Network& net, const StepOn& o, const World& world) {
  PlacedNetwork placed = net.place({.batch = o.batch,
                                    .backend = make_backend(o.backend, o.dtype),
                                    .ranks = world,
                                    .splits = splits_of(net, o, world.size()),
                                    .dtype = o.dtype});
  placed.initialize(7);
  return placed;
}

struct Shaped {
  Conv2D::Options options;
  Split most;  // parts
};
const Shaped shapes[] = {
    {{.channels = 6, .kernel = 3, .pad = 1}, {.channel = 6, .input = 8, .height = 25, .width = 7}},
    {{.channels = 6, .kernel = 5, .stride = 2, .pad = {1, 2, 2, 1}},
     {.channel = 6, .input = 8, .height = 12, .width = 3}},
    {{.channels = 6, .kernel = 3, .pad = 2, .dilation = 2, .bias = false},
     {.channel = 6, .input = 8, .height = 25, .width = 7}},
    {{.channels = 8, .kernel = {2, 3}, .pad = {0, 1, 0, 1}, .groups = 2},
     {.channel = 2, .height = 24, .width = 7}},
};

}  // namespace

TEST_CASE("overlap: convolutions of tall images under every split equal one rank", "[splits]") {
  const auto i = GENERATE(range(0, 4));
  CAPTURE(i);
  check_all(tall(shapes[i].options), shapes[i].most, 1e-10, {.batch = 8});
}

TEST_CASE("overlap: also in f32", "[splits]") {
  const auto i = GENERATE(range(0, 4));
  CAPTURE(i);
  auto [o, most] = shapes[i];
  o.channels = 16;
  if (o.groups == 1) most.channel = most.input = 16;
  check_all(tall(o, 16), most, 1e-4, {.backend = "auto", .dtype = DType::f32, .batch = 4},
            {2, 3, 4}, Axis::batch | Axis::channel | Axis::input | Axis::height);
}

TEST_CASE("overlap: rows that need no halo come before it, and dw behind that of dx", "[splits]") {
  const auto dtype = GENERATE(DType::f64, DType::f32);
  if (over_device()) return;  // a GPU is not asked for rows apart where layouts are not plain
  const StepOn o{.backend = dtype == DType::f64 ? "reference" : "auto",
                 .dtype = dtype,
                 .batch = 4,
                 .splits = {{"first", {.height = 2}}, {"it", {.height = 2}}}};
  run_ranks(2, [&](World& world) {
    PlacedNetwork net = place(tall({.channels = 16, .kernel = 3, .pad = 1}, 16)(), o, world);
    const Tensor labels({2, 1, 1, 1}, DType::i32, net.placing().backend->memory());
    Order order(step_of(net, "it"));
    Stream stream;
    stream.record_to(&order);
    Context context{stream, true};
    context.targets = labels;
    net.forward(context), net.backward(context);
    for (const auto& n : net.parameters()) n.parameter->wait(stream);
    stream.wait();

    std::size_t at = 0;
    for (const char* next :
         {"forward pack", "forward conv", "forward unpack", "forward conv", "input_grad conv",
          "input_grad pack", "weight_grad conv", "input_grad unpack"}) {
      at = order.all().find(next, at);
      check(at != std::string::npos, next, " is missing or out of order among", order.all());
      at += std::strlen(next);
    }
  });
}

TEST_CASE("overlap: nothing of a step's halo is left in the next", "[splits]") {
  const auto dtype = GENERATE(DType::f64, DType::f32);
  const int channels = GENERATE(1, 32);  // with one of them all layouts are plain
  const StepOn o{.backend = dtype == DType::f64 ? "reference" : "auto",
                 .dtype = dtype,
                 .batch = 2,
                 .splits = {{"it", {.height = 2}}},
                 .training = false};
  run_ranks(2, [&](World& world) {
    Network layers({.c = channels, .h = 48, .w = 32});
    layers.add<Conv2D>({.channels = channels, .kernel = 3, .pad = 1}, "it");
    PlacedNetwork net = place(layers, o, world);
    const auto y_of = [&](double scale) {
      const View x = peek(net.x());
      for (std::int64_t i = 0; i < x.shape.size(); ++i) {
        const double v = scale * Random(1).normal(std::size_t(i));
        if (dtype == DType::f64)
          x.as<double>()[i] = v;
        else
          x.as<float>()[i] = float(v);
      }
      Stream stream;
      Context context{stream, false};
      net.forward(context);
      stream.wait();
      const View y = peek(net.steps()[std::size_t(step_of(net, "it"))].buffers.y);
      return std::string(y.as<char>(), y.bytes());
    };
    const std::string first = y_of(1);
    y_of(std::numeric_limits<double>::infinity());
    check(y_of(1) == first, "rank ", world.rank(), ": other values than in the first step");
  });
}

TEST_CASE("overlap: an exchange shows what is here, and zero for the rest", "[splits]") {
  run_ranks(2, [&](World& world) {
    const Shape whole{2, 3, 4, 5};
    const Blocks held = Blocks::of(whole, {.height = 2}, Axis::height, 2);
    const Blocks wanted{whole, {Box::of(whole), Box::of(whole)}, {0, 0}};
    Exchange exchange(held, wanted, DType::f64, world.comm());
    check(exchange.apart(), "rows of several images arrive in a buffer");
    const Tensor x(held.box[0].shape(), DType::f64), y(whole, DType::f64);
    const auto xs = x.view().as<double>(), ys = y.view().as<double>();
    std::fill_n(xs, x.view().shape.size(), double(world.rank() + 1));
    Stream stream;
    for (int again = 0; again < 2; ++again) {
      std::fill_n(ys, whole.size(), 7.0);
      const auto row_is = [&](std::int64_t h, double value) {
        for (std::int64_t i = 0; i < whole.n * whole.c; ++i)
          for (std::int64_t w = 0; w < whole.w; ++w)
            if (ys[(i * whole.h + h) * whole.w + w] != value) return false;
        return true;
      };
      exchange.start(stream, Pass::forward, x, y);
      exchange.preview(stream, Pass::forward, x, y);
      bool shown = true;  // nobody may leave while the peer waits
      for (int h = 0; h < 4; ++h)
        shown = shown && row_is(h, h / 2 == world.rank() ? world.rank() + 1 : 0);
      exchange.finish(stream, Pass::forward, x, y);
      check(shown, "rank ", world.rank(), " saw other values in between");
      for (int h = 0; h < 4; ++h) check(row_is(h, h / 2 + 1), "row ", h, " at the end");
    }
  });
}
