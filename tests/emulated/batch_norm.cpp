// Kernels of batch normalisation against the reference in f64.
#include "kernels/batch_norm.hpp"

#include "made.hpp"

#include <lamina/kernels/reference.hpp>

using namespace lamina;
using namespace lamina::test;

namespace {

struct Case {
  std::int64_t rows;
  int channels;
  double slope;  // 1: no activation
  bool adds, affine;
  double centre = 0;      // of x, in standard deviations
  std::size_t after = 0;  // so many elements behind where packs may, operands begin
};

struct Results {
  Values sums, mean, inv_std, running_mean, running_var, y, gradient_sums, dw, db, dadded, dx;
};

struct Operands {
  Values x, added, dy, w, b, running_mean, running_var;
};

constexpr double epsilon = 1e-5, momentum = 0.1;

/// Of x[rows][channels]: one sample is one row.
Results reference(const Case& c, const Operands& o) {
  const Shape shape{c.rows, c.channels, 1, 1}, vector{1, c.channels, 1, 1};
  const Shape sums_shape{1, 2 * c.channels, 1, 1};
  Epilogue epilogue{.add = c.adds};
  if (c.slope != 1)
    epilogue.activation = {c.slope == 0 ? Activation::Kind::relu : Activation::Kind::leaky_relu,
                           c.slope};
  const Reference backend;
  const auto kernel = backend.batch_norm({shape, DType::f64, {}}, epilogue);
  const auto f64_tensor = [&](const Values& values, const Shape& s) {
    return place(backend, {s, DType::f64, {}}, values);
  };
  const Tensor x = f64_tensor(o.x, shape), added = f64_tensor(o.added, shape),
               dy = f64_tensor(o.dy, shape);
  const Tensor w = f64_tensor(o.w, vector), b = f64_tensor(o.b, vector);
  const Tensor rm = f64_tensor(o.running_mean, vector), rv = f64_tensor(o.running_var, vector);
  const auto empty = [](const Shape& s) { return Tensor({s, DType::f64, {}}); };
  const Tensor sums = empty(sums_shape), mean = empty(vector), inv_std = empty(vector),
               y = empty(shape), gradient_sums = empty(sums_shape), dw = empty(vector),
               db = empty(vector), dadded = empty(shape), dx = empty(shape);
  const View none, w_view = c.affine ? w.view() : none, b_view = c.affine ? b.view() : none;
  Stream stream;
  kernel->statistics(stream, x, sums);
  kernel->finish(stream, sums, double(c.rows), epsilon, momentum, mean, inv_std, rm, rv);
  const Tensor bits = c.slope != 1 ? Tensor(kernel->signs) : Tensor();
  kernel->normalize(stream, x, mean, inv_std, w_view, b_view, y, c.adds ? added.view() : none,
                    bits);
  kernel->gradients(stream, x, mean, inv_std, dy, gradient_sums, dw, db, bits, dadded);
  kernel->input_grad(stream, x, mean, inv_std, w_view, dy, gradient_sums, double(c.rows), dx, bits);
  return {numbers(sums), numbers(mean),          numbers(inv_std), numbers(rm), numbers(rv),
          numbers(y),    numbers(gradient_sums), numbers(dw),      numbers(db), numbers(dadded),
          numbers(dx)};
}

template <class T, class G>
Results on_gpu(const Case& c, const Operands& o) {
  using P = Wide<T>;
  const cuda::BatchNorm n{dtype_of<T>, c.rows, c.channels, c.slope};
  const auto channels = std::size_t(c.channels), size = o.x.size();
  const Operand<T> x(o.x, c.after), added(o.added, c.after), dy(o.dy, c.after);
  const auto w = there<P>(o.w), b = there<P>(o.b);
  const auto running_mean = there<P>(o.running_mean), running_var = there<P>(o.running_var);
  const There<double> sums(2 * channels), mean(channels), inv_std(channels), gradient_sums = sums;
  const There<double> workspace(cuda::norm_workspace(n) / sizeof(double), std::nan(""));
  const Values none(size, std::nan(""));
  const Operand<T> y(none, c.after), dadded(none, c.after), dx(none, c.after);
  const There<G> dw(channels), db(channels);
  const P *const w_or_not = c.affine ? w.data() : nullptr,
                 *b_or_not = c.affine ? b.data() : nullptr;
  const There<std::uint8_t> bits(cuda::norm_signs(n), 0xA5);
  std::uint8_t* const bits_or_not = c.slope != 1 ? bits.data() : nullptr;
  const cudaStream_t stream = nullptr;
  ok(norm_statistics(stream, n, x.data(), sums.data(), workspace.data()));
  ok(norm_finish(stream, n, sums.data(), double(c.rows), epsilon, momentum, mean.data(),
                 inv_std.data(), running_mean.data(), running_var.data()));
  ok(norm_normalize(stream, n, x.data(), mean.data(), inv_std.data(), w_or_not, b_or_not,
                    c.adds ? added.data() : nullptr, y.data(), bits_or_not));
  ok(norm_gradients(stream, n, x.data(), mean.data(), inv_std.data(), dy.data(), bits_or_not,
                    gradient_sums.data(), dtype_of<G>, dw.data(), db.data(), dadded.data(),
                    workspace.data()));
  ok(norm_input_grad(stream, n, x.data(), mean.data(), inv_std.data(), w_or_not, dy.data(),
                     bits_or_not, gradient_sums.data(), double(c.rows), dx.data()));
  return {sums.back(),       mean.back(),     inv_std.back(),       wide(running_mean),
          wide(running_var), y.values(),      gradient_sums.back(), wide(dw),
          wide(db),          dadded.values(), dx.values()};
}

template <class T, class G = Wide<T>>
void compare(const Case& c) {
  CAPTURE(name(dtype_of<T>), name(dtype_of<G>), c.rows, c.channels, c.slope, c.adds, c.affine,
          c.after);
  const auto size = std::size_t(c.rows * c.channels), channels = std::size_t(c.channels);
  using P = Wide<T>;
  const Operands o{random_of<T>(size, 1, c.centre), random_of<T>(size, 2),
                   random_of<T>(size, 3),           random_of<P>(channels, 4, 1.5),
                   random_of<P>(channels, 5),       random_of<P>(channels, 6),
                   random_of<P>(channels, 7, 1.5)};
  const Results got = on_gpu<T, G>(c, o), right = reference(c, o);
  const double far = 1 + std::abs(c.centre);              // x - mean loses as much
  const double exact = 1e-13, order = exact * far * far;  // of adding up
  const double p = 4 * roundoff(dtype_of<P>) + order, t = 2 * roundoff(dtype_of<T>) + 16 * p;
  CHECK(difference(got.sums, right.sums) < exact);
  CHECK(difference(got.mean, right.mean) < exact);
  CHECK(difference(got.inv_std, right.inv_std) < order);
  CHECK(difference(got.running_mean, right.running_mean) < p);
  CHECK(difference(got.running_var, right.running_var) < p);
  CHECK(difference(got.y, right.y) < t * far);
  CHECK(difference(got.dadded, right.dadded) < t);
  CHECK(difference(got.gradient_sums, right.gradient_sums) < 64 * p * far);
  CHECK(difference(got.db, right.db) < 64 * p * far + roundoff(dtype_of<G>));
  CHECK(difference(got.dw, right.dw) < 64 * p * far + roundoff(dtype_of<G>));
  // Where few rows leave little of it, rounding is as large as that of what it is made of.
  const double largest = 2.5 * *std::ranges::max_element(right.inv_std);
  CHECK(difference(got.dx, right.dx, largest) < 4 * t * far);
}

/// dy in two parts gives to the bit what their rounded sum gives.
template <class T>
void compare_parts(const Case& c) {
  CAPTURE(name(dtype_of<T>), c.rows, c.channels, c.slope, c.after);
  const auto size = std::size_t(c.rows * c.channels), channels = std::size_t(c.channels);
  const cuda::BatchNorm n{dtype_of<T>, c.rows, c.channels, c.slope};
  Values sum = random_of<T>(size, 3);
  const Values more = random_of<T>(size, 4);
  const Operand<T> x(random_of<T>(size, 1), c.after), first(sum, c.after), second(more, c.after);
  for (std::size_t i = 0; i < size; ++i) sum[i] += more[i];
  const Operand<T> both(rounded(sum, dtype_of<T>), c.after);
  const auto mean = there<double>(Values(channels, 0.5)), inv_std = mean;
  const There<std::uint8_t> bits(cuda::norm_signs(n), 0xA5);
  const There<double> workspace(cuda::norm_workspace(n) / sizeof(double));
  const auto run = [&](const Operand<T>& dy, const Operand<T>* added) {
    const There<double> sums(2 * channels, NAN);
    const Operand<T> dadded(Values(size, NAN), c.after);
    const There<Wide<T>> dw(channels), db(channels);
    ok(norm_gradients(nullptr, n, x.data(), mean.data(), inv_std.data(), dy.data(), bits.data(),
                      sums.data(), dtype_of<Wide<T>>, dw.data(), db.data(), dadded.data(),
                      workspace.data(), added ? added->data() : nullptr));
    return std::vector<Values>{sums.back(), wide(dw), wide(db), dadded.values()};
  };
  CHECK(run(first, &second) == run(both, nullptr));
}

constexpr Case cases[] = {
    {1, 1, 1, false, true},       {2, 3, 0, false, true},      {5, 64, 0, true, true},
    {77, 7, 0.25, true, false},   {2500, 8, 0, false, false},  {41, 72, 1, true, true},
    {33, 264, 0, true, true},     {6, 1030, 0.5, false, true}, {2100, 1, 0, false, true},
    {150, 16, 0, true, true, 50}, {1300, 24, 0, true, true},   {1300, 24, 1, true, true, 0, 1},
    {300, 25, 0, true, true}};

}  // namespace

TEST_CASE("batch normalisation on a GPU adds up the two parts of a gradient") {
  for (const Case& c : {Case{77, 7, 0, true, true}, Case{1300, 24, 0, true, true},
                        Case{300, 25, 0.25, true, true, 0, 1}})
    compare_parts<double>(c), compare_parts<float>(c), compare_parts<BF16>(c),
        compare_parts<F16>(c);
}
TEST_CASE("batch normalisation on a GPU is that of the reference, in f64") {
  for (const Case& c : cases) compare<double>(c);
}
TEST_CASE("batch normalisation on a GPU is that of the reference, in f32") {
  for (const Case& c : cases) compare<float>(c);
}
TEST_CASE("batch normalisation on a GPU is that of the reference, in bf16") {
  for (const Case& c : cases) compare<BF16>(c);
  compare<BF16, BF16>(cases[3]);
}
TEST_CASE("batch normalisation on a GPU is that of the reference, in f16") {
  for (const Case& c : cases) compare<F16>(c);
}

TEST_CASE("inference on a GPU takes the mean of running averages, rounded as the reference does") {
  constexpr int channels = 300, variants = 3;
  const Shape vector{1, channels, 1, 1};
  const cuda::BatchNorm n{DType::bf16, 1, channels};
  const auto mean = as<float>(random_of<float>(channels, 1));
  const auto var = as<float>(random_of<float>(channels, 2, 20));
  const There<double> all(2 * channels), got_mean(channels), got_inv_std(channels);
  ok(norm_running(nullptr, n, There(mean).data(), There(var).data(), all.data()));
  Values sums = all.back();
  CHECK(std::equal(mean.begin(), mean.end(), sums.begin()));
  CHECK(std::equal(var.begin(), var.end(), sums.begin() + channels));
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = variants * sums[i] + 1e-3 * double(i % 7);
  ok(norm_from_running(nullptr, n, There(sums).data(), variants, epsilon, got_mean.data(),
                       got_inv_std.data()));
  const Reference backend;
  const auto kernel = backend.batch_norm({vector, DType::bf16, {}}, {});
  const Tensor right_mean({vector, DType::f64, {}}), right_inv_std({vector, DType::f64, {}});
  Stream stream;
  kernel->from_running(stream, place(backend, {{1, 2 * channels, 1, 1}, DType::f64, {}}, sums),
                       variants, epsilon, right_mean, right_inv_std);
  CHECK(difference(got_mean.back(), numbers(right_mean)) == 0);
  CHECK(difference(got_inv_std.back(), numbers(right_inv_std)) < 1e-15);
}
