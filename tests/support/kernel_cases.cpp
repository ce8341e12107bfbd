// The table of kernels under test.
#include "support/kernel_cases.hpp"

#include "support/naive.hpp"

#include <lamina/kernels/dropout_mask.hpp>
#include <lamina/kernels/plain_weights.hpp>

namespace lamina::test {

std::vector<Values> run_weighted(Setup& setup, WeightedKernel& kernel,
                                 const std::vector<Values>& in, const Values& dy) {
  setup.algorithm = kernel.algorithm;
  const bool bias = in.size() == 3;
  const Tensor x = setup.place(kernel.inputs[0], in[0]), w = setup.place(kernel.w, in[1]);
  const Tensor b = bias ? setup.place(kernel.b, in[2]) : Tensor();
  const Tensor y = dirty(kernel.output);
  setup.run([&] { kernel.forward(setup.stream, x, w, b, y); });
  std::vector<Values> results{setup.read(y)};
  if (dy.empty()) return results;
  const Tensor gradient = setup.place(kernel.output, dy);
  const auto gradient_of = [&](Form form) {
    form.dtype = wide(form.dtype);
    return dirty(form);
  };
  const Tensor dx = dirty(kernel.inputs[0]), dw = gradient_of(kernel.w);
  const Tensor db = bias ? gradient_of(kernel.b) : Tensor();
  setup.run([&] {
    kernel.input_grad(setup.stream, w, gradient, dx);
    kernel.weight_grad(setup.stream, x, gradient, dw, db);
  });
  results.push_back(setup.read(dx));
  results.push_back(setup.read(dw));
  if (bias) results.push_back(setup.read(db));
  return results;
}

namespace {

using Inputs = std::vector<Values>;
using Results = std::vector<Values>;

// Tolerances of f32 against f64, in units of difference(): f32 rounds to 6e-8.
constexpr double exact = 0;            // copies and selections do not round
constexpr double one_rounding = 5e-7;  // a few operations per element
constexpr double sums = 2e-5;          // up to some thousand terms in an order of the kernel's own
constexpr double functions = 2e-5;     // exp, tanh and powers are approximated to some 1e-6
constexpr double winograd = 3e-4;      // its transforms amplify rounding by one to two digits

/// Operands that the kernel says it does not read are absent.
Results run_unary(Setup& setup, UnaryKernel& kernel, const Inputs& in, const Values& dy) {
  const Tensor x = setup.place(kernel.inputs[0], in[0]), y = dirty(kernel.output);
  setup.run([&] { kernel.forward(setup.stream, x, y); });
  Results results{setup.read(y)};
  if (dy.empty()) return results;
  const Tensor gradient = setup.place(kernel.output, dy), dx = dirty(kernel.inputs[0]);
  const Tensor kept = setup.stored == DType::f64
                          ? Tensor()
                          : setup.place(kernel.output, rounded(results[0], setup.stored));
  const View absent, kept_y = kept.view() ? kept.view() : y.view();
  setup.run([&] {
    kernel.input_grad(setup.stream, kernel.reads_x ? x.view() : absent,
                      kernel.reads_y ? kept_y : absent, gradient, dx);
  });
  results.push_back(setup.read(dx));
  return results;
}

Results run_nary(Setup& setup, NaryKernel& kernel, const Inputs& in, const Values& dy) {
  std::vector<Tensor> xs, dxs;
  std::vector<View> x_views, dx_views;
  for (std::size_t i = 0; i < in.size(); ++i) {
    x_views.push_back(xs.emplace_back(setup.place(kernel.inputs[i], in[i])));
    dx_views.push_back(dxs.emplace_back(dirty(kernel.inputs[i])));
  }
  const Tensor y = dirty(kernel.output);
  setup.run([&] { kernel.forward(setup.stream, x_views, y); });
  Results results{setup.read(y)};
  if (dy.empty()) return results;
  const Tensor gradient = setup.place(kernel.output, dy);
  setup.run([&] { kernel.input_grad(setup.stream, gradient, dx_views); });
  for (const Tensor& dx : dxs) results.push_back(setup.read(dx));
  return results;
}

Results run_norm(Setup& setup, Shape shape, double epsilon, const Inputs& in, const Values& dy) {
  const auto kernel = setup.backend.batch_norm(setup.form(shape));
  const Form vector{{1, shape.c, 1, 1}, DType::f64, {}},
      pair{{1, 2 * shape.c, 1, 1}, DType::f64, {}};
  const Form parameter{{1, shape.c, 1, 1}, wide(setup.dtype), {}};
  const bool affine = in.size() == 3;
  const double count = double(shape.size() / shape.c);
  Stream& stream = setup.stream;
  const Tensor x = setup.place(kernel->inputs[0], in[0]), y = dirty(kernel->output);
  const Tensor w = affine ? setup.place(parameter, in[1]) : Tensor();
  const Tensor b = affine ? setup.place(parameter, in[2]) : Tensor();
  const Tensor total = dirty(pair), mean = dirty(vector), inv_std = dirty(vector);
  const Tensor running_mean(parameter), running_var(parameter);
  setup.run([&] {
    kernel->statistics(stream, x, total);
    kernel->finish(stream, total, count, epsilon, 0.1, mean, inv_std, running_mean, running_var);
    kernel->normalize(stream, x, mean, inv_std, w, b, y);
  });
  Results results{setup.read(y)};
  if (dy.empty()) return results;
  const Tensor gradient = setup.place(kernel->output, dy), dx = dirty(kernel->inputs[0]);
  const Tensor dw = affine ? dirty(parameter) : Tensor(), db = affine ? dirty(parameter) : Tensor();
  const Tensor dots = dirty(pair);
  setup.run([&] {
    kernel->gradients(stream, x, mean, inv_std, gradient, dots, dw, db);
    kernel->input_grad(stream, x, mean, inv_std, w, gradient, dots, count, dx);
  });
  results.push_back(setup.read(dx));
  if (affine) results.push_back(setup.read(dw)), results.push_back(setup.read(db));
  return results;
}

std::vector<Case> cases;

ConvGeometry geometry(std::int64_t channels, Pair kernel, Pair stride = 1, Pad pad = 0,
                      std::int64_t groups = 1, Pair dilation = 1, bool bias = true) {
  ConvGeometry g;
  g.channels = channels, g.kernel = kernel, g.stride = stride, g.pad = pad;
  g.groups = groups, g.dilation = dilation, g.bias = bias;
  return g;
}

/// The last case again, by the kernel that `make(setup)` makes, with its weights in plain layout.
template <class Make>
void with_plain_weights(Make make) {
  Case c = cases.back();
  c.name += ", plain weights";
  c.run = [=](Setup& setup, const Inputs& in, const Values& dy) {
    auto of = make(setup);
    const DType gradients = wide(of->w.dtype);
    const auto kernel = lamina::with_plain_weights(setup.backend, std::move(of), gradients);
    check(kernel->w.layout.plain(), "weights in ", kernel->w);
    return run_weighted(setup, *kernel, in, dy);
  };
  cases.push_back(c);
}

void conv(std::string name, Shape x, const ConvGeometry& g, double tolerance = sums) {
  Case c{"conv " + name, {x, g.weight(x)}, g.output(x), tolerance, {}, {}};
  if (g.bias) c.inputs.push_back({1, g.channels, 1, 1});
  c.naive = [=](const Inputs& in) {
    return naive::conv(g, x, in[0], in[1], g.bias ? in[2] : Values());
  };
  const auto make = [=](const Setup& setup) { return setup.backend.conv(g, setup.form(x)); };
  c.run = [=](Setup& setup, const Inputs& in, const Values& dy) {
    return run_weighted(setup, *make(setup), in, dy);
  };
  cases.push_back(c);
  if (x.size() > 1000) with_plain_weights(make);
}

void linear(std::string name, Shape x, std::int64_t features, bool bias) {
  Case c{"linear " + name, {x, {features, x.c, x.h, x.w}}, {x.n, features, 1, 1}, sums, {}, {}};
  if (bias) c.inputs.push_back({1, features, 1, 1});
  c.naive = [=](const Inputs& in) {
    return naive::linear(x, features, in[0], in[1], bias ? in[2] : Values());
  };
  const auto make = [=](const Setup& setup) {
    return setup.backend.linear(features, bias, setup.form(x));
  };
  c.run = [=](Setup& setup, const Inputs& in, const Values& dy) {
    return run_weighted(setup, *make(setup), in, dy);
  };
  cases.push_back(c);
  if (x.size() > 1000) with_plain_weights(make);
}

/// `make(setup)` makes the kernel.
template <class Make, class Naive>
void unary(std::string name, Shape x, Shape y, double tolerance, Make make, Naive formula) {
  cases.push_back({name,
                   {x},
                   y,
                   tolerance,
                   [=](const Inputs& in) { return formula(in[0]); },
                   [=](Setup& setup, const Inputs& in, const Values& dy) {
                     return run_unary(setup, *make(setup), in, dy);
                   }});
}

void pool(std::string name, Shape x, PoolGeometry g) {
  const bool max = g.kind == PoolGeometry::Kind::max;
  // Overlapping windows add up gradients, so even a maximum rounds.
  unary((max ? "max pool " : "average pool ") + name, x, g.output(x), one_rounding,
        [=](const Setup& s) { return s.backend.pool(g, s.form(x)); },
        [=](const Values& in) { return naive::pool(g, x, in); });
}

void pools(std::string name, Shape x, PoolGeometry g) {
  pool(name, x, g);
  g.kind = PoolGeometry::Kind::average;
  pool(name, x, g);
  g.count_padding = true;
  pool(name + ", padding counted", x, g);
}

void activation(std::string name, Activation a, double tolerance, double (*formula)(double)) {
  for (const Shape x : {Shape{2, 5, 3, 4}, Shape{1, 35, 7, 1}}) {
    unary(
        name + " " + x.text(), x, x, tolerance,
        [=](const Setup& s) { return s.backend.activation(a, s.form(x)); },
        [=](Values values) {
          for (double& v : values) v = formula(v);
          return values;
        });
  }
}

void nary(std::string name, std::vector<Shape> xs, Shape y, double tolerance, bool concat,
          std::function<Values(const Inputs&)> formula) {
  cases.push_back(
      {name, xs, y, tolerance, formula, [=](Setup& setup, const Inputs& in, const Values& dy) {
         std::vector<Form> forms;
         for (const Shape& x : xs) forms.push_back(setup.form(x));
         const auto kernel = concat ? setup.backend.concat(forms) : setup.backend.sum(forms);
         return run_nary(setup, *kernel, in, dy);
       }});
}

void norm(std::string name, Shape x, bool affine) {
  Case c{"batch norm " + name, {x}, x, sums, {}, {}};
  if (affine) c.inputs.resize(3, {1, x.c, 1, 1});
  c.naive = [=](const Inputs& in) {
    return naive::batch_norm(x, 1e-3, in[0], affine ? in[1] : Values(), affine ? in[2] : Values());
  };
  c.run = [=](Setup& setup, const Inputs& in, const Values& dy) {
    return run_norm(setup, x, 1e-3, in, dy);
  };
  cases.push_back(c);
}

/// Its output is the summed loss, its dy the scale.
void loss(std::string name, std::int64_t classes, std::vector<int> labels, double smoothing) {
  const Shape x{std::int64_t(labels.size()), classes, 1, 1};
  cases.push_back(
      {"loss " + name,
       {x},
       {},
       functions,
       [=](const Inputs& in) {
         return Values{naive::cross_entropy(classes, smoothing, in[0], labels)};
       },
       [=](Setup& setup, const Inputs& in, const Values& dy) {
         const Form logits{x, setup.dtype, {}};
         const auto vector = [](std::int64_t size) {
           return Form{{1, size, 1, 1}, DType::f64, {}};
         };
         const auto kernel = setup.backend.softmax_cross_entropy({smoothing}, logits);
         const Tensor in_x = setup.place(logits, in[0]), p = dirty(kernel->output);
         const Tensor label =
             setup.place({{x.n, 1, 1, 1}, DType::i32, {}}, Values(labels.begin(), labels.end()));
         const Tensor totals = dirty(vector(5)), rows = dirty(vector(1)), dx = dirty(logits);
         const Tensor largest = dirty(vector(2 * x.n + 1));
         const Tensor row_sums = dirty({{3, x.n, 1, 1}, DType::f64, {}}), now = passed({});
         setup.run([&] {
           kernel->largest(setup.stream, in_x, label, now, largest);
           kernel->sums(setup.stream, in_x, label, largest, p, row_sums);
           kernel->finish(setup.stream, label, largest, row_sums, p, totals);
         });
         Results results{{totals.as<double>()[0]}};
         if (dy.empty()) return results;
         setup.run([&] { kernel->input_grad(setup.stream, p, label, rows, 1 / dy[0], dx); });
         results.push_back(setup.read(dx));
         return results;
       }});
}

constexpr StepValues dropped{.seed = 7, .step = 2, .micro_batch = 3};

/// Of a block that starts at position `first` of a whole.
void dropout(Shape whole, double rate, Box box) {
  const Shape x = box.shape();
  Case c{text("dropout ", rate, " within ", whole), {x}, x, one_rounding, {}, {}};
  c.run = [=](Setup& setup, const Inputs& in, const Values& dy) {
    const auto kernel = setup.backend.dropout(rate, setup.form(x), whole, box);
    const Tensor from = setup.place(kernel->inputs[0], in[0]), y = dirty(kernel->output);
    const Tensor now = passed(dropped);
    setup.run([&] { kernel->apply(setup.stream, Pass::forward, now.view(), 3, from, y); });
    Results results{setup.read(y)};
    if (dy.empty()) return results;
    const Tensor gradient = setup.place(kernel->output, dy), dx = dirty(kernel->inputs[0]);
    setup.run([&] { kernel->apply(setup.stream, Pass::input_grad, now.view(), 3, gradient, dx); });
    results.push_back(setup.read(dx));
    return results;
  };
  c.naive = [=](const Inputs& in) {
    const DropoutMask mask(rate, dropped, 3, whole.size());
    Values y = in[0];
    std::size_t i = 0;
    for (std::int64_t n = box.n.begin; n < box.n.end(); ++n)
      for (std::int64_t k = box.c.begin; k < box.c.end(); ++k)
        for (std::int64_t h = box.h.begin; h < box.h.end(); ++h)
          for (std::int64_t w = box.w.begin; w < box.w.end(); ++w, ++i) {
            const std::int64_t index = ((n * whole.c + k) * whole.h + h) * whole.w + w;
            y[i] = mask.keeps(std::uint64_t(index)) ? y[i] / (1 - rate) : 0;
          }
    return y;
  };
  cases.push_back(c);
}

void add_convolutions() {
  conv("1x1", {2, 3, 4, 5}, geometry(4, 1));
  conv("3x3", {2, 3, 5, 4}, geometry(4, 3, 1, 1));
  conv("without bias", {2, 3, 5, 4}, geometry(4, 3, 1, 1, 1, 1, false));
  conv("with unlike pads", {1, 2, 4, 5}, geometry(3, {2, 3}, 1, {0, 2, 1, 0}));
  conv("with unlike strides", {2, 2, 7, 9}, geometry(3, {3, 2}, {2, 3}, {1, 0}));
  conv("dilated", {1, 2, 8, 7}, geometry(3, {3, 2}, 1, {2, 1}, 1, {2, 3}));
  conv("dilated and strided", {1, 2, 9, 9}, geometry(2, 3, 2, 2, 1, 2));
  conv("in 2 groups", {2, 4, 4, 4}, geometry(6, 3, 1, 1, 2));
  conv("1x1 in 3 groups", {2, 6, 3, 4}, geometry(3, 1, 1, 0, 3));
  conv("depthwise", {2, 3, 5, 5}, geometry(6, 3, 1, 1, 3));
  conv("1x1 of stride 2", {2, 3, 5, 6}, geometry(4, 1, 2));
  conv("1x1 with padding", {1, 2, 3, 3}, geometry(3, 1, 1, 1));
  conv("window larger than the input", {2, 2, 2, 3}, geometry(3, 5, 1, 2));
  conv("window as large as the input", {2, 3, 4, 5}, geometry(3, {4, 5}));

  conv("first of ResNet", {2, 3, 37, 37}, geometry(64, 7, 2, 3, 1, 1, false));
  conv("first of AlexNet", {1, 3, 63, 63}, geometry(64, 11, 4, 2));
  conv("first of LeNet", {3, 1, 28, 28}, geometry(6, 5));
  conv("second of LeNet", {3, 6, 12, 12}, geometry(16, 5));
  conv("3x3, 64 channels", {3, 64, 14, 14}, geometry(64, 3, 1, 1), winograd);
  conv("3x3, 64 channels, 1 sample", {1, 64, 28, 28}, geometry(64, 3, 1, 1), winograd);
  conv("3x3, odd channels", {3, 20, 9, 9}, geometry(23, 3, 1, 1), winograd);
  conv("3x3 of stride 2", {2, 32, 15, 15}, geometry(64, 3, 2, 1), winograd);
  conv("1x1, many channels", {3, 64, 7, 7}, geometry(256, 1, 1, 0, 1, 1, false));
  conv("1x1 of stride 2, 128 channels", {2, 64, 14, 14}, geometry(128, 1, 2));
  conv("3x3, unlike pads", {2, 16, 17, 32}, geometry(24, 3, 1, {1, 1, 0, 1}), winograd);
  conv("3x3, 20 of 24 channels", {1, 24, 21, 30}, geometry(20, 3, 1, {0, 2, 2, 1}), winograd);
  conv("3x3, without bias", {3, 8, 30, 29}, geometry(8, 3, 1, 1, 1, 1, false), winograd);
  conv("5x5 of GoogLeNet", {2, 24, 14, 14}, geometry(64, 5, 1, 2));
  conv("5x5, 2 channels", {2, 2, 14, 14}, geometry(12, 5, 1, 2));
  conv("3x3 dilated, 16 channels", {2, 16, 14, 14}, geometry(32, 3, 1, 2, 1, 2), winograd);
  conv("3x3 dilated of stride 2", {2, 16, 14, 14}, geometry(32, 3, 2, 2, 1, 2), winograd);
  conv("depthwise 5x5, 32 channels", {2, 32, 14, 14}, geometry(32, 5, 1, 2, 32));
  conv("depthwise, 32 channels", {2, 32, 14, 14}, geometry(32, 3, 1, 1, 32), winograd);
  conv("5x5 in 2 groups", {2, 32, 13, 13}, geometry(48, 5, 1, 2, 2));
}

void add_pools() {
  using G = PoolGeometry;
  const auto max = G::Kind::max;
  pools("2x2", {2, 3, 4, 6}, {});
  pools("3x3 of stride 2 with padding", {2, 3, 7, 6}, {max, 3, 2, 1});
  pools("with unlike pads", {1, 2, 5, 6}, {max, {3, 2}, {2, 1}, {0, 1, 2, 0}});
  pools("rounded up", {2, 2, 6, 5}, {max, 3, 2, 0, true});
  pools("rounded up with padding", {1, 3, 6, 6}, {max, 3, 2, 1, true});
  pools("2x2 rounded up, last window in the padding", {1, 2, 5, 5}, {max, 2, 2, 1, true});
  pools("over the whole image", {2, 5, 4, 3}, {max, {4, 3}, 1});
  pools("stride larger than the window", {1, 2, 8, 8}, {max, 2, 3});
  pools("of ResNet", {2, 35, 14, 14}, {max, 3, 2, 1});
  // Places of maxima within a window fit into a byte, or just do not.
  pool("16x16", {1, 9, 18, 17}, {max, 16, 1});
  pool("17x16", {1, 9, 18, 17}, {max, {17, 16}, 1});
}

std::vector<Case> all_cases() {
  add_convolutions();
  linear("of vectors", {3, 7, 1, 1}, 5, true);
  linear("of images", {2, 3, 2, 4}, 5, true);
  linear("without bias", {2, 6, 1, 1}, 4, false);
  linear("of VGG", {3, 48, 7, 7}, 300, true);
  linear("of ResNet", {1, 512, 1, 1}, 1000, true);
  add_pools();

  using Kind = Activation::Kind;
  activation("relu", {Kind::relu}, exact, [](double x) { return x > 0 ? x : 0; });
  activation("leaky relu", {Kind::leaky_relu, 0.1}, one_rounding,
             [](double x) { return x > 0 ? x : 0.1 * x; });
  activation("sigmoid", {Kind::sigmoid}, functions,
             [](double x) { return 1 / (1 + std::exp(-x)); });
  activation("tanh", {Kind::tanh}, functions, [](double x) { return std::tanh(x); });

  for (const auto& [x, g] : {std::pair{Shape{2, 7, 2, 3}, LrnGeometry{5, 0.9, 0.75, 2}},
                             {{2, 4, 3, 2}, {3, 1.2, 0.6, 1}},
                             {{1, 2, 2, 2}, {5, 1, 0.75, 1}},
                             {{2, 33, 5, 5}, {}}}) {
    unary(
        text("lrn of size ", g.size, ", ", x), x, x, functions,
        [x = x, g = g](const Setup& s) { return s.backend.lrn(g, s.form(x)); },
        [x = x, g = g](const Values& in) { return naive::lrn(g, x, in); });
  }
  for (const Shape x : {Shape{3, 7, 1, 1}, Shape{2, 5, 3, 2}, Shape{2, 100, 1, 1}}) {
    unary(
        "softmax " + x.text(), x, x, functions,
        [=](const Setup& s) { return s.backend.softmax(s.form(x)); },
        [=](const Values& in) { return naive::softmax(x, in); });
  }
  for (const Shape x : {Shape{2, 5, 3, 4}, Shape{3, 32, 4, 4}}) {
    unary(
        "reorder " + x.text(), x, x, exact,
        [=](const Setup& s) {
          return s.backend.reorder({x, s.dtype, {}}, s.form(x));
        },
        [=](const Values& in) { return in; });
  }

  nary("sum of 2", {{2, 3, 4, 5}, {2, 3, 4, 5}}, {2, 3, 4, 5}, one_rounding, false,
       [](const Inputs& in) {
         Values y = in[0];
         for (std::size_t i = 0; i < y.size(); ++i) y[i] += in[1][i];
         return y;
       });
  nary("sum of 3", {{1, 17, 3, 3}, {1, 17, 3, 3}, {1, 17, 3, 3}}, {1, 17, 3, 3}, one_rounding,
       false, [](const Inputs& in) {
         Values y = in[0];
         for (std::size_t i = 0; i < y.size(); ++i) y[i] += in[1][i] + in[2][i];
         return y;
       });
  for (const auto& [a, b] :
       {std::pair{Shape{2, 3, 2, 3}, Shape{2, 4, 2, 3}}, {{2, 16, 3, 3}, {2, 32, 3, 3}}}) {
    nary(text("concat ", a, " and ", b), {a, b}, {a.n, a.c + b.c, a.h, a.w}, exact, true,
         [a = a, b = b](const Inputs& in) {
           Values y;
           for (std::int64_t n = 0; n < a.n; ++n) {
             y.insert(y.end(), &in[0][n * a.sample()], &in[0][n * a.sample()] + a.sample());
             y.insert(y.end(), &in[1][n * b.sample()], &in[1][n * b.sample()] + b.sample());
           }
           return y;
         });
  }

  norm("2x3", {2, 3, 4, 5}, true);
  norm("without weights", {3, 4, 2, 2}, false);
  norm("of vectors", {6, 5, 1, 1}, true);
  norm("odd channels", {3, 35, 7, 7}, true);
  norm("64 channels", {2, 64, 14, 14}, true);

  loss("of 4 classes", 4, {1, 3, 0}, 0);
  loss("with smoothing", 6, {5, 0, 2, 2}, 0.1);
  loss("with rows that do not count", 5, {-1, 4, -1, 0}, 0.2);
  loss("of 1000 classes", 1000, {999, 500}, 0.1);

  dropout({8, 5, 4, 4}, 0.5, {{3, 3}, {0, 5}, {0, 4}, {0, 4}});
  dropout({2, 40, 3, 3}, 0.1, {{0, 2}, {7, 33}, {0, 3}, {0, 3}});
  dropout({3, 7, 4, 5}, 0.5, {{1, 2}, {4, 3}, {2, 2}, {0, 5}});
  dropout({3, 3, 6, 8}, 0.5, {{0, 2}, {0, 3}, {4, 2}, {3, 5}});
  return std::move(cases);
}

}  // namespace

std::vector<Case> kernel_cases() {
  static const std::vector<Case> all = all_cases();
  return all;
}

}  // namespace lamina::test
