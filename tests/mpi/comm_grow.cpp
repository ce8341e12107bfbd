// Ranks that are started while others go on. They run this file, too.
#include "catch.hpp"
#include "mpi/world.hpp"

#include <lamina/tensor/stream.hpp>
#include <lamina/tensor/tensor.hpp>

#include <algorithm>
#include <chrono>
#include <future>
#include <string>
#include <vector>

using namespace lamina;
using lamina::test::world;

namespace {

/// Each rank gives ones: whether the sum is how many there are, in memory that they share and in
/// memory of their own.
bool adds_up(const Communicator& ranks, std::int64_t count) {
  Stream stream;
  const Form form{{count, 1, 1, 1}, DType::f32, {}};
  bool right = true;
  for (Tensor x : {Tensor(form), ranks.tensor(form)}) {
    auto* values = x.view().as<float>();
    std::fill_n(values, count, 1.0f);
    ranks.all_reduce(stream, Pass::weight_grad, x).wait(stream);
    for (std::int64_t i = 0; i < count; ++i) right = right && values[i] == float(ranks.size());
  }
  return right;
}

bool ready(const std::future<World>& larger) {
  return larger.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

/// These, and two more; those here take steps meanwhile. Returns how many.
int grow(World& ranks) {
  std::future<World> growing = std::async(std::launch::async, [&] {
    World larger = ranks.grow(2);
    larger.comm().broadcast_text("stay");
    larger.accept();
    ranks.hear(larger);
    return larger;
  });
  int steps = 0;
  for (bool all = false; !all; ++steps) {
    CHECK(adds_up(ranks, 10'000));
    all = ranks.comm().all_reduce_value(int(ready(growing)), ReduceOp::min) == 1;
  }
  ranks.become(growing.get());
  return steps;
}

}  // namespace

TEST_CASE("ranks are started while others step") {
  World& ranks = world();
  if (ranks.late()) {
    if (ranks.comm().broadcast_text("") == "go") return;  // as if it could not join
    ranks.accept();
  } else {
    const int before = ranks.size();
    {
      const World larger = ranks.grow(1);
      CHECK(larger.size() == before + 1);
      larger.comm().broadcast_text("go");
    }
    CHECK(ranks.size() == before);
    CHECK(adds_up(ranks, 10'000));
    CHECK(grow(ranks) > 10);
    CHECK(ranks.size() == before + 2);
    CHECK(ranks.started() == before);
  }
  const Communicator& all = ranks.comm();
  const auto late = all.all_gather_value(int(ranks.late()));
  for (int r = 0; r < all.size(); ++r) CHECK(late[std::size_t(r)] == int(r >= ranks.started()));
  for (const std::int64_t count : {1, 1000, 100'000, 3'000'000}) CHECK(adds_up(all, count));

  const int last = all.size() - 1;
  const bool ends = all.rank() == 0 || all.rank() == last;
  const Communicator two = all.group(ends ? std::vector{0, last} : std::vector<int>());
  if (ends) CHECK(adds_up(two, 5000));
  if (all.rank() == 0) all.post(last, "a note");
  if (all.rank() == last) {
    std::string note;
    while (note.empty()) note = all.collect();
    CHECK(note == "a note");
  }
}
