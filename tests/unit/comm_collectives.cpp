// Collectives between ranks that are threads, against closed forms.
#include "catch.hpp"
#include "support/colors.hpp"

#include <lamina/comm/threads.hpp>

#include <atomic>

using namespace lamina;

namespace {

/// What element i of rank r starts as: small whole numbers, so that sums are exact in every dtype.
double value(int r, std::int64_t i) { return double((r + 1) * 10 + i % 7); }

template <class T>
Tensor filled(int rank, std::int64_t count) {
  Tensor t({count, 1, 1, 1}, dtype_of<T>);
  for (std::int64_t i = 0; i < count; ++i) t.as<T>()[i] = T(value(rank, i));
  return t;
}

Tensor place(const Form& form, double value) {
  Tensor t(form);
  visit(form.dtype, [&]<class T>(T) {
    for (T& element : t.elements<T>()) element = T(value);
  });
  return t;
}

/// Catch's assertions are not thread-safe: ranks throw instead.
template <class T, class Right>
void expect(const Tensor& t, Right right) {
  for (std::int64_t i = 0; i < t.shape().size(); ++i)
    check(double(t.as<T>()[i]) == right(i), "element ", i, ": ", double(t.as<T>()[i]),
          ", expected ", right(i));
}

template <class T>
void every_collective(World& world) {
  const Communicator& comm = world.comm();
  const int n = comm.size(), rank = comm.rank();
  const std::int64_t count = 37;
  const auto p = Pass::forward;
  Stream s;
  const auto sum = [&](std::int64_t i) {
    double total = 0;
    for (int r = 0; r < n; ++r) total += value(r, i);
    return total;
  };

  Tensor x = filled<T>(rank, count);
  comm.all_reduce(s, p, x).wait(s);
  expect<T>(x, sum);
  x = filled<T>(rank, count);
  comm.all_reduce(s, p, x, ReduceOp::max).wait(s);
  expect<T>(x, [&](auto i) { return value(n - 1, i); });
  x = filled<T>(rank, count);
  comm.all_reduce(s, p, x, ReduceOp::min).wait(s);
  expect<T>(x, [&](auto i) { return value(0, i); });

  Tensor part({count, 1, 1, 1}, dtype_of<T>), whole = filled<T>(rank, count * n);
  comm.reduce_scatter(s, p, whole, part).wait(s);
  expect<T>(part, [&](auto i) { return sum(rank * count + i); });

  part = filled<T>(rank, count);
  comm.all_gather(s, p, part, whole).wait(s);
  expect<T>(whole, [&](auto i) { return value(int(i / count), i % count); });
  const View own(whole.as<T>() + rank * count, {{count, 1, 1, 1}, dtype_of<T>, {}});
  comm.all_gather(s, p, own, whole).wait(s);  // in place
  expect<T>(whole, [&](auto i) { return value(int(i / count), i % count); });

  x = filled<T>(rank, count);
  comm.broadcast(s, p, x, n - 1).wait(s);
  expect<T>(x, [&](auto i) { return value(n - 1, i); });

  whole = filled<T>(rank, count * n);
  Tensor other({count * n, 1, 1, 1}, dtype_of<T>);
  comm.all_to_all(s, p, whole, other).wait(s);
  expect<T>(other, [&](auto i) { return value(int(i / count), rank * count + i % count); });

  // A ring, then a line whose ends have one neighbour only.
  x = filled<T>(rank, count);
  Tensor y({count, 1, 1, 1}, dtype_of<T>);
  comm.exchange(s, p, x, (rank + 1) % n, y, (rank + n - 1) % n).wait(s);
  expect<T>(y, [&](auto i) { return value((rank + n - 1) % n, i); });
  y = Tensor(x.view().form());
  comm.exchange(s, p, x, rank + 1 < n ? rank + 1 : -1, y, rank - 1).wait(s);
  expect<T>(y, [&](auto i) { return rank > 0 ? value(rank - 1, i) : 0.0; });
}

}  // namespace

TEST_CASE("every collective equals its closed form on 1 to 5 ranks") {
  for (int n = 1; n <= 5; ++n) {
    run_ranks(n, every_collective<float>);
    run_ranks(n, every_collective<double>);
    run_ranks(n, every_collective<std::int32_t>);
    run_ranks(n, every_collective<BF16>);
    run_ranks(n, every_collective<F16>);
  }
}

TEST_CASE("sums of bf16 and f16 are rounded once") {
  // 256 + 1 + 1 + 1 in bf16, which has 256, 258 and 260: added one by one, it would stay at 256.
  const auto sum = []<class T>(double large, double right, T) {
    run_ranks(4, [&](World& world) {
      Stream s;
      const double mine = world.rank() == 0 ? large : 1;
      const Tensor x = place({{4, 1, 1, 1}, dtype_of<T>, {}}, mine),
                   part({1, 1, 1, 1}, dtype_of<T>);
      world.comm().reduce_scatter(s, Pass::forward, x, part).wait(s);
      world.comm().all_reduce(s, Pass::forward, x).wait(s);
      expect<T>(x, [&](auto) { return right; });
      expect<T>(part, [&](auto) { return right; });
    });
  };
  sum(256, 260, BF16());
  sum(2048, 2052, F16());
}

TEST_CASE("a default communicator and a World alone leave the data as they are") {
  World world;
  REQUIRE(world.size() == 1);
  every_collective<float>(world);
  REQUIRE(world.comm().all_reduce_value(3.5) == 3.5);
  REQUIRE(world.comm().broadcast_text("alone") == "alone");
  REQUIRE(world.comm().all_gather_text("me") == std::vector<std::string>{"me"});
  REQUIRE(test::split(world.comm(), 1).size() == 1);
}

TEST_CASE("host values travel, whatever their size") {
  run_ranks(3, [](World& world) {
    const Communicator& comm = world.comm();
    const auto big = (std::int64_t(1) << 60) + comm.rank();
    check(comm.all_reduce_value(big, ReduceOp::max) == (std::int64_t(1) << 60) + 2, "int64 max");
    check(comm.all_reduce_value(0.5 + comm.rank()) == 4.5, "double sum");
    const auto texts = comm.all_gather_text(std::string(std::size_t(comm.rank()) * 5, 'x'));
    for (std::size_t r = 0; r < 3; ++r) check(texts[r] == std::string(r * 5, 'x'), "text ", r);
    const std::string mine = comm.rank() == 1 ? std::string("two\0parts", 9) : "other";
    check(comm.broadcast_text(mine, 1) == std::string("two\0parts", 9), "broadcast");
  });
}

TEST_CASE("split makes groups by color, ordered by key") {
  run_ranks(5, [](World& world) {
    const int rank = world.rank();
    const Communicator odd = test::split(world.comm(), rank % 2, -rank);  // 0: 4 2 0, 1: 3 1
    check(odd.size() == (rank % 2 ? 2 : 3), "size");
    check(odd.rank() == (rank % 2 ? (3 - rank) / 2 : (4 - rank) / 2), "rank");
    check(odd.all_reduce_value(rank) == (rank % 2 ? 4 : 6), "sum");
    const Communicator some = test::split(world.comm(), rank == 2 ? -1 : 0);
    check(some.size() == (rank == 2 ? 1 : 4), "negative color");
    const Communicator pair = test::split(odd, odd.rank() < 2 ? 0 : 1);
    check(pair.size() == (rank == 0 ? 1 : 2), "split of a split");
  });
}

TEST_CASE("collectives run in program order, across groups") {
  run_ranks(4, [](World& world) {
    const Communicator rows = test::split(world.comm(), world.rank() / 2);
    const Communicator columns = test::split(world.comm(), world.rank() % 2);
    Stream s;
    Tensor x({1, 1, 1, 1}, DType::f64);
    *x.as<double>() = world.rank() + 1;
    std::vector<Pending> pending;
    for (int i = 0; i < 20; ++i) {  // doubles and mixes: any other order gives another number
      pending.push_back(rows.all_reduce(s, Pass::forward, x));
      pending.push_back(columns.broadcast(s, Pass::forward, x, 0));
    }
    pending.back().wait(s);
    for (auto& p : pending) check(p.done(), "an earlier collective was not done");
    check(*x.as<double>() == 3.0 * (1 << 19), "got ", *x.as<double>());
  });
}

TEST_CASE("a collective runs while the rank computes") {
  run_ranks(2, [](World& world) {
    Stream s;
    Tensor x({100, 1, 1, 1}, DType::f32);
    const Pending pending = world.comm().all_reduce(s, Pass::forward, x);
    while (!pending.done()) std::this_thread::yield();  // nobody waits, and it still ends
  });
}

TEST_CASE("a message that nobody expects is an error that names the layer and the ranks") {
  const auto halo = [](int sent, int to, int expected, int from) {
    run_ranks(3, [&](World& world) {
      Stream s;
      s.enter(7, "conv1");
      const Tensor x({10, 1, 1, 1}, DType::f32), y({10, 1, 1, 1}, DType::f32);
      const auto part = [](const Tensor& t, int n) {
        return View(t.view().data, {{n, 1, 1, 1}, DType::f32, {}});
      };
      const bool sends = world.rank() == 0, gets = world.rank() == 1;
      world.comm()
          .exchange(s, Pass::forward, part(x, sent), sends ? to : -1, part(y, expected),
                    gets ? from : -1)
          .wait(s);
    });
  };
  halo(10, 1, 10, 0);
  const std::string called = "rank 0 called halo of ", where = " f32 in layer conv1 (forward)";
  CHECK_THROWS_WITH(halo(9, 1, 10, 0), called + "9" + where + " to rank 1, which expects 10");
  CHECK_THROWS_WITH(halo(10, 1, 9, 0), called + "10" + where + " to rank 1, which expects 9");
  CHECK_THROWS_WITH(halo(10, 2, 10, 0), called + "10" + where + " to rank 2, which expects 0");
  CHECK_THROWS_WITH(halo(10, -1, 10, 0), called + "0" + where + ", of which rank 1 expects 10");
  CHECK_THROWS_WITH(halo(10, 1, 10, 2), called + "10" + where + " to rank 1, which expects 0");
}

TEST_CASE("collectives from a silent stream do nothing to views") {
  run_ranks(3, [](World& world) {
    const Communicator& comm = world.comm();
    Stream s;
    s.silence(true);
    Tensor x = filled<float>(world.rank(), 9);
    comm.all_reduce(s, Pass::forward, x).wait(s);
    expect<float>(x, [&](auto i) { return value(world.rank(), i); });
    check(comm.all_reduce_value(1) == 3, "host values travel");
  });
}
