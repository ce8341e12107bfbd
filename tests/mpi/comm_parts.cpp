// Groups of some ranks, made and dropped again and again: MPI keeps each communicator to its end.
#include "catch.hpp"
#include "mpi/world.hpp"
#include "support/splits.hpp"
#include "support/training.hpp"

#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

using namespace lamina;
using namespace lamina::test;

namespace {

int made = 0;  // communicators, on this rank

using Ranks = std::vector<int>;

/// The sum of what each of these ranks gives: its rank in the world, plus one.
double sum_of(const Communicator& group) {
  Stream stream;
  Tensor x({1000, 1, 1, 1}, DType::f64);
  std::fill_n(x.view().as<double>(), 1000, double(world().rank() + 1));
  group.all_reduce(stream, Pass::weight_grad, x).wait(stream);
  for (int i = 1; i < 1000; ++i)
    check(x.view().as<double>()[i] == x.view().as<double>()[0], "mixed");
  return x.view().as<double>()[0];
}

}  // namespace

// In place of MPI's own, which the standard allows (its profiling interface).
extern "C" int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm* part) {
  const int status = PMPI_Comm_split(comm, color, key, part);
  if (*part != MPI_COMM_NULL) ++made;
  return status;
}

TEST_CASE("a group that no member uses is given out again, and no other") {
  const Communicator& all = world().comm();
  const int rank = all.rank(), last = all.size() - 1;
  const auto joined = [&](const Ranks& members) {
    const bool in = std::ranges::count(members, rank) == 1;
    const Communicator group = all.group(in ? members : Ranks());
    CHECK(group.size() == (in ? int(members.size()) : 1));
    double sum = 0;
    for (const int r : members) sum += r + 1;
    if (in) CHECK(sum_of(group) == sum);
    return group;
  };
  const Ranks ends = {0, last}, back = {last, 0};
  const bool end = rank == 0 || rank == last;

  made = 0;
  std::optional<Communicator> first = joined(ends);
  CHECK(made == end);
  const std::optional<Communicator> second = joined(ends);  // while the first is there
  CHECK(made == 2 * end);
  CHECK((!end || !first->same(*second)));

  first.reset();
  for (int i = 0; i < 3; ++i) joined(ends);
  CHECK(made == 2 * end);
  const auto turned = joined(back);  // the same ranks in another order
  CHECK(made == 3 * end);
  if (end) CHECK(turned.rank() == (rank == 0 ? 1 : 0));

  first = joined(ends);
  if (rank == 0) first.reset();
  joined(ends);  // of which the last rank still has the one that rank 0 has dropped
  CHECK(made == 4 * end);
  joined(ends);  // two are there now, and one is free on both
  first.reset();
  joined(ends);
  CHECK(made == 4 * end);
}

TEST_CASE("groups of whom some are new, and some not") {
  const Communicator& all = world().comm();
  if (all.size() != 4) return;
  const int rank = all.rank();
  const auto halves = [&](const Ranks& low, const Ranks& high) {
    const Ranks& mine = std::ranges::count(low, rank) == 1 ? low : high;
    const Communicator group = all.group(mine);
    double sum = 0;
    for (const int r : mine) sum += r + 1;
    CHECK(sum_of(group) == sum);
  };
  made = 0;
  halves({0, 1}, {2, 3});
  CHECK(made == 1);
  halves({0, 1}, {3, 2});
  CHECK(made == (rank < 2 ? 1 : 2));
  halves({2, 0}, {1, 3});
  halves({0, 1}, {2, 3});
  CHECK(made == (rank < 2 ? 2 : 3));
}

TEST_CASE("resizes to splits with groups of their own make these once") {
  set_threads(1);
  const int most = world().size();
  const Network net = small_network(true, 0);
  const auto splits_for = [&](int ranks) {  // over two axes, and over fewer ranks than there are
    const std::map<std::string, Split> some = {
        {"b", {.batch = std::min(ranks, 2), .channel = std::max(ranks / 2, 1)}},
        {"c", {.input = ranks > 2 ? 3 : 1}}};
    return splits_of(net, {.batch = 24, .splits = some}, ranks);
  };
  const auto data = small_data();
  int at_first = 0;
  const auto train = [&](World& ranks, int resizes) {
    Trainer trainer(net, ranks, SGD{.rate = 0.05},
                    {.batch = 24,
                     .active = 1,
                     .splits_for = splits_for,
                     .backend = "reference",
                     .dtype = DType::f64,
                     .splits = splits_for(1)});
    std::vector<double> found;
    made = 0;
    const std::vector<int> course = {1, 2, std::min(4, most), 2};
    for (int i = 0; i <= resizes; ++i) {
      const int before = course[std::size_t(i == 0 ? 0 : i - 1) % 4],
                now = course[std::size_t(i) % 4];
      if (i == 9) at_first = std::exchange(made, 0);  // around twice
      if (before != now && ranks.size() > 1 && ranks.rank() < std::max(before, now))
        trainer.resize(now, before);
      if (!trainer.active()) continue;
      Loader loader = trainer.loader(*data, true);
      found.push_back(trainer.step(loader, 1000).loss);
    }
    return found;
  };
  const auto found = train(world(), 200);
  CHECK(made == 0);
  CHECK((at_first > 0 || most < 4));
  if (world().rank() > 0) return;
  World alone;
  const auto expected = train(alone, 200);
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    CHECK(std::abs(found[i] - expected[i]) <= 1e-9 * expected[i]);
}
