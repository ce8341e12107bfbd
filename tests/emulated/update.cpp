// Updates and sums of squares, emulated or on a GPU, beside those of the reference.
#include "kernels/update.hpp"

#include "made.hpp"

#include <lamina/kernels/reference.hpp>

#include <limits>

using namespace lamina;
using namespace lamina::test;

namespace {

using Kind = UpdateRule::Kind;

/// What a step reads, for the reference and where the kernels are.
struct Given {
  UpdateValues now{.rate = 0.5, .step = 3, .scale = 0.25};
  Values found{0, 0, 0, 7, 0}, squares{900, 16, 9}, value{30}, grad{4000};
  LossScale scale{.scale = 8};

  There<UpdateValues> its_now{1, now};
  There<double> its_found{found}, its_squares{squares}, its_value{value}, its_grad{grad};
  There<LossScale> its_scale{1, scale};
};

std::vector<cuda::Chunk> chunks_of(std::int64_t run, std::int64_t count) {
  std::vector<cuda::Chunk> chunks;
  for (std::int64_t i = 0; i * cuda::chunk_elements < count; ++i)
    chunks.push_back({std::int32_t(run), std::int32_t(i)});
  return chunks;
}

/// A tensor that is updated, on the GPU and by the reference.
template <class T, class G, class R>
struct Tensors {
  Tensors(std::int64_t count, std::uint64_t seed, int states)
      : states_(states),
        rw(as<T>(random_of<T>(std::size_t(count), seed))),
        r1(as<T>(random_of<T>(std::size_t(count), seed + 2))),
        r2(positive(r1)),
        rdw(as<G>(random_of<G>(std::size_t(count), seed + 1))),
        rr(std::size_t(count)) {}
  static std::vector<T> positive(std::vector<T> of) {
    for (T& v : of) v = std::abs(v);
    return of;
  }
  /// Its first element as if memory began after it, so that no pack may begin there.
  cuda::UpdateRun run(std::int64_t from) const {
    cuda::UpdateRun r;
    r.w = w.data() + from, r.dw = dw.data() + from, r.rounded = rounded.data() + from;
    if (states_ > 0) r.first = first.data() + from;
    if (states_ > 1) r.second = second.data() + from;
    r.count = std::int64_t(w.size()) - from;
    r.packed = from == 0 && r.count % 4 == 0;
    return r;
  }
  UpdatePart part(std::int64_t from) {
    const auto view = [&]<class E>(std::vector<E>& of) {
      return View(of.data() + from, {{1, std::int64_t(of.size()) - from, 1, 1}, dtype_of<E>, {}});
    };
    UpdatePart p{.w = view(rw), .dw = view(rdw), .rounded = view(rr)};
    if (states_ > 0) p.states.push_back(view(r1));
    if (states_ > 1) p.states.push_back(view(r2));
    return p;
  }
  void check() const {
    const double close = 4 * roundoff(dtype_of<T>);
    CHECK(difference(wide(w), wide(rw)) < close);
    CHECK(difference(wide(first), wide(r1)) < close);
    CHECK(difference(wide(second), wide(r2)) < close);
    std::vector<R> own;
    for (const T v : w.back()) own.push_back(R(v));
    if (!kept_first) own[0] = R(0);
    CHECK(wide(rounded) == wide(own));
  }

  int states_;
  bool kept_first = true;
  std::vector<T> rw, r1, r2;
  std::vector<G> rdw;
  std::vector<R> rr;
  There<T> w{rw}, first{r1}, second{r2};
  There<G> dw{rdw};
  There<R> rounded{rr};
};

View view_of(Values& v) { return {v.data(), {{1, std::int64_t(v.size()), 1, 1}, DType::f64, {}}}; }

/// Three tensors by one launch: packs, one by one, and by rules of their own.
template <class T, class G, class R>
void compare(const UpdateRule& rule, bool reads) {
  CAPTURE(name(dtype_of<T>), name(dtype_of<G>), int(rule.kind), rule.momentum, rule.nesterov,
          reads);
  using Of = Tensors<T, G, R>;
  std::vector<Of> all;
  for (const std::int64_t count :
       {2 * cuda::chunk_elements + 516, std::int64_t(259), std::int64_t(1)})
    all.emplace_back(count, 10 * all.size() + 1, rule.states());
  Given p;
  UpdateStep step{.rate = 0.1, .weight_decay = 0.01, .grad_scale = 2, .step = 5};
  cuda::Update u{.kind = cuda::Update::Kind(int(rule.kind)),
                 .momentum = rule.momentum,
                 .nesterov = rule.nesterov,
                 .beta1 = rule.beta1,
                 .beta2 = rule.beta2,
                 .epsilon = rule.epsilon,
                 .rate = 0.1,
                 .weight_decay = 0.01,
                 .grad_scale = 2,
                 .step = 5};
  std::vector<cuda::UpdateRun> runs;
  std::vector<UpdatePart> parts;
  std::vector<cuda::Chunk> chunks;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::int64_t from = i == 1;
    all[i].kept_first = from == 0;
    runs.push_back(all[i].run(from)), parts.push_back(all[i].part(from));
    runs[i].rate = parts[i].rate = 1 + double(i);
    runs[i].weight_decay = parts[i].weight_decay = 0.02 * double(i);
    for (const cuda::Chunk c : chunks_of(std::int64_t(i), runs[i].count)) chunks.push_back(c);
  }
  if (reads) {
    step.values = {&p.now, lamina::Passed<UpdateValues>::form()};
    step.found = view_of(p.found), step.samples = 14;
    step.squares = view_of(p.squares), step.clip_norm = 3;
    u.values = p.its_now.data(), u.found = p.its_found.data(), u.samples = 14;
    u.squares = p.its_squares.data(), u.square_count = 3, u.clip_norm = 3;
    step.loss_scale = {&p.scale, lamina::Passed<LossScale>::form()};
    u.loss_scale = p.its_scale.data();
    parts[0].value_square = view_of(p.value), parts[0].grad_square = view_of(p.grad);
    runs[0].value_square = p.its_value.data(), runs[0].grad_square = p.its_grad.data();
    parts[0].trust = runs[0].trust = 0.02;
  }
  const There<cuda::UpdateRun> its_runs(runs);
  const There<cuda::Chunk> its_chunks(chunks);
  ok(cuda::update(nullptr, u, {dtype_of<T>, dtype_of<G>, dtype_of<R>}, its_runs.data(),
                  its_chunks.data(), std::int64_t(chunks.size())));
  Stream stream;
  Reference().update(rule, parts)->run(stream, step);
  for (const Of& t : all) t.check();
}

template <class T, class G, class R>
void compare_all() {
  for (const bool reads : {false, true}) {
    compare<T, G, R>({.kind = Kind::sgd}, reads);
    compare<T, G, R>({.kind = Kind::sgd, .momentum = 0.9}, reads);
    compare<T, G, R>({.kind = Kind::sgd, .momentum = 0.9, .nesterov = true}, reads);
    compare<T, G, R>({.kind = Kind::adam}, reads);
    compare<T, G, R>({.kind = Kind::adamw}, reads);
  }
}

/// Those of tensors of several sizes and types by one call, each in the order that its size says.
template <class... T>
void compare_squares() {
  std::vector<double> right;
  std::vector<cuda::SquaresRun> runs;
  std::vector<cuda::Chunk> chunks;
  std::vector<std::shared_ptr<void>> kept;
  const auto add = [&]<class E>(E) {
    for (const std::int64_t count : {0, 1, 255, 257, 4096, 4097, 9000}) {
      const auto values = as<E>(random_of<E>(std::size_t(count), 1));
      const auto x = std::make_shared<There<E>>(values);
      right.push_back(0);
      for (const E v : values) right.back() += double(v) * double(v);
      runs.push_back({x->data(), dtype_of<E>, count, nullptr, std::int64_t(chunks.size())});
      const auto number = std::int64_t(runs.size()) - 1;
      for (const cuda::Chunk c : chunks_of(number, count)) chunks.push_back(c);
      kept.push_back(x);
    }
  };
  (add(T{}), ...);
  const There<double> its_sums(runs.size(), std::nan("")), partials(chunks.size(), std::nan(""));
  for (std::size_t i = 0; i < runs.size(); ++i) runs[i].sum = its_sums.data() + i;
  ok(cuda::square(nullptr, There(runs).data(), std::int64_t(runs.size()), There(chunks).data(),
                  std::int64_t(chunks.size()), partials.data()));
  const std::vector<double> sums = its_sums.back();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    CAPTURE(name(runs[i].dtype), runs[i].count);
    CHECK(sums[i] == Approx(right[i]).epsilon(1e-13));
  }
}

}  // namespace

TEST_CASE("a list of parameters on a GPU is updated as the reference updates it") {
  compare_all<double, double, float>();
  compare_all<float, float, BF16>();
  compare_all<float, BF16, BF16>();
  compare_all<float, F16, F16>();
}

TEST_CASE("an update on a GPU is skipped where a gradient has overflowed") {
  const std::int64_t count = 300;
  Tensors<float, F16, F16> t(count, 1, 2);
  const std::vector<float> before = t.w.back();
  const There<cuda::UpdateRun> run(1, t.run(0));
  const There<cuda::Chunk> chunk(1, cuda::Chunk{0, 0});
  const Given p;
  const auto go = [&](double square) {
    const There<double> squares(Values{900, square, 9});
    cuda::Update u{.kind = cuda::Update::Kind::adam, .rate = 0.1};
    u.squares = squares.data(), u.square_count = 3, u.loss_scale = p.its_scale.data();
    ok(cuda::update(nullptr, u, {DType::f32, DType::f16, DType::f16}, run.data(), chunk.data(), 1));
    return t.w.back();
  };
  CHECK(go(std::numeric_limits<double>::infinity()) == before);
  CHECK(go(1) != before);
}

TEST_CASE("the loss scale on a GPU moves as on the host") {
  for (const int double_after : {0, 1, 3})
    for (const double start : {1.0, 4.0, LossScaling::most}) {
      CAPTURE(double_after, start);
      const LossScaling how{start, double_after};
      LossScale want{.scale = start};
      const There<LossScale> got(1, want);
      for (int i = 0; i < 40; ++i) {
        const bool overflows = i % 7 > 4 || i > 30;
        const double none = i % 2 ? std::nan("") : std::numeric_limits<double>::infinity();
        const There<double> squares(Values{1, overflows ? none : 2, 3});
        ok(cuda::adjust_loss_scale(nullptr, how, squares.data(), 3, got.data()));
        want.adjust(how, overflows);
        CHECK(got.back()[0] == want);
      }
    }
}

TEST_CASE("squares on a GPU are summed in f64, of a list by one call") {
  compare_squares<double, float, BF16, F16>();
}

TEST_CASE("weights on a GPU that are narrower than their states are not updated in place") {
  BF16 w{};
  cuda::UpdateRun run;
  run.w = run.first = &w, run.dw = &w, run.count = 1;
  const cuda::Chunk chunk{0, 0};
  CHECK(cuda::update(nullptr, {}, {DType::bf16, DType::bf16, DType::bf16}, &run, &chunk, 1) ==
        cudaErrorInvalidValue);
}
