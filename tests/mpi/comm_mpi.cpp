// Collectives between the processes of mpirun, against closed forms.
#include "catch.hpp"
#include "mpi/world.hpp"
#include "support/colors.hpp"

#include <lamina/profile/detail/late.hpp>
#include <lamina/profile/detail/pack.hpp>

#include <chrono>
#include <cmath>
#include <thread>

using namespace lamina;

namespace {

double value(int r, std::int64_t i) { return double((r + 1) * 10 + i % 7); }

template <class T>
Tensor filled(int rank, std::int64_t count) {
  Tensor t({count, 1, 1, 1}, dtype_of<T>);
  for (std::int64_t i = 0; i < count; ++i) t.as<T>()[i] = T(value(rank, i));
  return t;
}

template <class T, class Right>
std::int64_t wrong(const Tensor& t, Right right) {
  std::int64_t n = 0;
  for (std::int64_t i = 0; i < t.shape().size(); ++i) n += double(t.as<T>()[i]) != right(i);
  return n;
}

template <class T>
void every_collective(std::int64_t count) {
  const Communicator& comm = test::world().comm();
  const int n = comm.size(), rank = comm.rank();
  const auto p = Pass::forward;
  Stream s;
  const auto sum = [&](std::int64_t i) {
    double total = 0;
    for (int r = 0; r < n; ++r) total += value(r, i);
    return total;
  };
  Tensor x = filled<T>(rank, count);
  comm.all_reduce(s, p, x).wait(s);
  CHECK(wrong<T>(x, sum) == 0);
  x = filled<T>(rank, count);
  comm.all_reduce(s, p, x, ReduceOp::max).wait(s);
  CHECK(wrong<T>(x, [&](auto i) { return value(n - 1, i); }) == 0);
  x = filled<T>(rank, count);
  comm.all_reduce(s, p, x, ReduceOp::min).wait(s);
  CHECK(wrong<T>(x, [&](auto i) { return value(0, i); }) == 0);

  Tensor part({count, 1, 1, 1}, dtype_of<T>), whole = filled<T>(rank, count * n);
  comm.reduce_scatter(s, p, whole, part).wait(s);
  CHECK(wrong<T>(part, [&](auto i) { return sum(rank * count + i); }) == 0);

  const auto gathered = [&](auto i) { return value(int(i / count), i % count); };
  part = filled<T>(rank, count);
  comm.all_gather(s, p, part, whole).wait(s);
  CHECK(wrong<T>(whole, gathered) == 0);
  whole = Tensor(whole.view().form());
  std::memcpy(whole.as<T>() + rank * count, part.as<T>(), part.bytes());
  const View own(whole.as<T>() + rank * count, {{count, 1, 1, 1}, dtype_of<T>, {}});
  comm.all_gather(s, p, own, whole).wait(s);
  CHECK(wrong<T>(whole, gathered) == 0);

  x = filled<T>(rank, count);
  comm.broadcast(s, p, x, n - 1).wait(s);
  CHECK(wrong<T>(x, [&](auto i) { return value(n - 1, i); }) == 0);

  whole = filled<T>(rank, count * n);
  Tensor other({count * n, 1, 1, 1}, dtype_of<T>);
  comm.all_to_all(s, p, whole, other).wait(s);
  CHECK(wrong<T>(other, [&](auto i) { return value(int(i / count), rank * count + i % count); }) ==
        0);

  x = filled<T>(rank, count);
  Tensor y({count, 1, 1, 1}, dtype_of<T>);
  comm.exchange(s, p, x, (rank + 1) % n, y, (rank + n - 1) % n).wait(s);
  CHECK(wrong<T>(y, [&](auto i) { return value((rank + n - 1) % n, i); }) == 0);
  y = Tensor(x.view().form());
  comm.exchange(s, p, x, rank + 1 < n ? rank + 1 : -1, y, rank - 1).wait(s);
  CHECK(wrong<T>(y, [&](auto i) { return rank > 0 ? value(rank - 1, i) : 0.0; }) == 0);
}

}  // namespace

TEST_CASE("every collective equals its closed form between processes") {
  every_collective<float>(37);
  every_collective<double>(37);
  every_collective<std::int32_t>(37);
  every_collective<BF16>(37);
  every_collective<F16>(37);
  every_collective<float>(700'001);  // several pieces, the last one uneven
}

TEST_CASE("sums of bf16 are rounded once, whatever carries them") {
  const Communicator& comm = test::world().comm();
  const int n = comm.size();
  for (const std::int64_t count : {3, 100'000}) {
    Stream s;
    const Tensor x({count * n, 1, 1, 1}, DType::bf16), part({count, 1, 1, 1}, DType::bf16);
    for (BF16& v : x.elements<BF16>()) v = BF16(comm.rank() == 0 ? 256 : 0.75);
    comm.reduce_scatter(s, Pass::forward, x, part).wait(s);
    comm.all_reduce(s, Pass::forward, x).wait(s);
    const auto right = [&](auto) { return double(BF16(256 + 0.75 * (n - 1))); };
    CHECK(wrong<BF16>(x, right) == 0);
    CHECK(wrong<BF16>(part, right) == 0);
  }
}

TEST_CASE("an all-reduce leaves the same bits on all ranks") {
  World& world = test::world();
  const std::int64_t count = 100'003;
  Tensor x({count, 1, 1, 1}, DType::f32);
  for (std::int64_t i = 0; i < count; ++i)
    x.as<float>()[i] = float(std::sin(double(i * (world.rank() + 3))));
  Stream s;
  world.comm().all_reduce(s, Pass::update, x).wait(s);
  const std::string mine(static_cast<const char*>(x.view().data), x.bytes());
  const bool same = mine == world.comm().broadcast_text(mine);
  CHECK(world.comm().all_reduce_value(int(same)) == world.size());
}

TEST_CASE("groups, host values and the world's places") {
  World& world = test::world();
  const Communicator& comm = world.comm();
  const int rank = world.rank(), n = world.size();
  CHECK(world.hosts().size() == std::size_t(n));
  CHECK(world.local_rank() == rank);  // mpirun of the tests uses one host
  CHECK(world.local_size() == n);
  const Communicator group = test::split(comm, rank % 2, -rank);
  const int members = (n + 1 - rank % 2) / 2;
  CHECK(group.size() == members);
  CHECK(group.rank() == members - 1 - rank / 2);
  CHECK(group.all_reduce_value(rank % 2 * 10 + 1) == (rank % 2 * 10 + 1) * members);
  CHECK(test::split(comm, rank == 0 ? -1 : 0).size() == (rank == 0 ? 1 : n - 1));
  const auto texts = comm.all_gather_text(std::string(std::size_t(rank) * 5, 'x'));
  for (int r = 0; r < n; ++r) CHECK(texts[std::size_t(r)] == std::string(std::size_t(r) * 5, 'x'));
  CHECK(comm.broadcast_text(rank == 1 ? "from one" : "", 1) == "from one");
}

TEST_CASE("collectives of several groups run in program order") {
  World& world = test::world();
  const Communicator pairs = test::split(world.comm(), world.rank() / 2);
  Stream s;
  Tensor x({1, 1, 1, 1}, DType::f64);
  *x.as<double>() = world.rank() + 1;
  Pending last;
  for (int i = 0; i < 10; ++i) {
    Pending one = pairs.all_reduce(s, Pass::forward, x);
    Pending two = world.comm().broadcast(s, Pass::forward, x, 0);
    last = std::move(two);
  }
  last.wait(s);
  CHECK(*x.as<double>() == 3.0 * 512);
}

TEST_CASE("processes see which of their peers was late, whatever carries the bytes") {
  const Communicator& comm = test::world().comm();
  const int n = comm.size(), rank = comm.rank(), last = n - 1;
  if (n < 2) return;
  const Communicator turned =
      test::split(comm, 0, n - rank);  // the same ranks, numbered from the last
  Profiler profiler;
  Stream s;
  Tensor x({5000, 1, 1, 1}, DType::f32), y({5000, 1, 1, 1}, DType::f32);
  profiler.start(s);
  comm.barrier();
  if (rank == last) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  comm.all_reduce(s, Pass::forward, x).wait(s);
  comm.barrier();
  if (rank == last) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const int right = (rank + 1) % n, left = (rank + n - 1) % n;
  comm.exchange(s, Pass::forward, x, right, y, left).wait(s);
  comm.barrier();
  if (rank == last) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  turned.broadcast(s, Pass::forward, x, 0).wait(s);
  profiler.next_step();
  profiler.stop();

  const auto offsets = detail::clock_offsets(comm);
  const auto runs =
      detail::unpack<Profiler::Run>(comm.all_gather_text(detail::pack(profiler.runs())));
  const auto came = detail::all_had_come(runs, std::size_t(rank), offsets);
  REQUIRE(came.size() == 3);
  const auto late = [&](std::size_t i) { return came[i] - profiler.runs()[i].begin; };
  for (const std::size_t i : {0, 1, 2}) {
    INFO("rank " << rank << ", collective " << i << ": " << late(i));
    CHECK(came[i] <= profiler.runs()[i].end);
    const bool beside = rank == last || right == last || left == last;
    if (rank != last && (i != 1 || beside)) CHECK(late(i) > 0.02);
  }
  CHECK(profiler.runs()[0].party.group != profiler.runs()[2].party.group);
}
