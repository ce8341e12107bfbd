// Collectives within and between nodes: every operation, type and size against the exact result,
// and the same bits on all ranks. CTest runs this on one node, on pretended nodes of several and of
// unlike numbers of ranks, and with each rank alone.
#include "catch.hpp"
#include "mpi/world.hpp"
#include "support/colors.hpp"
#include "support/ordered.hpp"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <functional>

using namespace lamina;

namespace {

using Value = std::function<double(int rank, std::int64_t i)>;

/// Whole numbers, so that sums are exact; the largest is not always at the same rank.
double value(int r, std::int64_t i) {
  return double((r * 7 + 3) % 5 * 100 + (i * (r + 1) + i / 1000) % 97);
}

template <class T>
Tensor filled(std::int64_t count, const std::function<double(std::int64_t)>& of) {
  Tensor t({std::max<std::int64_t>(count, 1), 1, 1, 1}, dtype_of<T>);
  for (std::int64_t i = 0; i < count; ++i) t.as<T>()[i] = T(of(i));
  return t;
}

View part_of(const View& all, std::int64_t begin, std::int64_t count) {
  return all.at(std::size_t(begin) * size_of(all.dtype), {{count, 1, 1, 1}, all.dtype, {}});
}

template <class T>
std::int64_t wrong(const Tensor& t, std::int64_t count,
                   const std::function<double(std::int64_t)>& right) {
  std::int64_t n = 0;
  for (std::int64_t i = 0; i < count; ++i) n += double(t.as<T>()[i]) != right(i);
  return n;
}

double combined(ReduceOp op, const Value& of, const std::vector<int>& ranks, std::int64_t i) {
  double result = of(ranks[0], i);
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    const double next = of(ranks[r], i);
    result = op == ReduceOp::sum   ? result + next
             : op == ReduceOp::max ? std::max(result, next)
                                   : std::min(result, next);
  }
  return result;
}

/// `ranks`: of the world, by rank of `comm`.
template <class T>
void every_collective(const Communicator& comm, const std::vector<int>& ranks, std::int64_t count) {
  const int n = comm.size(), rank = comm.rank(), me = ranks[std::size_t(rank)];
  const auto p = Pass::forward;
  Stream s;
  CAPTURE(count, n, name(dtype_of<T>));
  const auto mine = [&](auto i) { return value(me, i); };
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min}) {
    const auto right = [&](auto i) { return combined(op, value, ranks, i); };
    Tensor x = filled<T>(count + 1, mine);
    comm.all_reduce(s, p, part_of(x, 0, count), op).wait(s);
    CHECK(wrong<T>(x, count, right) == 0);
    CHECK(double(x.as<T>()[count]) == value(me, count));  // not a byte too far

    const Tensor whole = filled<T>(count * n, mine);
    Tensor part = filled<T>(count + 1, [](auto) { return -1; });
    comm.reduce_scatter(s, p, part_of(whole, 0, count * n), part_of(part, 0, count), op).wait(s);
    CHECK(wrong<T>(part, count, [&](auto i) { return right(rank * count + i); }) == 0);
    CHECK(double(part.as<T>()[count]) == -1);
    CHECK(wrong<T>(whole, count * n, mine) == 0);  // read only
  }
  const auto gathered = [&](auto i) { return value(ranks[std::size_t(i / count)], i % count); };
  const Tensor part = filled<T>(count, mine);
  Tensor whole = filled<T>(count * n, [](auto) { return -1; });
  comm.all_gather(s, p, part_of(part, 0, count), part_of(whole, 0, count * n)).wait(s);
  CHECK(wrong<T>(whole, count * n, gathered) == 0);
  whole = filled<T>(count * n, [&](auto i) { return i / count == rank ? mine(i % count) : -1; });
  comm.all_gather(s, p, part_of(whole, rank * count, count), part_of(whole, 0, count * n)).wait(s);
  CHECK(wrong<T>(whole, count * n, gathered) == 0);

  for (const int root : {0, n - 1}) {
    Tensor x = filled<T>(count, mine);
    comm.broadcast(s, p, part_of(x, 0, count), root).wait(s);
    CHECK(wrong<T>(x, count, [&](auto i) { return value(ranks[std::size_t(root)], i); }) == 0);
  }
  whole = filled<T>(count * n, mine);
  Tensor other = filled<T>(count * n, [](auto) { return -1; });
  comm.all_to_all(s, p, part_of(whole, 0, count * n), part_of(other, 0, count * n)).wait(s);
  CHECK(wrong<T>(other, count * n, [&](auto i) {
          return value(ranks[std::size_t(i / count)], rank * count + i % count);
        }) == 0);
}

std::vector<int> world_ranks(const Communicator& comm) {
  return comm.all_gather_value(test::world().rank());
}

}  // namespace

TEST_CASE("every collective, type and size is exact through shared memory") {
  const Communicator& comm = test::world().comm();
  const auto ranks = world_ranks(comm);
  // Below and above what ranks sum one by one (16 KiB), one piece, several pieces.
  for (const std::int64_t count : {0, 1, 2, 37, 4096, 4097, 32'768, 65'537, 400'001}) {
    every_collective<float>(comm, ranks, count);
    every_collective<double>(comm, ranks, count);
    every_collective<std::int32_t>(comm, ranks, count);
  }
}

TEST_CASE("16 MiB go through shared memory") {
  const Communicator& comm = test::world().comm();
  const auto ranks = world_ranks(comm);
  const std::int64_t count = 4 << 20;
  Stream s;
  Tensor x = filled<float>(count, [&](auto i) { return value(comm.rank(), i); });
  comm.all_reduce(s, Pass::update, x).wait(s);
  CHECK(wrong<float>(x, count, [&](auto i) { return combined(ReduceOp::sum, value, ranks, i); }) ==
        0);
}

TEST_CASE("sums of any numbers have the same bits on all ranks, each time") {
  World& world = test::world();
  Stream s;
  const Communicator& all = world.comm();
  for (const Communicator& comm :
       {all, test::split(all, 0, -world.rank()), test::split(all, world.rank() == 1)})
    for (const std::int64_t count : {1000, 100'003, 1'000'003}) {
      const int n = comm.size();
      CAPTURE(count, n);
      const auto random = [](int rank, std::int64_t i) { return std::sin(double(i * (rank + 3))); };
      const auto sum_at = [&](std::int64_t i) {
        double sum = 0;
        for (int r = 0; r < n; ++r) sum += double(float(random(r, i)));
        return sum;
      };
      const Tensor mine = filled<float>(count * n, [&](auto i) { return random(comm.rank(), i); });
      std::string first, first_part;
      for (int repeat = 0; repeat < 3; ++repeat) {
        Tensor x(mine.view().form()), part({count, 1, 1, 1}, DType::f32);
        std::memcpy(x.view().data, mine.view().data, x.bytes());
        if (comm.rank() == repeat) {  // whoever comes last
          volatile double busy = 0;
          for (int i = 0; i < 300'000; ++i) busy = busy + 1;
        }
        comm.all_reduce(s, Pass::update, part_of(x, 0, count)).wait(s);
        comm.reduce_scatter(s, Pass::update, mine, part).wait(s);
        const std::string sum(static_cast<const char*>(x.view().data), 4 * std::size_t(count));
        const std::string sums(static_cast<const char*>(part.view().data), part.bytes());
        if (repeat == 0) {
          first = comm.broadcast_text(sum);
          first_part = sums;
          std::int64_t far = 0;
          for (std::int64_t i = 0; i < count; ++i) {
            far += std::abs(x.as<float>()[i] - sum_at(i)) > 1e-6 * n;
            far += std::abs(part.as<float>()[i] - sum_at(comm.rank() * count + i)) > 1e-6 * n;
          }
          CHECK(far == 0);
        }
        CHECK((sum == first));
        CHECK((sums == first_part));
      }
    }
}

TEST_CASE("sums are by halves in shared memory, and wherever that is asked for") {
  World& world = test::world();
  const Communicator& all = world.comm();
  std::vector<Communicator> groups = {all.ordered(), test::split(all, 0, -world.rank()).ordered(),
                                      test::split(all, world.rank() % 2).ordered(),
                                      test::split(all, world.rank() / 3).ordered()};
  if (all.carrier() == "shared memory") groups.push_back(all);
  for (const Communicator& comm : groups)
    for (const std::int64_t count : {1, 100, 1'025, 50'000}) {
      CAPTURE(comm.size(), count);
      CHECK(test::wrong_in_order<float>(comm, count) == 0);
    }
}

TEST_CASE("groups take turns in the same shared memory") {
  World& world = test::world();
  const Communicator& all = world.comm();
  const int rank = world.rank();
  const std::vector<Communicator> groups = {all,
                                            test::split(all, rank / 2),
                                            test::split(all, rank % 2, -rank),
                                            test::split(all, 0, -rank),
                                            test::split(all, rank == 0 ? -1 : 0),
                                            test::split(all, rank / 2),
                                            test::split(all, rank % 3 == 1 ? 1 : 0, rank % 2)};
  std::vector<std::vector<int>> ranks;
  for (const Communicator& group : groups) ranks.push_back(world_ranks(group));
  for (std::size_t g = 0; g < groups.size(); ++g)
    for (const std::int64_t count : {1, 3'001, 70'001})
      every_collective<float>(groups[g], ranks[g], count);

  // Started all at once, so that ranks run ahead of one another from group to group.
  Stream s;
  for (int round = 0; round < 20; ++round) {
    std::vector<Tensor> tensors;
    std::vector<Pending> pending;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const std::int64_t count = 1 + (round * 7919 + std::int64_t(g) * 104'729) % 60'000;
      tensors.push_back(filled<double>(count, [&](auto i) { return value(rank, i + round); }));
      pending.push_back(groups[g].all_reduce(s, Pass::update, tensors.back()));
    }
    for (std::size_t g = 0; g < groups.size(); ++g) {
      pending[g].wait(s);
      CHECK(wrong<double>(tensors[g], tensors[g].shape().size(), [&](auto i) {
              return combined(ReduceOp::sum, value, ranks[g], i + round);
            }) == 0);
    }
  }
}

namespace {

/// How often memory of in-place buffers is mapped here, ours and our peers'.
int mapped_buffers() {
  std::ifstream maps("/proc/self/maps");
  int n = 0;
  for (std::string line; std::getline(maps, line);) n += line.find("memfd:lamina") != line.npos;
  return n;
}

/// Members of a group that share memory with us, ourselves included; 0 where nobody else does.
int beside_us(const Communicator& comm) {
  const char* shm = std::getenv("LAMINA_SHM");
  const char* size = std::getenv("LAMINA_NODE_SIZE");
  if (shm && std::string_view(shm) == "0") return 0;
  const int node = size ? std::atoi(size) : test::world().size();
  int n = 0, pairs = 0;
  const auto ranks = world_ranks(comm);
  for (const int r : ranks) {
    n += r / node == test::world().rank() / node;
    for (const int other : ranks) pairs += r != other && r / node == other / node;
  }
  return pairs > 0 ? n : 0;
}

/// The reductions and the gather, in `room` from the element `at` on, which differs between ranks.
void in_place(const Communicator& comm, const std::vector<int>& ranks, const View& room,
              std::int64_t at, std::int64_t count) {
  const int n = comm.size(), rank = comm.rank(), me = ranks[std::size_t(rank)];
  const auto p = Pass::update;
  Stream s;
  CAPTURE(n, at, count);
  const auto fill = [&](std::int64_t elements) {
    for (std::int64_t i = -1; i <= elements; ++i)
      room.as<float>()[at + i] = i < 0 || i == elements ? -1 : float(value(me, i));
  };
  const auto check = [&](std::int64_t begin, std::int64_t elements, const auto& right) {
    std::int64_t far = 0;
    for (std::int64_t i = 0; i < elements; ++i)
      far += double(room.as<float>()[at + begin + i]) != right(i);
    CHECK(far == 0);
  };
  const auto sum = [&](auto i) { return combined(ReduceOp::sum, value, ranks, i); };
  const View whole = part_of(room, at, count * n), own = part_of(room, at + rank * count, count);
  const Tensor elsewhere = filled<float>(count, [&](auto i) { return value(me, i); });

  fill(count * n);
  comm.all_reduce(s, p, whole).wait(s);
  check(0, count * n, sum);
  fill(count * n);
  comm.all_reduce(s, p, whole, ReduceOp::max).wait(s);
  check(0, count * n, [&](auto i) { return combined(ReduceOp::max, value, ranks, i); });
  fill(count * n);
  comm.reduce_scatter(s, p, whole, own).wait(s);
  check(rank * count, count, [&](auto i) { return sum(rank * count + i); });
  fill(count * n);
  comm.all_gather(s, p, elsewhere, whole).wait(s);
  check(0, count * n, [&](auto i) { return value(ranks[std::size_t(i / count)], i % count); });
  for (std::int64_t i = 0; i < count; ++i) own.as<float>()[i] = elsewhere.as<float>()[i];
  comm.all_gather(s, p, own, whole).wait(s);
  check(0, count * n, [&](auto i) { return value(ranks[std::size_t(i / count)], i % count); });
  check(-1, 1, [](auto) { return -1.0; });  // nothing beside it is touched
  check(count * n, 1, [](auto) { return -1.0; });
}

Form flat(std::int64_t count) { return {{count, 1, 1, 1}, DType::f32, {}}; }

}  // namespace

TEST_CASE("tensors that the group made are summed and gathered in place") {
  World& world = test::world();
  const Communicator& all = world.comm();
  const int rank = world.rank();
  const std::int64_t most = 600'001, at = 1 + 1'000 * rank;
  const Tensor room = all.tensor(flat(most * all.size() + at + 1));
  CHECK(mapped_buffers() == beside_us(all));
  const std::vector<Communicator> groups = {
      all, test::split(all, 0, -rank), test::split(all, rank / 2),
      test::split(all, rank % 2, -rank), test::split(all, rank == 0 ? -1 : 0)};
  for (const Communicator& group : groups) {
    const auto ranks = world_ranks(group);
    for (const std::int64_t count : {1, 3'001, 65'537}) in_place(group, ranks, room, at, count);
  }
  in_place(all, world_ranks(all), room, at, most);
}

TEST_CASE("sums in place have the bits of sums elsewhere") {
  const Communicator& comm = test::world().comm();
  const std::int64_t count = 100'003;
  const Tensor x = comm.tensor(flat(count)), other({count, 1, 1, 1}, DType::f32);
  for (std::int64_t i = 0; i < count; ++i)
    x.as<float>()[i] = other.as<float>()[i] = float(std::sin(double(i * (comm.rank() + 3))));
  Stream s;
  comm.all_reduce(s, Pass::update, x).wait(s);
  comm.all_reduce(s, Pass::update, other).wait(s);
  CHECK(std::memcmp(x.view().data, other.view().data, x.bytes()) == 0);
}

TEST_CASE("sums are right where only some buffers can be reached, and after buffers have gone") {
  World& world = test::world();
  const Communicator& all = world.comm();
  const int rank = world.rank(), size = world.size();
  const auto ranks = world_ranks(all);
  const std::int64_t count = 20'000, bytes = count * size + 2;
  {  // Buffers of two pairs; of all; of all, but used by every second rank only.
    const Communicator pair = test::split(all, rank / 2);
    alignas(64) char stack[1 << 20];  // above all other memory
    REQUIRE(sizeof stack >= std::size_t(bytes) * 4);
    const View alone_above(stack, flat(bytes));
    const Tensor of_pair = pair.tensor(flat(bytes)), of_all = all.tensor(flat(bytes));
    const Tensor alone(flat(1'000'000));
    in_place(all, ranks, alone_above, 1, count);
    in_place(all, ranks, of_pair, 1, count);
    in_place(all, ranks, of_all, 1, count);
    in_place(pair, world_ranks(pair), of_all, 1, count);
    in_place(all, ranks, rank % 2 == 0 ? of_all : alone, 1, count);
    in_place(all, ranks, rank % 2 == 0 ? of_all : of_pair, 1, count);
  }
  CHECK(mapped_buffers() == 0);
  Tensor early = all.tensor(flat(bytes));
  if (rank == 0) early = {};  // no matter to the others
  const Tensor later = all.tensor(flat(rank == size - 1 ? 0 : bytes));
  CHECK(later.bytes() == (rank == size - 1 ? 0 : std::size_t(bytes) * 4));
  const Tensor last = all.tensor(flat(bytes));
  in_place(all, ranks, last, 1, count);
  const Communicator few = test::split(all, rank == size - 1 ? -1 : 0);
  if (rank != size - 1) in_place(few, world_ranks(few), later, 1, count);
}

TEST_CASE("a rank leaves others' parts of its own buffer to them") {
  World& world = test::world();
  const Communicator& all = world.comm();
  const int n = all.size(), rank = all.rank();
  if (all.carrier() != "shared memory") return;
  const std::int64_t count = 16'384, bytes = 4 * count;  // of a part: whole pages
  // Numbers of buffers differ from pair to pair, but those of all have one number.
  const Communicator pair = test::split(all, rank / 2);
  const Tensor first = rank < 2 ? pair.tensor(flat(count)) : Tensor();
  const auto ranks = world_ranks(all);
  for (int round = 0; round < 2; ++round) {
    const Tensor x = all.tensor(flat(count * n));
    for (std::int64_t i = 0; i < count * n; ++i) x.as<float>()[i] = float(value(rank, i));
    const auto others = [&](int access) {
      for (int r = 0; r < n; ++r)
        if (r != rank) REQUIRE(mprotect(x.as<char>() + r * bytes, std::size_t(bytes), access) == 0);
    };
    others(PROT_NONE);  // whoever goes another way dies of it
    Stream s;
    all.all_reduce(s, Pass::update, x).wait(s);
    others(PROT_READ);
    CHECK(wrong<float>(x, count * n,
                       [&](auto i) { return combined(ReduceOp::sum, value, ranks, i); }) == 0);
  }
}

TEST_CASE("where one rank lacks a means, no rank of its node sums in place") {
  World& world = test::world();
  const Communicator& all = world.comm();
  const std::int64_t count = 20'000;
  const char* size = std::getenv("LAMINA_NODE_SIZE");
  const bool with_first = world.rank() < (size ? std::atoi(size) : world.size());
  const int beside = beside_us(all), next_file = dup(0);
  close(next_file);
  // It can make no file of that size; or open none beside its own.
  for (const auto& [what, limit] :
       {std::pair{RLIMIT_FSIZE, 100'000}, {RLIMIT_NOFILE, next_file + 1}}) {
    rlimit before = {};
    getrlimit(what, &before);
    rlimit low = before;
    low.rlim_cur = rlim_t(limit);
    if (world.rank() == 0) setrlimit(what, &low);
    const Tensor room = all.tensor(flat(count * world.size() + 2));
    setrlimit(what, &before);
    CAPTURE(int(what), limit);
    const bool reached = !with_first || (what == RLIMIT_NOFILE && beside == 1);
    CHECK(mapped_buffers() == (reached ? beside : 0));
    in_place(all, world_ranks(all), room, 1, count);
  }
}

TEST_CASE("a group says what carries it") {
  World& world = test::world();
  const char* shm = std::getenv("LAMINA_SHM");
  const char* size = std::getenv("LAMINA_NODE_SIZE");
  const bool off = shm && std::string_view(shm) == "0";
  const int node = size ? std::atoi(size) : world.size();
  CHECK(world.comm().carrier() == (off                    ? "MPI (LAMINA_SHM=0)"
                                   : node >= world.size() ? "shared memory"
                                   : node > 1             ? "MPI, shared memory within a node"
                                                          : "MPI"));
  CHECK(world.comm().plain().carrier() == "MPI, plain");
  CHECK(Communicator().carrier() == "nothing");
}

TEST_CASE("what lies on a device is summed by way of the host, behind what its stream does") {
  struct AtOnce final : StreamQueue {
    void push(std::unique_ptr<Work> work) override { work->run(); }
    std::uint64_t mark() override { return ++marks; }
    bool past(std::uint64_t) noexcept override { return true; }
    void run_to(std::uint64_t) override {}
    std::uint64_t marks = 0;
  };
  const Communicator& comm = test::world().comm();
  HostMemory memory;  // stands for a device's
  Stream stream;
  stream.put_into(std::make_shared<AtOnce>());
  for (const std::int64_t count : {1, 20'000, 300'000}) {
    std::vector<float> data(std::size_t(count), 1.0F);
    const View x(data.data(), {{count, 1, 1, 1}, DType::f32, {}}, &memory);
    comm.all_reduce(stream, Pass::forward, x).wait(stream);
    CHECK(std::ranges::count(data, float(comm.size())) == count);
  }
  CHECK(stream.queue().use_count() == 1);  // no other process has counted
}

TEST_CASE("plain MPI gives the same sums") {
  const Communicator& comm = test::world().comm();
  every_collective<float>(comm.plain(), world_ranks(comm), 5'001);
}
