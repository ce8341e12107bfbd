// Times single kernels of a back end: what each reaches by itself, without a network around it.
#include "flags.hpp"

#include <lamina/base/flush_denormals.hpp>
#include <lamina/base/random.hpp>
#include <lamina/base/threads.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/layers/conv2d.hpp>
#include <lamina/network/models.hpp>
#include <lamina/network/network.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <set>

namespace {

using namespace lamina;

/// What computes, and with elements of what type.
struct Target {
  std::shared_ptr<const Backend> backend;
  DType dtype;
  const Backend* operator->() const { return backend.get(); }
};

/// 1 multiply-add = 2 FLOP; bytes count every operand once.
struct Work {
  double flops, bytes;
};

template <class... Operands>
double bytes(const Operands&... operands) {
  return (double(operands.bytes()) + ...);
}

Tensor random_tensor(const Target& on, const Form& form, std::uint64_t seed) {
  Tensor plain(form.shape, wide(form.dtype)), tensor(form);
  const Random random(seed);
  for (std::size_t i = 0; float& v : plain.elements<float>()) v = random.normal(i++);
  on->copy(plain, tensor);
  return tensor;
}

/// The form that the convolutions of the back end write.
Form native(const Target& on, Shape shape) {
  ConvGeometry g;
  g.channels = shape.c;
  return on->conv(g, {shape, on.dtype, {}})->output;
}

/// Registers a benchmark. `make` places kernel and operands when the benchmark starts, and returns
/// what runs once, its work and a label.
struct Ready {
  std::function<void()> run;
  Work work;
  std::string label;
  double images = 0;  // of each run, where it makes sense to count these
};
void add(const std::string& name, std::function<Ready()> make) {
  benchmark::RegisterBenchmark(
      name.c_str(),
      [make = std::move(make)](benchmark::State& state) {
        const Ready ready = make();
        ready.run();
        for (auto _ : state) ready.run();
        using benchmark::Counter;
        state.counters["FLOP/s"] = Counter(ready.work.flops, Counter::kIsIterationInvariantRate);
        state.counters["B/s"] = Counter(ready.work.bytes, Counter::kIsIterationInvariantRate);
        if (ready.images > 0)
          state.counters["images/s"] = Counter(ready.images, Counter::kIsIterationInvariantRate);
        state.SetLabel(ready.label);
      })
      ->Unit(benchmark::kMicrosecond)
      ->UseRealTime();
}

using MakeWeighted = std::function<std::shared_ptr<WeightedKernel>()>;

/// A kernel with weights, and what its passes read and write: y is dy, too, and x is dx.
struct Weighted {
  Weighted(const Target& on, std::shared_ptr<WeightedKernel> made)
      : kernel(std::move(made)),
        x(random_tensor(on, kernel->inputs[0], 1)),
        w(random_tensor(on, kernel->w, 2)),
        y(random_tensor(on, kernel->output, 3)) {
    Form gradient = kernel->w;
    gradient.dtype = wide(gradient.dtype);
    dw = Tensor(gradient);
  }

  /// Of one pass.
  Work work() const {
    const Shape s = kernel->w.shape;
    return {2.0 * double(kernel->output.shape.size()) * double(s.c * s.h * s.w), bytes(x, w, y)};
  }
  void forward() { kernel->forward(stream, x, w, {}, y); }
  void input_grad() { kernel->input_grad(stream, w, y, x); }
  void weight_grad() { kernel->weight_grad(stream, x, y, dw, {}); }

  std::shared_ptr<WeightedKernel> kernel;
  Tensor x, w, y, dw;
  Stream stream;
};

void add_weighted(const Target& on, const std::string& name, const MakeWeighted& make) {
  const auto pass = [&](const char* which, void (Weighted::*run)()) {
    add(text(name, '/', which), [=] {
      const auto o = std::make_shared<Weighted>(on, make());
      return Ready{[=] { (*o.*run)(); }, o->work(), o->kernel->algorithm};
    });
  };
  pass("forward", &Weighted::forward);
  pass("input_grad", &Weighted::input_grad);
  pass("weight_grad", &Weighted::weight_grad);
}

/// A training step of a model that had nothing but its convolutions and linear layers: the bound of
/// what it can reach with these kernels. Each has operands of its own.
void add_model(const Target& on, const std::string& name, std::int64_t n) {
  add(text("model/", name), [=] {
    const Network network = make_model(name);
    auto all = std::make_shared<std::vector<std::unique_ptr<Weighted>>>();
    double flops = 0, moved = 0;
    for (const Network::Vertex& v : network.graph()) {
      if (!v.layer || !v.layer->multiplies()) continue;
      const Shape x = network.input_shapes(v, n)[0];
      const Form form = x.c < 4 ? Form{x, on.dtype, {}} : native(on, x);
      const auto* conv = dynamic_cast<const Conv2D*>(v.layer.get());
      ConvGeometry g = conv ? conv->geometry() : ConvGeometry();
      g.bias = false;
      std::shared_ptr<WeightedKernel> kernel =
          conv ? on->conv(g, form) : on->linear(v.shape.c, false, form);
      all->push_back(std::make_unique<Weighted>(on, std::move(kernel)));
      const Work each = all->back()->work();
      const double passes = all->size() == 1 ? 2 : 3;  // the first one's dx is not wanted
      flops += passes * each.flops, moved += passes * each.bytes;
    }
    const auto step = [all] {
      for (const auto& o : *all) o->forward();
      for (std::size_t i = all->size(); i-- > 0;) {
        if (i > 0) (*all)[i]->input_grad();
        (*all)[i]->weight_grad();
      }
    };
    return Ready{step, {flops, moved}, text(all->size(), " kernels"), double(n)};
  });
}

void add_conv(const Target& on, const std::string& name, Shape x, std::int64_t channels,
              Pair kernel, Pair stride, Pad pad, std::int64_t groups = 1) {
  ConvGeometry g;
  g.channels = channels, g.kernel = kernel, g.stride = stride, g.pad = pad, g.groups = groups;
  g.bias = false;
  const auto form = [=] { return x.c < 4 ? Form{x, on.dtype, {}} : native(on, x); };
  add_weighted(on, "conv/" + name,
               [=]() -> std::shared_ptr<WeightedKernel> { return on->conv(g, form()); });
  // With weights that stay.
  add(text("conv/", name, "/inference"), [=] {
    const auto o = std::make_shared<Weighted>(on, on->conv_forward(g, form()));
    return Ready{[=] { o->forward(); }, o->work(), o->kernel->algorithm};
  });
}

using MakeUnary = std::function<std::shared_ptr<UnaryKernel>()>;

void add_unary(const Target& on, const std::string& name, const MakeUnary& make) {
  struct Operands {
    std::shared_ptr<UnaryKernel> kernel;
    Tensor x, y, dx, dy;
    Stream stream;
  };
  const auto place = [on, make] {
    auto o = std::make_shared<Operands>();
    o->kernel = make();
    o->x = random_tensor(on, o->kernel->inputs[0], 1);
    o->y = Tensor(o->kernel->output);
    o->dx = Tensor(o->kernel->inputs[0]);
    o->dy = random_tensor(on, o->kernel->output, 2);
    o->kernel->forward(o->stream, o->x, o->y);
    return o;
  };
  add(name + "/forward", [=] {
    const auto o = place();
    return Ready{[o] { o->kernel->forward(o->stream, o->x, o->y); },
                 {0, bytes(o->x, o->y)},
                 o->kernel->algorithm};
  });
  add(name + "/input_grad", [=] {
    const auto o = place();
    return Ready{[o] { o->kernel->input_grad(o->stream, o->x, o->y, o->dy, o->dx); },
                 {0, bytes(o->dy, o->dx) + (o->kernel->reads_x ? bytes(o->x) : 0) +
                         (o->kernel->reads_y ? bytes(o->y) : 0)},
                 o->kernel->algorithm};
  });
}

/// Batch norm, and what a step of training fuses with it.
void add_norm(const Target& on, Shape shape, const Epilogue& e = {}) {
  struct Operands {
    std::unique_ptr<NormKernel> kernel;
    Tensor x, y, added, dy, dadded, dx, signs, w, b, sums, mean, inv_std, running_mean, running_var;
    double count;
    Stream stream;
  };
  const auto place = [on, shape, e] {
    auto o = std::make_shared<Operands>();
    o->kernel = on->batch_norm(native(on, shape), e);
    const Form parameter{{1, shape.c, 1, 1}, wide(on.dtype), {}}, &y = o->kernel->output;
    o->x = random_tensor(on, o->kernel->inputs[0], 1);
    o->y = Tensor(y), o->dy = random_tensor(on, y, 2);
    o->dx = Tensor(o->kernel->inputs[0]);
    if (e.add) o->added = random_tensor(on, y, 5), o->dadded = Tensor(y);
    if (e.activation) o->signs = Tensor(o->kernel->signs);
    o->w = random_tensor(on, parameter, 3), o->b = random_tensor(on, parameter, 4);
    o->sums = Tensor({1, 2 * shape.c, 1, 1}, DType::f64);
    o->mean = Tensor({1, shape.c, 1, 1}, DType::f64);
    o->inv_std = Tensor({1, shape.c, 1, 1}, DType::f64);
    o->running_mean = Tensor(parameter), o->running_var = Tensor(parameter);
    o->count = double(shape.size() / shape.c);
    return o;
  };
  const std::string name =
      text("batch_norm", e.add ? "_add" : "", e.activation ? "_relu" : "", '/', shape, '/');
  add(name + "statistics", [=] {
    const auto o = place();
    return Ready{[o] {
                   o->kernel->statistics(o->stream, o->x, o->sums);
                   o->kernel->finish(o->stream, o->sums, o->count, 1e-5, 0.1, o->mean, o->inv_std,
                                     o->running_mean, o->running_var);
                 },
                 {0, bytes(o->x)},
                 o->kernel->algorithm};
  });
  add(name + "normalize", [=] {
    const auto o = place();
    return Ready{[o] {
                   o->kernel->normalize(o->stream, o->x, o->mean, o->inv_std, o->w, o->b, o->y,
                                        o->added, o->signs);
                 },
                 {0, bytes(o->x, o->added, o->y, o->signs)},
                 o->kernel->algorithm};
  });
  add(name + "gradients", [=] {
    const auto o = place();
    return Ready{[o] {
                   o->kernel->gradients(o->stream, o->x, o->mean, o->inv_std, o->dy, o->sums, o->w,
                                        o->b, o->signs, o->dadded);
                 },
                 {0, bytes(o->x, o->dy, o->signs, o->dadded)},
                 o->kernel->algorithm};
  });
  add(name + "input_grad", [=] {
    const auto o = place();
    const bool add = e.add;  // dy behind the activation was written then
    return Ready{[o, add] {
                   o->kernel->input_grad(o->stream, o->x, o->mean, o->inv_std, o->w,
                                         add ? o->dadded : o->dy, o->sums, o->count, o->dx,
                                         add ? View() : o->signs.view());
                 },
                 {0, bytes(o->x, o->dy, o->dx) + (add ? 0 : bytes(o->signs))},
                 o->kernel->algorithm};
  });
}

void add_dropout(const Target& on, Shape shape) {
  struct Operands {
    std::unique_ptr<DropoutKernel> kernel;
    Tensor now{Passed<StepValues>::form()}, x, y;
    Stream stream;
  };
  add(text("dropout/", shape), [=] {
    auto o = std::make_shared<Operands>();
    const Form form = native(on, shape);
    o->kernel = on->dropout(0.5, form, shape, Box::of(shape));
    o->x = random_tensor(on, o->kernel->inputs[0], 1), o->y = Tensor(o->kernel->output);
    return Ready{[o] { o->kernel->apply(o->stream, Pass::forward, o->now, 0, o->x, o->y); },
                 {0, bytes(o->x, o->y)},
                 o->kernel->algorithm};
  });
}

/// Of two tensors of that shape: their sum, or one behind the other.
void add_join(const Target& on, bool sum, Shape shape) {
  struct Operands {
    std::unique_ptr<NaryKernel> kernel;
    Tensor x1, x2, y;
    std::vector<View> xs;
    Stream stream;
  };
  add(text(sum ? "sum/" : "concat/", shape, "/forward"), [=] {
    auto o = std::make_shared<Operands>();
    const std::vector<Form> forms(2, native(on, shape));
    o->kernel = sum ? on->sum(forms) : on->concat(forms);
    o->x1 = random_tensor(on, forms[0], 1), o->x2 = random_tensor(on, forms[0], 2);
    o->y = Tensor(o->kernel->output);
    o->xs = {o->x1, o->x2};
    return Ready{[o] { o->kernel->forward(o->stream, o->xs, o->y); },
                 {sum ? double(shape.size()) : 0, bytes(o->x1, o->x2, o->y)},
                 o->kernel->algorithm};
  });
}

void add_update(const Target& on, const std::string& name, UpdateRule rule, std::int64_t size) {
  struct Operands {
    Tensor w, dw, rounded;
    std::vector<Tensor> states;
    std::unique_ptr<UpdateKernel> kernel;
    Stream stream;
  };
  add("update/" + name, [=] {
    auto o = std::make_shared<Operands>();
    const Form form{{size, 1, 1, 1}, wide(on.dtype), {}};
    o->w = random_tensor(on, form, 1), o->dw = random_tensor(on, form, 2);
    UpdatePart part{.w = o->w, .dw = o->dw};
    if (on.dtype != form.dtype)  // w are master weights
      part.rounded = o->rounded = Tensor({{size, 1, 1, 1}, on.dtype, {}});
    for (int i = 0; i < rule.states(); ++i) part.states.push_back(o->states.emplace_back(form));
    o->kernel = on->update(rule, {part});
    // All but the gradient are read and written.
    return Ready{[o] { o->kernel->run(o->stream, {.rate = 1e-3, .weight_decay = 1e-4}); },
                 {0, bytes(o->dw) * (3 + 2 * rule.states()) + bytes(o->rounded)},
                 ""};
  });
}

void add_all(const Target& on, std::int64_t n) {
  add_conv(on, "resnet_7x7_s2", {n, 3, 224, 224}, 64, 7, 2, 3);
  add_conv(on, "resnet_3x3_64", {n, 64, 56, 56}, 64, 3, 1, 1);
  add_conv(on, "resnet_3x3_128", {n, 128, 28, 28}, 128, 3, 1, 1);
  add_conv(on, "resnet_3x3_128_s2", {n, 128, 56, 56}, 128, 3, 2, 1);
  add_conv(on, "resnet_3x3_256", {n, 256, 14, 14}, 256, 3, 1, 1);
  add_conv(on, "resnet_3x3_512", {n, 512, 7, 7}, 512, 3, 1, 1);
  add_conv(on, "resnet_1x1_64_256", {n, 64, 56, 56}, 256, 1, 1, 0);
  add_conv(on, "resnet_1x1_1024_256", {n, 1024, 14, 14}, 256, 1, 1, 0);
  add_conv(on, "resnet_1x1_256_512_s2", {n, 256, 56, 56}, 512, 1, 2, 0);
  add_conv(on, "vgg_3x3_64", {n, 64, 112, 112}, 128, 3, 1, 1);
  add_conv(on, "alexnet_11x11_s4", {n, 3, 224, 224}, 64, 11, 4, 2);
  add_conv(on, "depthwise_3x3_128", {n, 128, 28, 28}, 128, 3, 1, 1, 128);
  add_conv(on, "lenet_5x5", {n, 1, 28, 28}, 6, 5, 1, 2);

  const auto linear = [&](Shape x, std::int64_t features) {
    add_weighted(on, text("linear/", x.sample(), "_", features),
                 [=]() -> std::shared_ptr<WeightedKernel> {
                   return on->linear(features, false, native(on, x));
                 });
  };
  linear({n, 2048, 1, 1}, 1000);
  linear({n, 512, 7, 7}, 4096);

  const Shape wide{n, 64, 56, 56};
  const Activation relu{Activation::Kind::relu};
  for (const Epilogue& e : {Epilogue{}, Epilogue{false, relu}, Epilogue{true, relu}})
    add_norm(on, wide, e);
  for (const Shape shape : {Shape{n, 64, 112, 112}, {n, 256, 56, 56}, {n, 512, 7, 7}})
    add_norm(on, shape);
  add_dropout(on, {n, 4096, 1, 1}), add_dropout(on, {n, 256, 28, 28});
  add_unary(on, text("relu/", wide),
            [=]() -> std::shared_ptr<UnaryKernel> { return on->activation({}, native(on, wide)); });
  const auto pool = [&](const std::string& name, PoolGeometry g, Shape x) {
    add_unary(on, text(name, x),
              [=]() -> std::shared_ptr<UnaryKernel> { return on->pool(g, native(on, x)); });
  };
  using Kind = PoolGeometry::Kind;
  pool("max_pool_3x3_s2/", {.kind = Kind::max, .window = 3, .stride = 2, .pad = 1},
       {n, 64, 112, 112});
  pool("average_pool/", {.kind = Kind::average, .window = 7, .stride = 1}, {n, 2048, 7, 7});
  for (const bool sum : {true, false}) add_join(on, sum, {n, 256, 56, 56});

  constexpr std::int64_t parameters = 4 << 20;
  add_update(on, "sgd", {}, parameters);
  add_update(on, "momentum", {.momentum = 0.9}, parameters);
  add_update(on, "adam", {.kind = UpdateRule::Kind::adam}, parameters);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::string name = "auto", type = "f32", model, only;
    std::int64_t batch = 8;
    int threads = default_threads(1);
    CLI::App app(
        "Times single kernels of a back end. Flags --benchmark_* (filter, min_time, format, "
        "out, ...) are those of Google Benchmark.");
    app.add_option("--backend", name, "auto, reference, onednn or onednn:mixed")
        ->capture_default_str();
    app.add_option("--model", model,
                   "instead of single kernels: a step of nothing but the convolutions and linear "
                   "layers of this model");
    app.add_option("--dtype", type, "f32 or bf16")->capture_default_str();
    app.add_option("--only", only,
                   "of oneDNN's and our own convolutions those that have this in their name");
    cli::count(app, "--batch-size", batch, 1, "samples")->capture_default_str();
    cli::count(app, "--threads", threads, 1, "of the kernels", 1024)->capture_default_str();
    app.allow_extras();
    if (const auto status = cli::parse(app, argc, argv)) return *status;
    set_threads(threads);
    bind_threads(), flush_denormals();  // as a whole step has them

    const DType dtype = parse_dtype(type);
    check(wide(dtype) == DType::f32, "--dtype: expected f32 or bf16, got ", type);
    check(only.empty() || name == "auto" || name == "onednn",
          "--only: expected --backend auto or onednn, got ", name);
    std::set<std::string> offered;
    const auto backend = only.empty() ? make_backend(name, dtype)
                                      : onednn_backend({.only = only, .offered = &offered});
    std::vector<std::string> rest = app.remaining();
    rest.insert(rest.begin(), argv[0]);
    std::vector<char*> pointers;
    for (std::string& s : rest) pointers.push_back(s.data());
    int count = int(pointers.size());
    benchmark::Initialize(&count, pointers.data());
    if (benchmark::ReportUnrecognizedArguments(count, pointers.data())) return 2;
    benchmark::AddCustomContext("backend", backend->description());
    benchmark::AddCustomContext("batch_size", std::to_string(batch));
    benchmark::AddCustomContext("threads", std::to_string(threads));
    if (model.empty())
      add_all({backend, dtype}, batch);
    else
      add_model({backend, dtype}, model, batch);
    check(benchmark::RunSpecifiedBenchmarks() > 0,
          "--benchmark_filter: expected a part of a benchmark's name; --benchmark_list_tests");
    const auto has = [&](const std::string& s) { return s.find(only) != std::string::npos; };
    if (offered.empty() || std::ranges::any_of(offered, has)) return 0;
    throw Error(
        text("--only ", only, ": expected a part of one of these names: ", in_words(offered)));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_layers: %s\n", e.what());
    return 1;
  }
}
