// What the table of cases does not show: ties, labels, running averages, masks, copies and
// refusals, on every back end.
#include "catch.hpp"
#include "support/operands.hpp"

#include <lamina/base/threads.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/kernels/dropout_mask.hpp>

#include <cstring>
#include <limits>

using namespace lamina;
using namespace lamina::test;

namespace {

Form f64_vector(std::int64_t c) { return {{1, c, 1, 1}, DType::f64, {}}; }

/// Runs max pooling without padding on one channel; returns y and dx.
std::pair<Values, Values> max_pool(Setup& s, Shape shape, Pair window, Pad pad, const Values& in,
                                   const Values& dy) {
  PoolGeometry g;
  g.window = window, g.stride = window, g.pad = pad;
  const auto kernel = s.backend.pool(g, s.form(shape));
  const Tensor x = s.place(kernel->inputs[0], in), y = dirty(kernel->output);
  const Tensor gradient = s.place(kernel->output, dy), dx = dirty(kernel->inputs[0]);
  kernel->forward(s.stream, x, y);
  kernel->input_grad(s.stream, x, y, gradient, dx);
  return {s.read(y), s.read(dx)};
}

struct Loss {
  Values totals, p, dx, mean, mean_dx;
};

Loss loss(Setup& s, std::int64_t classes, const Values& logits, const Values& labels,
          double scale = 1) {
  const Form form{{std::int64_t(labels.size()), classes, 1, 1}, s.dtype, {}};
  const auto kernel = s.backend.softmax_cross_entropy({}, form);
  const Tensor x = s.place(form, logits), p = dirty(form), dx = dirty(form);
  const Tensor label = s.place({{form.shape.n, 1, 1, 1}, DType::i32, {}}, labels);
  const Tensor totals = dirty(f64_vector(5)), rows = dirty(f64_vector(1));
  const Tensor largest = dirty(f64_vector(2 * form.shape.n + 1));
  const Tensor sums = dirty({{3, form.shape.n, 1, 1}, DType::f64, {}});
  kernel->largest(s.stream, x, label, passed({.stop = 1}), largest);
  kernel->sums(s.stream, x, label, largest, p, sums);
  kernel->finish(s.stream, label, largest, sums, p, totals);
  kernel->input_grad(s.stream, p, label, rows, 1 / scale, dx);
  const Values found = s.read(totals), given = s.read(dx);
  kernel->mean(s.stream, totals, rows);
  kernel->input_grad(s.stream, p, label, rows, 0, dx);
  return {found, s.read(p), given, s.read(totals), s.read(dx)};
}

/// What is to be in the block that it goes to, whose values are `there`.
Values moved(const Values& from, Values there, const BoxMove& m) {
  const auto& [n, c, h, w] = m.box;
  for (std::int64_t i = n.begin; i < n.end(); ++i)
    for (std::int64_t j = c.begin; j < c.end(); ++j)
      for (std::int64_t k = h.begin; k < h.end(); ++k)
        for (std::int64_t l = w.begin; l < w.end(); ++l) {
          double& to = there[std::size_t(m.to_block.offset(i, j, k, l))];
          to = (m.from ? from[std::size_t(m.from_block.offset(i, j, k, l))] : 0) + (m.add ? to : 0);
        }
  return there;
}

}  // namespace

TEST_CASE("max pooling gives the first of equal elements the gradient, and padding never wins") {
  on_all([](Setup& s) {
    const auto [y, dx] = max_pool(s, {1, 1, 2, 4}, 2, 0, {-3, -3, -1, -2, -3, -3, -1, -1}, {5, 7});
    CHECK(y == Values{-3, -1});
    CHECK(dx == Values{5, 0, 7, 0, 0, 0, 0, 0});
    const auto [py, pdx] = max_pool(s, {1, 1, 2, 2}, 2, 1, {-1, -2, -3, -4}, {1, 2, 3, 4});
    CHECK(py == Values{-1, -2, -3, -4});
    CHECK(pdx == Values{1, 2, 3, 4});
  });
}

TEST_CASE("max pooling of our own lets a NaN through, and gives the first one the gradient") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  int own = 0;
  on_all([&](Setup& s) {
    const std::string how = s.backend.pool({}, s.form({1, 1, 2, 2}))->algorithm;
    if (how != "loops" && how != "lamina:simd") return;
    ++own;
    const auto [y, dx] = max_pool(s, {1, 1, 2, 4}, 2, 0, {1, nan, 9, 1, nan, 2, nan, nan}, {5, 7});
    CHECK((std::isnan(y[0]) && std::isnan(y[1])));
    CHECK(dx == Values{0, 5, 0, 0, 0, 0, 7, 0});
  });
  CHECK(own >= 4);  // of the reference at least
}

TEST_CASE("in-place kernels give the same results in place") {
  using Kind = Activation::Kind;
  on_all([](Setup& s) {
    const Shape shape{2, 5, 3, 3};
    const Values in = random_values(shape.size(), 1), grad = random_values(shape.size(), 2);
    std::vector<std::unique_ptr<UnaryKernel>> kernels;
    for (const Kind kind : {Kind::relu, Kind::leaky_relu, Kind::sigmoid, Kind::tanh}) {
      kernels.push_back(s.backend.activation({kind, 0.1}, s.form(shape)));
    }
    kernels.push_back(s.backend.softmax(s.form(shape)));
    for (const auto& kernel : kernels) {
      if (!kernel->in_place) continue;
      INFO(kernel->algorithm);
      const Tensor x = s.place(kernel->inputs[0], in), y = dirty(kernel->output);
      const Tensor dy = s.place(kernel->output, grad), dx = dirty(kernel->inputs[0]);
      kernel->forward(s.stream, x, y);
      kernel->input_grad(s.stream, x, y, dy, dx);
      const Values apart = s.read(y), apart_dx = s.read(dx);
      kernel->forward(s.stream, x, x);
      CHECK(difference(s.read(x), apart) == 0);
      kernel->input_grad(s.stream, x, x, dy, dy);
      CHECK(difference(s.read(dy), apart_dx) == 0);
    }
  });
}

TEST_CASE("sum may write over its first input, and skips absent gradients") {
  on_all([](Setup& s) {
    const Form form = s.form({1, 3, 2, 2});
    const std::vector<Form> forms{form, form};
    const auto kernel = s.backend.sum(forms);
    const Values a = random_values(12, 1), b = random_values(12, 2);
    const Tensor x1 = s.place(kernel->inputs[0], a), x2 = s.place(kernel->inputs[1], b);
    const View xs[] = {x1, x2};
    kernel->forward(s.stream, xs, x1);
    Values want = a;
    for (std::size_t i = 0; i < want.size(); ++i) want[i] += b[i];
    CHECK(difference(s.read(x1), want) < 1e-6);

    const Tensor dy = s.place(kernel->output, a), dx = dirty(kernel->inputs[1]);
    const View dxs[] = {View(), dx};
    kernel->input_grad(s.stream, dy, dxs);
    CHECK(s.read(dx) == a);
  });
}

TEST_CASE("batch norm moves its running averages and uses them for inference") {
  on_all([](Setup& s) {
    const auto kernel = s.backend.batch_norm(s.form({2, 2, 1, 2}));
    const Form parameter{{1, 2, 1, 1}, s.dtype, {}};
    // Channel 0 holds 1 2 3 6, channel 1 holds 5 5 5 5.
    const Tensor x = s.place(kernel->inputs[0], {1, 2, 5, 5, 3, 6, 5, 5});
    const Tensor sums = dirty(f64_vector(4)), mean = dirty(f64_vector(2));
    const Tensor inv_std = dirty(f64_vector(2));
    const Tensor running_mean = s.place(parameter, {10, 10}),
                 running_var = s.place(parameter, {1, 1});
    kernel->statistics(s.stream, x, sums);
    CHECK(s.read(sums) == Values{12, 20, 50, 100});
    kernel->finish(s.stream, sums, 4, 0.5, 0.25, mean, inv_std, running_mean, running_var);
    CHECK(s.read(mean) == Values{3, 5});
    CHECK(difference(s.read(inv_std), {0.5, std::sqrt(2.0)}) < 1e-12);
    CHECK(difference(s.read(running_mean), {8.25, 8.75}) < 1e-6);
    CHECK(difference(s.read(running_var), {0.75 + 0.25 * 14 / 3, 0.75}) <
          1e-6);  // 14/3 is unbiased

    // Those of two ranks, of which this one has the means 1 and 6, the other 3 and 2.
    const Tensor one = s.place(parameter, {1, 6}), var = s.place(parameter, {3, 15.5});
    kernel->running(s.stream, one, var, sums);
    CHECK(s.read(sums) == Values{1, 6, 3, 15.5});
    const double other[] = {3, 2, 4, 15.5};
    for (int i = 0; i < 4; ++i) sums.as<double>()[i] += other[i];
    kernel->from_running(s.stream, sums, 2, 0.5, mean, inv_std);
    CHECK(s.read(mean) == Values{2, 4});
    CHECK(difference(s.read(inv_std), {0.5, 0.25}) < 1e-12);
    const Tensor w = s.place(parameter, {3, 1}), b = s.place(parameter, {1, -1});
    const Tensor y = dirty(kernel->output);
    kernel->normalize(s.stream, x, mean, inv_std, w, b, y);
    CHECK(difference(s.read(y), {-0.5, 1, -0.75, -0.75, 2.5, 7, -0.75, -0.75}) < 1e-6);
  });
}

TEST_CASE("batch norm of split batches equals that of the whole once the sums are added") {
  struct Part {
    std::unique_ptr<NormKernel> kernel;
    Tensor x, dy, sums, dots, mean, inv_std, running_mean, running_var, dx;
  };
  on_all([](Setup& s) {
    const auto part = [&](std::int64_t samples, const double* x, const double* dy) {
      const Shape shape{samples, 3, 2, 2};
      const Form parameter{{1, 3, 1, 1}, s.dtype, {}};
      auto k = s.backend.batch_norm(s.form(shape));
      Tensor in = s.place(k->inputs[0], Values(x, x + shape.size()));
      Tensor gradient = s.place(k->output, Values(dy, dy + shape.size()));
      Tensor dx = dirty(k->inputs[0]);
      return Part{std::move(k),         std::move(in),        std::move(gradient),
                  dirty(f64_vector(6)), dirty(f64_vector(6)), dirty(f64_vector(3)),
                  dirty(f64_vector(3)), Tensor(parameter),    Tensor(parameter),
                  std::move(dx)};
    };
    const Values x = random_values(4 * 12, 1), dy = random_values(4 * 12, 2);
    const Part parts[] = {part(4, &x[0], &dy[0]), part(1, &x[0], &dy[0]), part(3, &x[12], &dy[12])};
    const auto add = [](const Tensor& a, const Tensor& b) {
      for (int i = 0; i < 6; ++i) {
        a.as<double>()[i] = b.as<double>()[i] = a.as<double>()[i] + b.as<double>()[i];
      }
    };
    const View absent;
    for (const Part& p : parts) p.kernel->statistics(s.stream, p.x, p.sums);
    add(parts[1].sums, parts[2].sums);
    for (const Part& p : parts) {
      p.kernel->finish(s.stream, p.sums, 16, 1e-3, 0.1, p.mean, p.inv_std, p.running_mean,
                       p.running_var);
      p.kernel->gradients(s.stream, p.x, p.mean, p.inv_std, p.dy, p.dots, absent, absent);
    }
    add(parts[1].dots, parts[2].dots);
    for (const Part& p : parts) {
      p.kernel->input_grad(s.stream, p.x, p.mean, p.inv_std, absent, p.dy, p.dots, 16, p.dx);
    }
    const double tolerance = s.dtype == DType::f64 ? 1e-12 : 2e-6;
    Values joined = s.read(parts[1].dx);
    for (const double v : s.read(parts[2].dx)) joined.push_back(v);
    CHECK(difference(joined, s.read(parts[0].dx)) < tolerance);
    CHECK(difference(s.read(parts[1].running_var), s.read(parts[0].running_var)) < tolerance);
  });
}

// Large results are stored past the caches; in plain layout some runs do not start where they
// could.
TEST_CASE("batch norm of a batch beyond the caches equals that of its samples, bit for bit") {
  if (!has_onednn()) return;
  const bool native = GENERATE(false, true);
  CAPTURE(native);
  const auto backend = onednn_backend();
  Setup s{*backend, DType::f32, native};
  const Shape shape{6, 16, 215, 215}, one{1, 16, 215, 215};
  const auto whole = s.backend.batch_norm(s.form(shape)), each = s.backend.batch_norm(s.form(one));
  const Tensor x(whole->output), dy(whole->output);
  for (const Tensor* t : {&x, &dy})
    for (std::size_t i = 0; float& v : t->elements<float>())
      v = float(i++ * (t == &x ? 7919 : 104729) % 1009) / 100 - 5;
  const Tensor mean = s.place(f64_vector(16), random_values(16, 1));
  const Tensor inv_std = s.place(f64_vector(16), random_values(16, 2));
  const Tensor sums = s.place(f64_vector(32), random_values(32, 3));
  const auto run = [&](NormKernel& kernel, std::int64_t sample, const Tensor& y, const Tensor& dx) {
    const auto part = [&](const Tensor& t) {
      return View(t.as<float>() + sample * one.size(), kernel.output);
    };
    kernel.normalize(s.stream, part(x), mean, inv_std, {}, {}, part(y));
    kernel.input_grad(s.stream, part(x), mean, inv_std, {}, part(dy), sums, 100, part(dx));
  };
  const Tensor y = dirty(whole->output), dx = dirty(whole->output);
  const Tensor want_y = dirty(whole->output), want_dx = dirty(whole->output);
  run(*whole, 0, y, dx);
  for (std::int64_t n = 0; n < shape.n; ++n) run(*each, n, want_y, want_dx);
  CHECK(std::memcmp(y.view().data, want_y.view().data, y.bytes()) == 0);
  CHECK(std::memcmp(dx.view().data, want_dx.view().data, dx.bytes()) == 0);
}

TEST_CASE("the loss counts top-1 and top-5 hits") {
  on_all([](Setup& s) {
    const Values falling{7, 6, 5, 4, 3, 2, 1};
    const auto hits = [&](Values logits, double label) {
      const auto result = loss(s, std::int64_t(logits.size()), logits, {label});
      return std::pair(result.totals[1], result.totals[2]);
    };
    CHECK(hits(falling, 0) == std::pair(1.0, 1.0));
    CHECK(hits(falling, 1) == std::pair(0.0, 1.0));
    CHECK(hits(falling, 4) == std::pair(0.0, 1.0));
    CHECK(hits(falling, 5) == std::pair(0.0, 0.0));
    CHECK(hits({1, 2, 3}, 0) == std::pair(0.0, 1.0));  // fewer than 5 classes: all are in the top 5
    CHECK(hits({1, 1, 1}, 0) == std::pair(1.0, 1.0));  // of equal logits the first is on top
    CHECK(hits({1, 1, 1}, 2) == std::pair(0.0, 1.0));
    const double nan = std::numeric_limits<double>::quiet_NaN();
    CHECK(hits({nan, 1, 2}, 0) == std::pair(0.0, 0.0));
    CHECK(hits({nan, nan, nan}, 0) == std::pair(0.0, 0.0));
  });
}

TEST_CASE("the loss is right for huge logits, skips rows without a label and scales its gradient") {
  on_all([](Setup& s) {
    const auto r = loss(s, 2, {1000, 1000, 0, -2000, 3, 3}, {1, 0, -1}, 0.5);
    CHECK(difference({r.totals[0]}, {std::log(2.0)}) < 1e-6);
    CHECK(r.totals[1] == 1);
    CHECK(r.totals[2] == 2);
    CHECK(r.totals[3] == 2);
    CHECK(difference(r.p, {0.5, 0.5, 1, 0, 0.5, 0.5}) < 1e-6);
    CHECK(r.totals[4] == 1);  // the flag
    CHECK(difference(r.dx, {0.25, -0.25, 0, 0, 0, 0}) < 1e-6);
    CHECK(difference({r.mean[0]}, {std::log(2.0) / 2}) < 1e-6);
    CHECK(r.mean[3] == 2);
    CHECK(difference(r.mean_dx, {0.25, -0.25, 0, 0, 0, 0}) < 1e-6);
    const double inf = std::numeric_limits<double>::infinity();  // a class that cannot be
    CHECK(difference({loss(s, 3, {1, -inf, 2}, {2}).totals[0]}, {std::log1p(std::exp(-1))}) < 1e-6);
    const auto none = loss(s, 2, {1, 2}, {-1});
    CHECK(none.mean[0] == 0);
    CHECK(none.mean_dx == Values{0, 0});
    CHECK_THROWS_WITH(loss(s, 3, {1, 2, 3}, {3}), ContainsSubstring("label 3"));
  });
}

TEST_CASE("a mask keeps those whose uniform number is not below the rate") {
  const StepValues now{.seed = 3, .step = 11, .micro_batch = 2};
  constexpr std::int64_t whole = 4099;
  for (std::uint64_t i = 0; i < 64; ++i) {
    // The number itself, by halving: the largest rate in steps of 2^-24 at which it stays.
    std::uint32_t number = 0;
    for (std::uint32_t bit = 1u << 23; bit; bit /= 2)
      if (DropoutMask((number + bit) * 0x1p-24, now, 5, whole).keeps(i)) number += bit;
    const double u = number * 0x1p-24;
    CHECK(DropoutMask(u, now, 5, whole).keeps(i));
    CHECK_FALSE(DropoutMask(std::nextafter(u, 1), now, 5, whole).keeps(i));
    CHECK(DropoutMask(0, now, 5, whole).keeps(i));
  }
  const DropoutMask mask(0.3, now, 5, whole);
  std::int64_t kept = 0;
  for (const std::uint64_t first : {0, 1, 2, 3, 97})
    for (const std::int64_t n : {0, 1, 2, 5, 64, 2001}) {
      std::int64_t next = 0, wrong = 0;
      mask.each(first, n, [&](std::int64_t i, bool keep) {
        wrong += i != next++ || keep != mask.keeps(first + std::uint64_t(i));
        kept += n == 2001 && keep;
      });
      CHECK(next == n);
      CHECK(wrong == 0);
    }
  CHECK(kept == Approx(0.7 * 5 * 2001).epsilon(0.05));
}

TEST_CASE("the squared norm counts every element once, whatever the layout") {
  on_all([](Setup& s) {
    const Values values = random_values(2 * 19 * 3 * 3, 5);
    double want = 0;
    for (const double v : values) want += v * v;
    const Tensor x = s.place(s.form({2, 19, 3, 3}), values);
    const auto norm = [&](const Tensor& of) {
      const Tensor sum = dirty(f64_vector(1));
      s.backend.squares({{of, sum}})->run(s.stream, Pass::update);
      return sum.as<double>()[0];
    };
    const double got = norm(x);
    CHECK(got == Approx(want).epsilon(1e-9));
    CHECK(norm(x) == got);
    // 2^24 + 1 is the first integer that f32 cannot hold.
    const Tensor many = s.place({{1, 2, 1, 1}, s.dtype, {}}, {4096, 1});
    CHECK(norm(many) == 16777217.0);
  });
}

TEST_CASE(
    "dropout drops the rate that it should, scales the others, and depends on the key alone") {
  const Shape shape{8, 30, 5, 5};
  const auto reference = reference_backend();
  Setup f64{*reference};
  const auto apply = [&](Setup& s, double rate, std::uint64_t key, std::int64_t first, Shape x,
                         const Values& in, Pass pass = Pass::forward) {
    Box box = Box::of(x);
    box.n.begin = first;
    const auto kernel = s.backend.dropout(rate, s.form(x), shape, box);
    const Tensor from = s.place(kernel->inputs[0], in), y = dirty(kernel->output);
    const Tensor now = passed({.seed = key});
    kernel->apply(s.stream, pass, now, 1, from, y);
    const Values apart = s.read(y);
    kernel->apply(s.stream, pass, now, 1, from, from);
    CHECK(s.read(from) == apart);
    return apart;
  };
  const Values ones(std::size_t(shape.size()), 1.0);
  const Values mask = apply(f64, 0.25, 11, 0, shape, ones);
  double dropped = 0;
  for (const double v : mask) {
    if (v == 0)
      ++dropped;
    else
      CHECK(v == Approx(4.0 / 3));
  }
  CHECK(dropped / double(mask.size()) == Approx(0.25).margin(0.025));  // 4.5 standard deviations

  on_all([&](Setup& s) {
    CHECK(difference(apply(s, 0.25, 11, 0, shape, ones), mask) < 1e-6);
    CHECK(difference(apply(s, 0.25, 11, 0, shape, ones, Pass::input_grad), mask) < 1e-6);
    CHECK(difference(apply(s, 0.25, 12, 0, shape, ones), mask) > 0.1);
    CHECK(apply(s, 0, 11, 0, shape, ones) == ones);
    const Shape part{3, 30, 5, 5};  // rows 2 to 4
    const auto begin = mask.begin() + long(2 * shape.sample());
    CHECK(difference(apply(s, 0.25, 11, 2, part, Values(std::size_t(part.size()), 1.0)),
                     Values(begin, begin + long(part.size()))) < 1e-6);
  });
  CHECK_THROWS_WITH(reference->dropout(1, f64.form(shape), shape, Box::of(shape)),
                    ContainsSubstring("rate"));
}

TEST_CASE("copies keep every element and convert between f32 and f64") {
  on_all([](Setup& s) {
    for (const Shape shape : {Shape{2, 19, 3, 5}, Shape{3, 16, 2, 2}, Shape{5, 7, 1, 1}}) {
      const Values values = random_values(shape.size(), 3);
      CHECK(s.read(s.place(s.form(shape), values)) == values);
    }
    const Tensor narrow({1, 2, 1, 1}, DType::f32), wide({1, 2, 1, 1}, DType::f64);
    wide.as<double>()[0] = 0.1, wide.as<double>()[1] = -3;
    s.backend.copy(wide, narrow);
    CHECK(narrow.as<float>()[0] == 0.1f);
    CHECK(narrow.as<float>()[1] == -3.0f);
    s.backend.copy(narrow, wide);
    CHECK(wide.as<double>()[0] == double(0.1f));
    CHECK_THROWS_AS(s.backend.copy(narrow, Tensor({2, 2, 1, 1}, DType::f32)), Error);
  });
}

TEST_CASE("boxes move as element by element, also those that threads share out") {
  const Box from{{1, 3}, {0, 24}, {3, 31}, {0, 37}}, to{{0, 5}, {2, 40}, {0, 34}, {4, 33}};
  const Box shorter_rows{{1, 3}, {2, 22}, {3, 31}, {4, 20}}, few{{2, 1}, {5, 3}, {4, 7}, {9, 11}};
  const auto check_moves = [&](Setup& s) {
    const auto form = [&](const Box& block) { return Form{block.shape(), s.dtype, {}}; };
    const Tensor in = s.place(form(from), random_values(from.size(), 5));
    for (const Box& box : {common(from, to), shorter_rows, few, Box()})
      for (const auto& [zeros, adds] : {std::pair{false, false}, {false, true}, {true, false}})
        for (const int n : {1, 2, 3}) {
          CAPTURE(box.text(), zeros, adds, n);
          const Tensor out = s.place(form(to), random_values(to.size(), 6));
          const BoxMove move{zeros ? View() : in.view(), from, out, to, box, adds};
          const Values want = moved(s.read(in), s.read(out), move);
          set_threads(n);
          s.backend.move(s.stream, Pass::forward, "move", {&move, 1});
          s.stream.wait();
          CHECK(difference(s.read(out), rounded(want, s.dtype)) == 0);
        }
  };
  const int before = threads();
  on_all(check_moves, {DType::f32, DType::f64, DType::bf16});
  set_threads(before);
}

TEST_CASE("back ends refuse what cannot be, by name") {
  on_all([](Setup& s) {
    const auto conv = [&](auto change) {
      ConvGeometry g;
      g.channels = 4, g.kernel = 3;
      change(g);
      return s.backend.conv(g, s.form({1, 6, 5, 5}));
    };
    CHECK_NOTHROW(conv([](auto&) {}));
    CHECK_THROWS_AS(conv([](auto& g) { g.groups = 4; }), Error);
    CHECK_THROWS_AS(conv([](auto& g) { g.groups = 3; }), Error);
    CHECK_THROWS_AS(conv([](auto& g) { g.stride = 0; }), Error);
    CHECK_THROWS_AS(conv([](auto& g) { g.kernel = 7; }), Error);
    PoolGeometry pool;
    pool.pad = 2;
    CHECK_THROWS_AS(s.backend.pool(pool, s.form({1, 3, 5, 5})), Error);
    const std::vector<Form> unlike{s.form({1, 3, 2, 2}), s.form({1, 3, 2, 1})};
    CHECK_THROWS_AS(s.backend.sum(unlike), Error);
    CHECK_THROWS_AS(s.backend.concat(unlike), Error);
    CHECK_THROWS_AS(s.backend.conv({}, {{1, 3, 2, 2}, DType::i32, {}}), Error);
  });
}

TEST_CASE("reference kernels refuse operands of another form") {
  const auto reference = reference_backend();
  Stream stream;
  const auto kernel = reference->conv({}, {{1, 3, 2, 2}, DType::f32, {}});
  const Tensor x(kernel->inputs[0]), w(kernel->w), b(kernel->b), y(kernel->output);
  CHECK_NOTHROW(kernel->forward(stream, x, w, b, y));
  CHECK_THROWS_WITH(kernel->forward(stream, x, w, View(), y), ContainsSubstring("absent"));
  CHECK_THROWS_WITH(kernel->forward(stream, Tensor({1, 3, 2, 2}, DType::f64), w, b, y),
                    ContainsSubstring("expected an operand 1x3x2x2 f32 nchw"));
}

TEST_CASE("every kernel is recorded under its layer and pass") {
  struct Kept : Recorder {
    std::vector<Span> spans;
    void record(const Span& span) override { spans.push_back(span); }
  };
  on_all([](Setup& s) {
    Kept kept;
    s.stream.record_to(&kept);
    s.stream.enter(4);
    const auto kernel = s.backend.conv({}, s.form({1, 3, 2, 2}));
    const Tensor x(kernel->inputs[0]), w(kernel->w), b(kernel->b), y(kernel->output);
    kernel->forward(s.stream, x, w, b, y);
    kernel->input_grad(s.stream, w, y, x);
    kernel->weight_grad(s.stream, x, y, w, b);
    const Tensor sum(f64_vector(1));
    s.backend.squares({{w, sum}})->run(s.stream, Pass::update);
    REQUIRE(kept.spans.size() >= 4);
    CHECK(kept.spans.front().pass == Pass::forward);
    CHECK(kept.spans.back().pass == Pass::update);
    for (const Span& span : kept.spans) {
      CHECK(span.layer == 4);
      CHECK(span.end >= span.begin);
    }
  });
}

TEST_CASE("allocations are counted") {
  if (!counts_allocations()) return;
  const Allocations since;
  CHECK(since.count() == 0);
  const Tensor t({1, 1, 1, 1000}, DType::f32);
  const auto count = since.count(), largest = since.largest();
  CHECK(count >= 1);
  CHECK(largest >= 4000);
}
