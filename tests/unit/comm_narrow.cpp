// Gradients that go from rank to rank as bf16: sums, networks, plans, and what is refused.
#include "catch.hpp"
#include "support/narrow_sums.hpp"

#include <lamina/comm/threads.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/network/models.hpp>
#include <lamina/network/placed.hpp>
#include <lamina/network/predict.hpp>

#include <cmath>
#include <string>
#include <vector>

using namespace lamina;
using namespace lamina::test;

namespace {

Network small() { return make_model("lenet"); }

/// Gradients of a step on rank 0, those of all parameters one after the other; of a sharded
/// optimizer the part of rank 0. All ranks have the same values.
std::vector<float> gradients(int ranks, const PlaceOptions& options,
                             const std::string& backend = "onednn") {
  std::vector<float> found;
  run_ranks(ranks, [&](World& world) {
    PlaceOptions o = options;
    o.batch = 8, o.backend = make_backend(backend, o.dtype.compute), o.ranks = world;
    PlacedNetwork net = small().place(o);
    net.initialize(3);
    const Random random(5);
    Tensor x(net.x().form());
    visit(o.dtype.compute, [&]<Floating T>(T) {
      const std::int64_t first = net.rows().begin * net.network().sample().size();
      for (std::int64_t i = 0; i < x.shape().size(); ++i)
        x.as<T>()[i] = T(random.normal(std::uint64_t(first + i)));
    });
    Tensor labels({net.rows().size, 1, 1, 1}, DType::i32);
    for (std::int64_t i = 0; i < net.rows().size; ++i)
      labels.as<std::int32_t>()[i] = std::int32_t((net.rows().begin + i) % 10);
    Stream stream;
    for (int turn = 0; turn < o.micro_batches; ++turn) {
      Context context{stream};
      context.targets = labels, context.micro_batch = turn;
      copy_bytes(x, net.x());
      net.forward(context), net.backward(context);
    }
    for (const auto& n : net.parameters()) n.parameter->wait(stream);
    if (world.rank() > 0) return;
    for (Bucket& bucket : net.buckets()) {
      const View own = bucket.own_gradients();
      found.insert(found.end(), own.as<float>(), own.as<float>() + own.shape.size());
    }
  });
  return found;
}

double norm_of(const std::vector<float>& v) {
  double sum = 0;
  for (const float x : v) sum += double(x) * x;
  return std::sqrt(sum);
}

}  // namespace

TEST_CASE("ranks as threads round what they send, and add it up in f32") {
  for (const int n : {2, 3, 4, 7}) {
    std::vector<std::string> wrong(std::size_t(n), "did not run");
    run_ranks(n, [&](World& world) {
      const Communicator all = world.comm().narrow();
      check(all.narrows() && !world.comm().narrows(), "not what was asked for");
      wrong[std::size_t(world.rank())] = wrong_when_narrow(all, 700);
    });
    CAPTURE(n);
    CHECK(wrong == std::vector<std::string>(std::size_t(n)));
  }
}

TEST_CASE("an operation that is narrow says so and counts half of the bytes") {
  Operation op{.collective = Collective::all_reduce, .count = 1000};
  const Operation usual = op;
  op.narrow = true;
  CHECK(usual.bytes(4) == 4000);
  CHECK(op.bytes(4) == 2000);
  CHECK(op.bytes_in(4) == 4000);  // of memory
  CHECK_THAT(op.text(), ContainsSubstring("1000 f32 as bf16"));
  CHECK_FALSE(op.matches(usual));
  CHECK(op.matches(op));
}

TEST_CASE("gradients that are sent in bf16 are those in f32, rounded") {
  struct Case {
    std::string what;
    int ranks;
    PlaceOptions options;
  };
  std::vector<Case> cases = {{"2 ranks", 2, {}},
                             {"4 ranks", 4, {}},
                             {"sharded", 4, {.shard_optimizer = true}},
                             {"micro-batches", 2, {.micro_batches = 3}},
                             {"computed in bf16", 2, {.dtype = DType::bf16}}};
  for (Case& c : cases) {
    CAPTURE(c.what);
    const auto usual = gradients(c.ranks, c.options);
    c.options.sent_gradients = DType::bf16;
    const auto sent = gradients(c.ranks, c.options);
    REQUIRE(usual.size() == sent.size());
    std::vector<float> difference(usual.size());
    for (std::size_t i = 0; i < usual.size(); ++i) difference[i] = usual[i] - sent[i];
    CHECK(norm_of(usual) > 0);
    CHECK(norm_of(difference) > 1e-4 * norm_of(usual));  // it did travel so
    CHECK(norm_of(difference) < 2 * roundoff(DType::bf16) * norm_of(usual));
  }
}

TEST_CASE("gradients can be sent in what they are, and alone in anything") {
  const auto usual = gradients(2, {});
  CHECK(gradients(2, {.sent_gradients = DType::f32}) == usual);
  const auto alone = gradients(1, {});
  CHECK(gradients(1, {.sent_gradients = DType::bf16}) == alone);
}

TEST_CASE("a type in which gradients cannot be sent is refused") {
  const auto place = [](PlaceOptions o, const char* backend) {
    o.batch = 8, o.backend = make_backend(backend, o.dtype.compute);
    return [o] { small().place(o); };
  };
  CHECK_THROWS_WITH(place({.dtype = DType::f64, .sent_gradients = DType::bf16}, "reference")(),
                    ContainsSubstring("gradients in f64 cannot go as bf16: expected bf16 for f32"));
  CHECK_THROWS_WITH(place({.sent_gradients = DType::f16}, "onednn")(),
                    ContainsSubstring("gradients in f32 cannot go as f16"));
  CHECK_THROWS_WITH(
      place({.sent_gradients = DType::bf16, .micro_batches = 2, .workers = {.count = 2}},
            "onednn")(),
      ContainsSubstring("workers' sums are the same on any number of ranks"));
}

TEST_CASE("ranks that are imagined send gradients as one likes") {
  const PlaceOptions o{.batch = 8, .sent_gradients = DType::bf16};
  CHECK(imagine(small(), o, 1, 2).memory().total() ==
        imagine(small(), {.batch = 8}, 1, 2).memory().total());
}

TEST_CASE("ranks must agree on how gradients are sent") {
  CHECK_THROWS_WITH(run_ranks(2,
                              [](World& world) {
                                PlaceOptions o{.batch = 8,
                                               .backend = make_backend("onednn", DType::f32),
                                               .ranks = world};
                                if (world.rank() == 1) o.sent_gradients = DType::bf16;
                                small().place(o);
                              }),
                    ContainsSubstring("sent_gradients"));
}
