// What becomes of collectives between GPUs when something is wrong.
#include "catch.hpp"
#include "fake/nccl_group.hpp"
#include "fake/ranks.hpp"
#include "support/colors.hpp"
#include "support/training.hpp"

#include <chrono>
#include <thread>

using namespace lamina;
using namespace lamina::test;

namespace {

/// What each rank ends with, and how long that takes.
struct Ends {
  std::vector<std::string> errors;
  double seconds = 0;
};
Ends ends_of(int ranks, const std::function<void(const Rank&)>& main, double timeout) {
  Ends ends{std::vector<std::string>(std::size_t(ranks))};
  const double begin = now();
  const auto noted = [&](const Rank& r) {
    try {
      main(r);
    } catch (const Error& e) {
      ends.errors[std::size_t(r.number())] = e.what();
      throw;
    }
  };
  CHECK_THROWS_AS(on_gpus(ranks, noted, timeout), Error);
  ends.seconds = now() - begin;
  return ends;
}

/// Recorded, and run a few times: what these ranks have at most, and then what all have.
std::unique_ptr<Recording> recorded_maxima(const Rank& r, const Communicator& some,
                                           const Tensor& x) {
  const auto step = [&] {
    some.all_reduce(r.stream, pass, x, ReduceOp::max).wait(r.stream);
    r.comm().all_reduce(r.stream, pass, x, ReduceOp::max).wait(r.stream);
  };
  step();  // makes the stream of collectives
  auto recording = r.memory.queue_of(r.stream).record(step);
  for (int i = 0; i < 3; ++i) recording->play(r.stream);
  r.stream.wait();
  return recording;
}

}  // namespace

TEST_CASE("when a rank throws, those that wait for it on their GPUs end") {
  const Ends ends = ends_of(
      3,
      [](const Rank& r) {
        const Tensor x = r.filled<float>(10, [](auto) { return 1; });
        for (int step = 0; step < 3; ++step) r.comm().all_reduce(r.stream, pass, x).wait(r.stream);
        r.stream.wait();
        if (r.number() == 1) throw Error("boom");
        r.comm().all_reduce(r.stream, pass, x).wait(r.stream);
        r.stream.wait();
      },
      60);
  CHECK(ends.errors == std::vector<std::string>{"rank 1: boom", "boom", "rank 1: boom"});
  CHECK(ends.seconds < 10);
}

TEST_CASE("when a rank throws, recorded steps that wait for it in some group end") {
  const Ends ends = ends_of(
      4,
      [](const Rank& r) {
        const Communicator rows = split(r.comm(), r.number() / 2);
        const Tensor x = r.filled<float>(10, [](auto) { return 1; });
        const auto recording = recorded_maxima(r, rows, x);
        if (r.number() == 1) throw Error("boom");
        recording->play(r.stream);
        r.stream.wait();
      },
      60);
  CHECK(ends.errors ==
        std::vector<std::string>{"rank 1: boom", "boom", "rank 1: boom", "rank 1: boom"});
  CHECK(ends.seconds < 10);
}

TEST_CASE("a collective that fails as it is called ends a rank that has recorded steps, or does") {
  const bool records = GENERATE(false, true);
  CAPTURE(records);
  const Ends ends = ends_of(
      2,
      [&](const Rank& r) {
        const Tensor x = r.filled<float>(10, [](auto) { return 1; });
        const auto recording = recorded_maxima(r, split(r.comm(), 0), x);
        const auto sums = [&] {
          r.comm().all_reduce(r.stream, pass, x).wait(r.stream);
          nccl_refuses = r.number() == 1;
          r.comm().all_reduce(r.stream, pass, x).wait(r.stream);
        };
        records ? r.memory.queue_of(r.stream).record(sums)->play(r.stream) : sums();
        r.stream.wait();
      },
      60);
  const std::string refused = "NCCL: all_reduce sum of 10 f32: unhandled cuda error";
  for (const std::string& error : ends.errors) CHECK_THAT(error, ContainsSubstring(refused));
  CHECK(ends.seconds < 10);
}

TEST_CASE("a trainer whose steps are recorded ends when another rank does") {
  const auto data = small_data(48);
  const Ends ends = ends_of(
      4,
      [&](const Rank& r) {
        set_threads(1);
        const Network net = small_network(false);
        std::vector<Split> splits(net.graph().size(), Split{.batch = 4});
        for (std::size_t i = 0; i < splits.size(); ++i)
          if (net.graph()[i].name == "b") splits[i] = {.batch = 2, .channel = 2};
        Trainer trainer(net, r.world, SGD{.rate = 0.05},
                        {.batch = 12, .backend = "reference", .splits = splits});
        auto loader = trainer.loader(*data, true);
        for (int i = 0; i < 20; ++i) {
          if (i == 15) check(trainer.graph() == "steps are recorded", trainer.graph());
          if (i == 15 && r.number() == 1) throw Error("boom");
          trainer.start(loader, 20);
          if (trainer.under_way() > 1) trainer.finish();
        }
      },
      60);
  CHECK(ends.errors ==
        std::vector<std::string>{"rank 1: boom", "boom", "rank 1: boom", "rank 1: boom"});
  CHECK(ends.seconds < 10);
  CHECK(nccl_memory.empty());
  CHECK(nccl_known_at_end == 0);  // only when the communicators that were aborted have gone
}

TEST_CASE("a rank that does not come is an error on all ranks, within the time limit") {
  const Ends ends = ends_of(
      3,
      [](const Rank& r) {
        r.stream.enter(4, "fc");
        const Tensor x = r.filled<float>(10, [](auto) { return 1; });
        if (r.number() == 1) std::this_thread::sleep_for(std::chrono::seconds(3));
        r.comm().all_reduce(r.stream, pass, x).wait(r.stream);
        r.stream.wait();
      },
      1);
  const std::string late =
      "all_reduce sum of 10 f32 in layer fc (weight_grad): not all ranks came within 1 s";
  for (const std::string& error : ends.errors) CHECK_THAT(error, ContainsSubstring(late));
  CHECK(ends.seconds < 10);
}

TEST_CASE("GPUs that call different things are told so") {
  const Ends ends = ends_of(
      2,
      [](const Rank& r) {
        const Tensor x = r.filled<float>(10, [](auto) { return 1; });
        const View part(x.view().data, {{r.number() == 0 ? 10 : 5, 1, 1, 1}, DType::f32, {}},
                        &r.memory);
        r.comm().all_reduce(r.stream, pass, part).wait(r.stream);
        r.stream.wait();
      },
      60);
  for (const std::string& error : ends.errors)
    CHECK_THAT(error, ContainsSubstring("called all_reduce"));
}

TEST_CASE("two ranks on one GPU are refused, with a table") {
  std::string error;
  try {
    run_ranks(3, [](World& world) {
      world.carry_over([&](auto t) { return over_nccl(std::move(t), world.rank() / 2); });
    });
  } catch (const Error& e) {
    error = e.what();
  }
  const std::string host = host_name();
  CHECK(error ==
        "NCCL needs a GPU for each rank, but ranks 0 and 1 have the same one; MPI works there "
        "(--comm mpi)\n  rank  GPU  host\n     0    0  " +
            host + ", Fake GPU\n     1    0  " + host +
            ", Fake GPU, that of rank 0\n     2    0  " + host + ", Fake GPU");
}
