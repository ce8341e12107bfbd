// Kernels of the loss against the reference in f64.
#include "kernels/loss.hpp"

#include "made.hpp"

#include <lamina/kernels/reference.hpp>

using namespace lamina;
using namespace lamina::test;

namespace {

struct Case {
  std::int64_t rows, part, classes, first;
  double smoothing = 0, samples = 0, scale = 0;
};

struct Results {
  Values largest, p, sums, totals, rows, dx;
};

struct Operands {
  Values x;
  std::vector<std::int32_t> labels;
};

constexpr StepValues now{.stop = 1};

Results reference(const Case& c, const Operands& o) {
  const Shape shape{c.rows, c.part, 1, 1};
  const Reference backend;
  const auto kernel = backend.softmax_cross_entropy(
      {.label_smoothing = c.smoothing, .classes = c.classes, .first = c.first},
      {shape, DType::f64, {}});
  const auto empty = [](const Shape& s) { return Tensor({s, DType::f64, {}}); };
  const Tensor x = place(backend, {shape, DType::f64, {}}, o.x),
               largest = empty({1, 2 * c.rows + 1, 1, 1});
  const Tensor p = empty(shape), sums = empty({3, c.rows, 1, 1}), totals = empty({1, 5, 1, 1});
  const Tensor rows = empty({1, 1, 1, 1}), dx = empty(shape);
  const Tensor labels({{c.rows, 1, 1, 1}, DType::i32, {}});
  std::copy(o.labels.begin(), o.labels.end(), labels.as<std::int32_t>());
  Stream stream;
  kernel->largest(stream, x, labels, passed(now), largest);
  kernel->sums(stream, x, labels, largest, p, sums);
  kernel->finish(stream, labels, largest, sums, p, totals);
  kernel->mean(stream, totals, rows);
  double scale = c.scale;
  const View by(&scale, {{1, 1, 1, 1}, DType::f64, {}});
  kernel->input_grad(stream, p, labels, rows, c.samples, dx, scale > 0 ? by : View());
  return {numbers(largest), numbers(p), numbers(sums), numbers(totals), numbers(rows), numbers(dx)};
}

template <class T>
Results on_gpu(const Case& c, const Operands& o) {
  const cuda::Loss l{dtype_of<T>, c.rows, c.part, c.classes, c.first, c.smoothing};
  const auto rows = std::size_t(c.rows);
  const auto x = there<T>(o.x);
  const There<std::int32_t> labels(o.labels);
  const There<StepValues> step(1, now);
  const There<double> largest(2 * rows + 1), sums(3 * rows), totals(5), count(1), scale(1, c.scale);
  const There<Wide<T>> p(x.size());
  const There<T> dx(x.size());
  const cudaStream_t stream = nullptr;
  ok(loss_largest(stream, l, x.data(), labels.data(), step.data(), largest.data()));
  ok(loss_sums(stream, l, x.data(), labels.data(), largest.data(), p.data(), sums.data()));
  ok(loss_finish(stream, l, labels.data(), largest.data(), sums.data(), p.data(), totals.data()));
  ok(cuda::loss_mean(stream, totals.data(), count.data()));
  ok(loss_input_grad(stream, l, p.data(), labels.data(), count.data(), c.samples, dx.data(),
                     c.scale > 0 ? scale.data() : nullptr));
  return {largest.back(), wide(p), sums.back(), totals.back(), count.back(), wide(dx)};
}

template <class T>
void compare(const Case& c) {
  CAPTURE(name(dtype_of<T>), c.rows, c.part, c.classes, c.first, c.smoothing, c.samples);
  Operands o{random_of<T>(std::size_t(c.rows * c.part), 1), {}};
  for (double& v : o.x) v = double(T(4 * v));
  for (std::int64_t r = 0; r < c.rows; ++r)
    o.labels.push_back(r % 5 == 3 ? -1 : std::int32_t(r * 7 % c.classes));
  const Results got = on_gpu<T>(c, o), right = reference(c, o);
  const double p = 16 * roundoff(dtype_of<Wide<T>>);
  CHECK(difference(got.largest, right.largest) == 0);
  CHECK(difference(got.p, right.p) < p);
  CHECK(difference(got.sums, right.sums) < p);
  CHECK(difference(got.totals, right.totals) < p);
  CHECK(difference(got.rows, right.rows) == 0);
  CHECK(difference(got.dx, right.dx) < p + 2 * roundoff(dtype_of<T>));
}

template <class T>
void compare_all() {
  for (const Case& c :
       {Case{1, 1, 1, 0}, Case{3, 10, 10, 0, 0.1}, Case{21, 33, 33, 0}, Case{70, 5, 12, 4, 0.2, 64},
        Case{12, 4, 4, 0, 0, 0, 16}, Case{9, 1000, 1000, 0}, Case{8, 32, 64, 32}})
    compare<T>(c);
}

}  // namespace

TEST_CASE("the loss on a GPU is that of the reference") {
  compare_all<double>();
  compare_all<float>();
  compare_all<BF16>();
  compare_all<F16>();
}

TEST_CASE("logits that are no numbers do to the loss on a GPU what they do to the reference") {
  const Case c{4, 3, 3, 0};
  const double none = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  const Operands o{{none, 1, 2, /**/ 1, none, 2, /**/ infinity, 0, 1, /**/ -infinity, 0, 1},
                   {0, 0, 1, 0}};
  const Results got = on_gpu<double>(c, o), right = reference(c, o);
  const auto same = [](const Values& a, const Values& b) {
    REQUIRE(a.size() == b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      CAPTURE(i, a[i], b[i]);
      CHECK((std::isnan(a[i]) ? std::isnan(b[i]) : a[i] == Approx(b[i])));
    }
  };
  same(got.largest, right.largest), same(got.sums, right.sums), same(got.p, right.p);
  same(got.totals, right.totals), same(got.dx, right.dx);
}

TEST_CASE("what losses on a GPU found is joined as on the host") {
  const auto all = [](const auto& add) {
    Values totals(5, std::nan(""));
    for (const Values& found :
         {Values{2, 1, 3, 4, 0}, Values{5, 2, 2, 12, 1}, Values{1, 0, 0, 0, 0}})
      add(found, std::isnan(totals[0]), totals);
    return totals;
  };
  const Form five{{1, 5, 1, 1}, DType::f64, {}};
  CHECK(all([](const Values& found, bool first, Values& totals) {
          const There<double> from(found), to(totals);
          ok(cuda::loss_add_found(nullptr, from.data(), first, to.data()));
          totals = to.back();
        }) == all([&](Values found, bool first, Values& totals) {
          add_found({found.data(), five}, first, {totals.data(), five});
        }));
}

TEST_CASE("a label that is no class makes the loss on a GPU NaN") {
  const Case c{2, 3, 3, 0};
  CHECK(std::isnan(on_gpu<float>(c, {{0, 1, 2, 0, 1, 2}, {1, 3}}).totals[0]));
}
