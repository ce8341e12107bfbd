// Kernels with weights and an epilogue, for training and for forward alone, are those, sum and
// activation one after the other: for each way in which the back ends do it.
#include "catch.hpp"
#include "support/operands.hpp"

#include <lamina/kernels/backends.hpp>

#include <algorithm>
#include <limits>

using namespace lamina;
using namespace lamina::test;

namespace {

struct Case {
  const char* what;
  Shape x;
  ConvGeometry g;  ///< without channels: a linear layer of nine features
};

const Case cases[] = {
    {"channels that fill no block", {2, 5, 6, 7}, {.channels = 9, .kernel = 3, .pad = 1}},
    {"Winograd", {2, 32, 14, 14}, {.channels = 32, .kernel = 3, .pad = 1}},
    {"Winograd, one image", {1, 64, 28, 28}, {.channels = 64, .kernel = 3, .pad = 1}},
    {"1x1", {2, 32, 9, 9}, {.channels = 48, .kernel = 1}},
    {"1x1, stride 2", {2, 32, 9, 9}, {.channels = 48, .kernel = 1, .stride = 2}},
    {"3x3, stride 2", {2, 32, 9, 9}, {.channels = 32, .kernel = 3, .stride = 2, .pad = 1}},
    {"5x5", {2, 16, 12, 12}, {.channels = 16, .kernel = 5, .pad = 2}},
    {"images", {2, 3, 32, 32}, {.channels = 16, .kernel = 7, .stride = 2, .pad = 3}},
    {"long windows", {2, 3, 35, 38}, {.channels = 16, .kernel = 11, .stride = 4, .pad = {2, 1}}},
    {"groups", {2, 32, 8, 8}, {.channels = 32, .kernel = 3, .pad = 1, .groups = 2}},
    {"depthwise", {2, 32, 8, 8}, {.channels = 32, .kernel = 3, .pad = 1, .groups = 32}},
    {"no bias", {2, 32, 9, 9}, {.channels = 32, .kernel = 3, .pad = 1, .bias = false}},
    {"linear", {4, 5, 3, 2}, {}},
};

const Epilogue epilogues[] = {
    {},
    {.add = true},
    {.activation = Activation{Activation::Kind::relu}},
    {.activation = Activation{Activation::Kind::leaky_relu, 0.25}},
    {.add = true, .activation = Activation{Activation::Kind::relu}},
    {.add = true, .activation = Activation{Activation::Kind::leaky_relu, 0.25}}};

struct Way {
  std::shared_ptr<const Backend> backend;
  DType dtype;
  bool forward_only, over_added;
};

std::unique_ptr<WeightedKernel> make(const Backend& b, const Case& c, const Form& x,
                                     const Epilogue& e, bool forward_only) {
  if (c.g.channels == 0) return b.linear(9, true, x, e);
  return forward_only ? b.conv_forward(c.g, x, e) : b.conv(c.g, x, e);
}

/// Of x with `first` as its first element.
Values result(const Way& way, const Case& c, const Epilogue& e, DType held, double first = 0.5) {
  Setup s{*way.backend, way.dtype};
  const auto kernel = make(s.backend, c, s.form(c.x), e, way.forward_only);
  const auto some = [&](const Form& f, int seed) {
    return rounded(random_values(f.shape.size(), std::uint64_t(seed)), held);
  };
  REQUIRE(kernel->inputs.size() == (e.add ? 2 : 1));
  Values images = some(kernel->inputs[0], 1);
  images[0] = first;
  const Tensor x = s.place(kernel->inputs[0], images);
  const Tensor w = s.place(kernel->w, some(kernel->w, 2)), y = dirty(kernel->output);
  const bool bias = kernel->b.shape.size() > 0;
  const Tensor b = bias ? s.place(kernel->b, some(kernel->b, 3)) : Tensor();
  const Tensor added = e.add ? s.place(kernel->output, some(kernel->output, 4)) : Tensor();
  const bool over = e.add && way.over_added && kernel->over_added;
  const View& to = over ? added.view() : y.view();
  kernel->forward(s.stream, x, w, bias ? b.view() : View(), to, added);
  Tensor plain(to.shape, to.dtype);
  s.backend.copy(to, plain);
  return numbers(plain);
}

/// Exact, and rounded nowhere in between.
Values wanted(const Case& c, const Epilogue& e, DType held, double first = 0.5) {
  const auto reference = reference_backend();
  return result({reference, DType::f64, false, false}, c, e, held, first);
}

template <class F>
void in_all_ways(const F& f) {
  auto backends = all_backends();
  if (has_onednn()) backends.push_back(onednn_backend({.mixed = true}));
  for (const auto& backend : backends)
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16})
      for (const bool forward_only : {false, true})
        for (const bool over_added : {false, true}) {
          if (!backend->supports(dtype)) continue;
          INFO(backend->name() << ' ' << name(dtype) << (forward_only ? ", forward only" : "")
                               << (over_added ? ", over what is added" : ""));
          f(Way{backend, dtype, forward_only, over_added});
        }
}

double tolerance(DType t) { return t == DType::f64 ? 1e-12 : t == DType::f32 ? 3e-4 : 0.03; }

}  // namespace

TEST_CASE("the reference's epilogues are sum and activation") {
  const auto reference = reference_backend();
  const Way way{reference, DType::f64, false, false};
  for (const Case& c : cases) {
    const Values bare = result(way, c, {}, DType::f64);
    const Values added = random_values(std::int64_t(bare.size()), 4);
    for (const Epilogue& e : epilogues) {
      Values want = bare;
      for (std::size_t i = 0; i < want.size(); ++i) {
        if (e.add) want[i] += added[i];
        if (want[i] < 0) want[i] *= e.slope();
      }
      INFO(c.what);
      CHECK(difference(result(way, c, e, DType::f64), want) < 1e-12);
    }
  }
}

TEST_CASE("kernels with weights compute their epilogue, however they run", "[isa]") {
  in_all_ways([](const Way& way) {
    for (const Case& c : cases)
      for (const Epilogue& e : epilogues) {
        INFO(c.what << (e.add ? ", add" : "") << ", slope " << e.slope());
        REQUIRE(way.backend->fuses(Fusible::conv, e));
        CHECK(difference(result(way, c, e, way.dtype), wanted(c, e, way.dtype)) <
              tolerance(way.dtype));
      }
  });
}

TEST_CASE("an epilogue of weights lets a NaN through", "[isa]") {
  in_all_ways([](const Way& way) {
    for (const Case& c : cases)
      for (const Epilogue& e : epilogues) {
        INFO(c.what << (e.add ? ", add" : "") << ", slope " << e.slope());
        const double nan = std::numeric_limits<double>::quiet_NaN();
        const Values want = wanted(c, e, way.dtype, nan), got = result(way, c, e, way.dtype, nan);
        bool all = true;  // Winograd and padded blocks may carry it further
        for (std::size_t i = 0; i < want.size(); ++i)
          all = all && (!std::isnan(want[i]) || std::isnan(got[i]));
        CHECK((all && std::ranges::any_of(want, [](double v) { return std::isnan(v); })));
      }
  });
}

TEST_CASE("what is forward alone needs no weights that can be read back", "[host]") {
  if (!has_onednn()) return;
  // Where Winograd is taken, weights lie transformed; elsewhere they can be read.
  const auto backend = onednn_backend();
  const Form x{{1, 64, 28, 28}, DType::f32, {}};
  const ConvGeometry g{.channels = 64, .kernel = 3, .pad = 1};
  const auto kernel = backend->conv_forward(g, x);
  const bool opaque = kernel->w.layout.fingerprint() == 0;
  CHECK(opaque == (kernel->w != backend->conv(g, x)->w));
  const auto small = backend->conv_forward({.channels = 64, .kernel = 1}, x);
  CHECK(small->w.layout.fingerprint() != 0);
}
