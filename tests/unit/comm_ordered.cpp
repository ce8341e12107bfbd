// Sums that are taken in one order, by ranks and by the turns of a rank.
#include "catch.hpp"
#include "support/ordered.hpp"

#include <lamina/comm/threads.hpp>
#include <lamina/layers/parameter.hpp>

#include <string>

using namespace lamina;
using namespace lamina::test;

namespace {

/// What turns [first, first + count) add up to, with brackets: rows of `in_row` first.
std::string by_definition(int first, int count, int in_row) {
  if (count == 1) return text(first);
  const int rows = count / in_row;
  const int left = rows > 1 && rows % 2 == 0 ? count / 2 : count - 1;
  return text('(', by_definition(first, left, in_row), '+',
              by_definition(first + left, count - left, in_row), ')');
}

/// The same as Bucket does it.
std::string by_places(const Turns& turns) {
  std::vector<std::string> held(std::size_t(turns.places()));
  std::string sum;
  for (int t = 0; t < turns.count; ++t) {
    const Turns::Sum joins = turns.sum(t);
    sum = text(t);
    for (int i = 0; i < joins.count; ++i) {
      std::string& before = held.at(std::size_t(joins.held[std::size_t(i)]));
      check(!before.empty(), "turn ", t, " joins nothing");
      sum = text('(', before, '+', sum, ')');
      before.clear();
    }
    check((joins.to < 0) == (t + 1 == turns.count), "turn ", t, " ends in ", joins.to);
    if (joins.to < 0) break;
    check(held.at(std::size_t(joins.to)).empty(), "turn ", t, " overwrites place ", joins.to);
    held[std::size_t(joins.to)] = sum;
  }
  for (const std::string& left : held) check(left.empty(), left, " is left over");
  return sum;
}

}  // namespace

TEST_CASE("turns add up by halves, as far as there are any") {
  for (int halves = 1; halves <= 64; halves *= 2)
    for (const int in_row : {1, 3, 5}) {
      CAPTURE(halves, in_row);
      CHECK(by_places({halves * in_row, in_row}) == by_definition(0, halves * in_row, in_row));
    }
  CHECK(by_places({4, 1}) == "((0+1)+(2+3))");
  CHECK(by_places({6, 3}) == "(((0+1)+2)+((3+4)+5))");
  for (int count = 1; count <= 40; ++count)  // all are there, each once
    for (const int in_row : {1, 3, 5, count}) {
      const std::string sum = by_places({count, in_row});
      for (int t = 0; t < count; ++t) CHECK(sum.find(text(t)) != sum.npos);
    }
  CHECK(Turns{8, 1}.places() == 3);
  CHECK(Turns{8, 8}.places() == 1);
}

TEST_CASE("ordered sums of threads are those of the definition") {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    std::vector<std::int64_t> wrong(std::size_t(ranks), -1);
    run_ranks(ranks, [&](World& world) {
      wrong[std::size_t(world.rank())] = wrong_in_order<float>(world.comm().ordered(), 1000) +
                                         wrong_in_order<double>(world.comm().ordered(), 37) +
                                         wrong_in_order<BF16>(world.comm().ordered(), 300);
    });
    CAPTURE(ranks);
    CHECK(wrong == std::vector<std::int64_t>(std::size_t(ranks), 0));
  }
}

TEST_CASE("notes reach a rank that takes part in nothing") {
  std::vector<std::string> found;
  run_ranks(3, [&](World& world) {
    const Communicator& all = world.comm();
    if (world.rank() == 0) all.post(2, "first"), all.post(2, "second");
    if (world.rank() == 2)
      while (found.size() < 2)
        if (std::string note = all.collect(); !note.empty()) found.push_back(note);
    all.barrier();
    check(all.collect().empty(), "a note too many");
  });
  CHECK(found == std::vector<std::string>{"first", "second"});
}
