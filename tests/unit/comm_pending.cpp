// What a collective records, how it ends when something fails, and that it allocates nothing.
#include "catch.hpp"
#include "support/allocations.hpp"
#include "support/colors.hpp"

#include <lamina/comm/threads.hpp>

#include <atomic>
#include <memory>

using namespace lamina;

namespace {

struct Spans final : Recorder {
  void record(const Span& span) override {
    const std::lock_guard lock(mutex);
    all.push_back(span);
  }
  std::mutex mutex;
  std::vector<Span> all;
};

std::string error_of(int ranks, void (*main)(World&), double timeout = 60) {
  try {
    run_ranks(ranks, main, timeout);
  } catch (const Error& e) {
    return e.what();
  }
  return {};
}

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

}  // namespace

TEST_CASE("a collective records its span, and a wait that waited") {
  run_ranks(2, [](World& world) {
    Spans spans;
    Stream s;
    s.record_to(&spans);
    s.enter(7);
    Tensor x({10, 1, 1, 1}, DType::f64);
    world.comm().barrier();
    if (world.rank() == 1) sleep_ms(30);  // so that rank 0 has to wait
    auto pending = world.comm().all_reduce(s, Pass::weight_grad, x);
    s.enter(3);  // the wait belongs to the layer that started it
    pending.wait(s);
    pending.wait(s);  // finished: nothing more
    bool moved = false, waited = false, posted = false;
    for (const Span& span : spans.all) {
      check(span.layer == 7 && span.pass == Pass::weight_grad, "under the wrong layer");
      check(span.end >= span.begin, "ends before it begins");
      if (std::string_view(span.what) == "post") {
        check(span.lane == Lane::wait && !posted, "posted twice");
        posted = true;
        continue;
      }
      check(std::string_view(span.what) == "all_reduce", "what: ", span.what);
      if (span.lane == Lane::communication) {
        check(!moved && span.bytes == 80, "bytes: ", span.bytes);
        check(span.party.group != 0 && span.party.rank == world.rank(), "party");
        moved = true;
      } else {
        check(span.lane == Lane::wait && !waited && span.bytes == 0, "wait");
        waited = true;
      }
    }
    check(moved, "no span of the communication thread");
    check(posted, "no span of handing it over");
    check(waited || world.rank() == 1, "rank 0 waited and recorded nothing");

    auto done = world.comm().all_reduce(s, Pass::forward, x);
    while (!done.done()) std::this_thread::yield();
    const std::size_t before = spans.all.size();
    done.wait(s);
    check(spans.all.size() == before, "a wait that did not wait was recorded");
  });
}

TEST_CASE("a Pending waits when it goes, and can be moved") {
  run_ranks(2, [](World& world) {
    Stream s;
    Tensor x({1, 1, 1, 1}, DType::f32), y({1, 1, 1, 1}, DType::f32);
    *x.as<float>() = *y.as<float>() = 1;
    {
      Pending ready;
      check(ready.done(), "a default one is done");
      ready = world.comm().all_reduce(s, Pass::forward, x);
      Pending moved = std::move(ready);
      check(ready.done(), "a moved-from one is done");
      moved = world.comm().all_reduce(s, Pass::forward, y);
      check(*x.as<float>() == 2, "assignment waits for the old one");
    }
    check(*y.as<float>() == 2, "the destructor waits");
  });
}

TEST_CASE("when one rank throws, the others end and its error comes out") {
  REQUIRE(error_of(4, [](World& world) {
            if (world.rank() == 2) throw Error("boom");
            world.comm().barrier();
          }) == "boom");
  REQUIRE(error_of(3, [](World& world) {  // while the others wait in groups of their own
            const auto group = test::split(world.comm(), world.rank() == 0 ? 0 : 1);
            if (world.rank() == 1) throw Error("boom");
            if (world.rank() == 2) group.barrier();
            while (world.rank() == 0) test::split(world.comm(), 0).barrier();
          }) == "boom");
}

TEST_CASE("a rank that computes learns of a failure at its next collective") {
  REQUIRE(error_of(2, [](World& world) {
            if (world.rank() == 1) throw Error("early");
            sleep_ms(250);  // longer than a poll
            Stream s;
            Tensor x({1, 1, 1, 1}, DType::f32);
            try {
              Pending never = world.comm().all_reduce(s, Pass::forward, x);
              never.wait(s);
            } catch (const PeerError& e) {
              check(std::string(e.what()) == "rank 1: early", "got: ", e.what());
              throw;
            }
            throw Error("was not told");
          }) == "early");
}

TEST_CASE("after an error every collective throws it again, and destructors stay quiet") {
  REQUIRE(error_of(2, [](World& world) {
            Stream s;
            Tensor x({world.rank() + 1, 1, 1, 1}, DType::f32);
            { const auto dropped = world.comm().all_reduce(s, Pass::forward, x); }
            world.comm().barrier();
          }).find("rank 0 called") == 0);
}

TEST_CASE("ranks that call different things are told what each called") {
  const std::string error = error_of(3, [](World& world) {
    Stream s;
    s.enter(5);
    Tensor x({world.rank() == 1 ? 8 : 4, 1, 1, 1}, DType::f32);
    world.comm().all_reduce(s, Pass::weight_grad, x).wait(s);
  });
  REQUIRE(error ==
          "rank 0 called all_reduce sum of 4 f32 in layer 5 (weight_grad), but rank 1 "
          "called all_reduce sum of 8 f32 in layer 5 (weight_grad)");
  REQUIRE(error_of(2,
                   [](World& world) {
                     Stream s;
                     Tensor x({4, 1, 1, 1}, DType::f32);
                     if (world.rank() == 0)
                       world.comm().all_reduce(s, Pass::forward, x).wait(s);
                     else
                       world.comm().broadcast(s, Pass::forward, x, 0).wait(s);
                   }) ==
          "rank 0 called all_reduce sum of 4 f32, but rank 1 called broadcast from rank 0 of 4 "
          "f32");
}

TEST_CASE("a rank that ended early, or never comes, is named") {
  REQUIRE(error_of(3, [](World& world) {
            if (world.rank() != 1) world.comm().barrier();
          }) == "rank 1 ended before barrier");
  REQUIRE(error_of(
              2,
              [](World& world) {
                Stream s;
                s.enter(2);
                Tensor x({4, 1, 1, 1}, DType::f32);
                if (world.rank() == 0)
                  world.comm().all_reduce(s, Pass::forward, x).wait(s);
                else
                  sleep_ms(600);
              },
              0.2) ==
          "rank 1 did not come to all_reduce sum of 4 f32 in layer 2 (forward) within "
          "0.2 s");
}

TEST_CASE("views that do not fit are refused before anything is sent") {
  const auto message = [](auto call) { return error_of(2, call); };
  REQUIRE_THAT(message([](World& world) {
                 Stream s;
                 s.enter(4);
                 Tensor part({3, 1, 1, 1}, DType::f32), whole({7, 1, 1, 1}, DType::f32);
                 world.comm().all_gather(s, Pass::forward, part, whole).wait(s);
               }),
               ContainsSubstring("layer 4: all_gather over 2 ranks needs a whole of 2 parts"));
  REQUIRE_THAT(message([](World& world) {
                 Stream s;
                 Tensor x({3, 1, 1, 1}, DType::f32);
                 world.comm().broadcast(s, Pass::forward, x, 2).wait(s);
               }),
               ContainsSubstring("rank 2 is not one of the 2 ranks"));
}

TEST_CASE("a collective allocates nothing") {
  struct Nothing final : Transport {
    int rank() const override { return 0; }
    int size() const override { return 2; }
    void run(const Operation&) override { ++runs; }
    std::string carrier() const override { return "nothing"; }
    std::shared_ptr<Transport> group(const std::vector<int>&) override { return nullptr; }
    int runs = 0;
  };
  const auto transport = std::make_shared<Nothing>();
  const auto queue = std::make_shared<CommQueue>(transport);
  const Communicator comm(transport, queue);
  Stream s;
  const Tensor x({16, 1, 1, 1}, DType::f32);
  comm.barrier();
  const test::Allocations allocations;
  for (int i = 0; i < 5000; ++i) {  // several times around the ring
    Pending first = comm.all_reduce(s, Pass::forward, x);
    Pending second = comm.broadcast(s, Pass::forward, x, 0);
    second.wait(s);
    first = std::move(second);
  }
  const std::size_t count = allocations.count();
  if (test::counts_allocations()) REQUIRE(count == 0);
  REQUIRE(transport->runs == 10001);
}

TEST_CASE("more collectives than the ring holds are started, in order") {
  run_ranks(2, [](World& world) {
    Stream s;
    Tensor x({1, 1, 1, 1}, DType::i32);
    std::vector<Pending> pending;
    for (int i = 0; i < 3000; ++i)
      pending.push_back(world.comm().all_reduce(s, Pass::forward, x, ReduceOp::max));
    pending.back().wait(s);
    for (auto& p : pending) check(p.done(), "not done");
  });
}

TEST_CASE("an operation names its layer, or gives the number of one without a name") {
  Operation op;
  op.collective = Collective::all_reduce, op.pass = Pass::weight_grad;
  op.layer = 3, op.layer_name = "fc", op.count = 2;
  CHECK(op.text() == "all_reduce sum of 2 f32 in layer fc (weight_grad)");
  op.layer_name = "";
  CHECK(op.text() == "all_reduce sum of 2 f32 in layer 3 (weight_grad)");
}

TEST_CASE("a recorder may be gone when a collective that it began with ends") {
  struct Counted final : Recorder {
    explicit Counted(std::atomic<int>& calls_) : calls(calls_) {}
    ~Counted() override { retire(); }
    void record(const Span&) override { ++calls; }
    std::atomic<int>& calls;
  };
  std::atomic<bool> gone = false;
  run_ranks(2, [&](World& world) {
    std::atomic<int> calls = 0;
    Stream s;
    Tensor x({10, 1, 1, 1}, DType::f64);
    auto recorder = std::make_unique<Counted>(calls);
    s.record_to(recorder.get());
    for (int i = 0; i < 20'000 && world.rank() == 1 && !gone; ++i) sleep_ms(1);
    Pending pending = world.comm().all_reduce(s, Pass::weight_grad, x);
    s.record_to(nullptr);
    if (world.rank() == 1) pending.wait(s);
    recorder.reset();  // on rank 0 while the sum waits for rank 1
    if (world.rank() == 0) gone = true;
    pending.wait(s);
    check(calls == (world.rank() == 0 ? 1 : 2), "expected the post, and the sum on rank 1");
  });
}
