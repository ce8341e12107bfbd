// The main() of the tests under mpirun: MPI starts before Catch2, and a rank whose tests failed
// takes the others with it. `mpi_tests --fail HOW` fails on purpose, for tests/checks/lost_rank.sh.
#include "catch.hpp"
#include "mpi/world.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

namespace {

lamina::World* current = nullptr;

/// Rank 0 gives up a message that rank 1 sends a moment later, before it has heard of that.
int give_up_too_early(lamina::World& world) {
  using namespace lamina;
  Stream stream;
  Tensor x({1'000'000, 1, 1, 1}, DType::f32);
  const bool sends = world.rank() == 1, gets = world.rank() == 0;
  for (float& v : x.elements<float>()) v = sends ? 7 : 0;
  world.comm().barrier();
  if (!gets) usleep(3'200'000);
  try {
    world.comm().exchange(stream, Pass::forward, x, sends ? 0 : -1, x, gets ? 1 : -1).wait(stream);
  } catch (const Error& e) {
    if (!gets) throw;
    usleep(1'800'000);
    World::say(world.leave(e.what(), 1));
    const auto values = x.elements<float>();
    if (!std::ranges::all_of(values, [](float v) { return v == 0; }))
      World::say("memory was written to late");
    return 1;
  }
  return 0;
}

/// Rank 2 ends while a group that it is not in has much to do.
int end_outside(lamina::World& world) {
  using namespace lamina;
  Stream stream;
  const Tensor x({1000, 1, 1, 1}, DType::f32);
  const bool in = world.rank() < 2;
  const std::vector<int> first = {0, 1};
  const Communicator two = world.comm().group(in ? first : std::vector<int>());
  if (!in) return 0;
  if (world.rank() == 1) sleep(7);
  two.all_reduce(stream, Pass::update, x).wait(stream);
  return 0;
}

/// Twenty steps of one all-reduce, in the middle of which rank 1 fails. A parked rank takes part in
/// nothing but notes.
int fail(lamina::World& world, std::string_view how) {
  using namespace lamina;
  if (how == "same") throw Error("data/missing: no such file");
  if (how == "usage") return 2;
  if (how == "negative") return -1;
  if (how == "late") return give_up_too_early(world);
  if (how == "outside") return end_outside(world);
  Stream stream;
  Tensor x({1000, 1, 1, 1}, DType::f32);
  const bool parks = how == "parked", parked = parks && world.rank() > 1;
  const std::vector<int> first = {0, 1};
  const Communicator ranks =
      parks ? world.comm().group(parked ? std::vector<int>() : first) : world.comm();
  while (parked) world.comm().collect(), usleep(10'000);
  for (int step = 0; step < 20; ++step) {
    stream.enter(step);
    if (step == 10 && world.rank() == 1) {
      if (how == "killed") raise(SIGKILL);
      if (how == "thrown" || parks) throw Error("images/7.jpg: not a JPEG");
      if (how == "early") return 0;
      if (how == "stuck") pause();
      if (how == "mixed") x = Tensor({999, 1, 1, 1}, DType::f32);
      if (how == "halo") world.comm().exchange(stream, Pass::forward, x, 0, x, 0).wait(stream);
    }
    if (how == "short") {  // a halo around the ranks, of which rank 1 sends too little
      const int n = world.size(), rank = world.rank();
      const Tensor in(x.view().form()),
          out({step == 10 && rank == 1 ? 999 : 1000, 1, 1, 1}, x.view().dtype);
      world.comm()
          .exchange(stream, Pass::forward, out, (rank + 1) % n, in, (rank + n - 1) % n)
          .wait(stream);
    }
    ranks.all_reduce(stream, Pass::weight_grad, x).wait(stream);
  }
  return 0;
}

}  // namespace

lamina::World& lamina::test::world() { return *current; }

int main(int argc, char** argv) {
  return lamina::run(argc, argv, [&](lamina::World& world) {
    if (argc == 3 && std::string_view(argv[1]) == "--fail") return fail(world, argv[2]);
    current = &world;
    return lamina::test::run_cases(argc, argv) == 0 ? 0 : 1;
  });
}
