// Groups, and what moves between two arrangements of blocks, against their definitions.
#include "catch.hpp"

#include <lamina/base/random.hpp>
#include <lamina/comm/imagined.hpp>
#include <lamina/cost/group.hpp>
#include <lamina/layers/exchange.hpp>

#include <algorithm>
#include <map>
#include <tuple>

using namespace lamina;
using namespace lamina::test;

namespace {

const Split splits[] = {{},
                        {.batch = 5},
                        {.batch = 2, .channel = 3},
                        {.channel = 2, .input = 3},
                        {.batch = 2, .height = 3, .width = 2},
                        {.batch = 2, .channel = 2, .input = 2, .height = 2},
                        {.batch = 3, .height = 2, .shares = {.batch = {3, 1, 2}}}};

/// Arrangements over 17 ranks: of samples, rows, channels, with copies, halos and gaps.
std::vector<Blocks> arrangements() {
  const Shape whole{10, 7, 9, 4};
  std::vector<Blocks> all;
  for (const Split& split : splits)
    for (const Axis axes : {Axis::batch | Axis::channel | Axis::height | Axis::width,
                            Axis::batch | Axis::input | Axis::height, Axis::batch | Axis::height})
      all.push_back(Blocks::of(whole, split, axes, 17));
  Blocks wide = all[12], gaps = all[6].of_channels({2, 3}), turned = all[3];
  for (Box& b : wide.box)
    if (!b.empty()) b.h = common(Part{b.h.begin - 1, b.h.size + 2}, Part{0, whole.h});
  std::ranges::reverse(turned.box), std::ranges::reverse(turned.number);
  for (const Blocks& more : {wide, gaps, turned}) all.push_back(more);
  return all;
}

/// {from, to, box} by definition: of each different block the rank's own, else the nearest copy, of
/// two the higher rank.
using Moves = std::vector<std::tuple<int, int, std::string>>;
Moves moves_by_definition(const Blocks& held, const Blocks& wanted) {
  Moves moves;
  for (int to = 0; to < wanted.ranks(); ++to) {
    std::map<int, int> giver;  // of each number
    for (int r = 0; r < held.ranks(); ++r) {
      const int number = held.number[std::size_t(r)];
      if (number < 0 || wanted.number[std::size_t(to)] < 0) continue;
      const auto known = giver.try_emplace(number, r).first;
      if (std::abs(r - to) <= std::abs(known->second - to)) known->second = r;
    }
    for (const auto& [number, from] : giver) {
      const Box box = common(held.box[std::size_t(from)], wanted.box[std::size_t(to)]);
      if (!box.empty()) moves.push_back({from, to, box.text()});
    }
  }
  return moves;
}

}  // namespace

TEST_CASE("a place is that of its rank") {
  for (const Split& split : splits)
    for (int r = 0; r < split.ways(); ++r) CHECK(split.rank(split.place(r)) == r);
}

TEST_CASE("a group is the ranks that differ along its axes, by their number") {
  for (const Split& split : splits)
    for (int axes = 0; axes < 32; ++axes)
      for (int rank = 0; rank < split.ways(); ++rank) {
        const Place me = split.place(rank);
        std::map<int, int> members;
        for (int r = 0; r < split.ways(); ++r)
          if (const Place p = split.place(r);
              split.number(p, Axis(31 & ~axes)) == split.number(me, Axis(31 & ~axes)))
            members[split.number(p, Axis(axes))] = r;
        std::vector<int> expected;
        for (const auto& [number, r] : members) expected.push_back(r);
        CHECK(group(split, me, Axis(axes)) == expected);
      }
}

TEST_CASE("blocks are those of each rank's place") {
  const Shape whole{10, 7, 9, 4};
  for (const Split& split : splits) {
    const Blocks blocks = Blocks::of(whole, split, Axis::batch | Axis::input | Axis::width, 9);
    REQUIRE(blocks.ranks() == 9);
    for (int r = 0; r < 9; ++r) {
      const auto at = std::size_t(r);
      if (r >= split.ways()) {
        CHECK((blocks.number[at] == -1 && blocks.box[at] == Box()));
        continue;
      }
      const Place p = split.place(r);
      CHECK(blocks.box[at] == Box{split.part(Axis::batch, whole.n, p),
                                  split.part(Axis::input, whole.c, p),
                                  {0, whole.h},
                                  split.part(Axis::width, whole.w, p)});
      CHECK(blocks.number[at] == split.number(p, Axis::batch | Axis::input | Axis::width));
    }
  }
}

TEST_CASE("two arrangements are the same where boxes are, and copies are copies") {
  const auto all = arrangements();
  int same = 0;
  for (const Blocks& a : all)
    for (const Blocks& b : all) {
      bool alike = a.box == b.box;
      for (std::size_t i = 0; i < a.number.size(); ++i)
        for (std::size_t j = 0; j < i; ++j)
          alike &= (a.number[i] == a.number[j]) == (b.number[i] == b.number[j]);
      CHECK(a.same(b) == alike);
      same += alike;
    }
  CHECK(same > int(all.size()));
  Blocks a = all[9], b = a;  // the same boxes, once as copies and once as parts of a sum
  for (int& n : b.number) n = n < 0 ? n : n + 1;
  CHECK(a.same(b));
  b.number[0] = 100;
  CHECK(a.box == b.box);
  CHECK(a.same(b) == (std::ranges::count(a.number, a.number[0]) == 1));
  a.number = {0, 0, 1}, b.number = {0, 1, 1}, a.box.resize(3), b.box.resize(3);
  CHECK_FALSE(a.same(b));
  a.number = {0, 1, 2}, b.number = {0, 0, 1};
  CHECK_FALSE(a.same(b));
  CHECK_FALSE(b.same(a));
}

TEST_CASE("what moves is what each rank wants, from the nearest copy") {
  const auto all = arrangements();
  for (const Blocks& held : all)
    for (const Blocks& wanted : all) {
      Moves moves;
      each_overlap(copies_of(held), copies_of(wanted),
                   [&](const Copies& have, const Copies& want, const Box& box) {
                     for (const int to : want.ranks)
                       moves.push_back({have.nearest(to), to, box.text()});
                   });
      // By rank, and for each in the order of the blocks that are held.
      std::ranges::stable_sort(moves, {}, [](const auto& m) { return std::get<1>(m); });
      CHECK(moves == moves_by_definition(held, wanted));
    }
}

TEST_CASE("an exchange keeps waiting what its load says, on every rank") {
  const auto all = arrangements();
  std::size_t rooms = 0;
  for (const Blocks& held : all)
    for (const Blocks& wanted : all) {
      const std::vector<Exchange::Load> loads = Exchange::loads(held, wanted);
      REQUIRE(loads.size() == 17);
      ImaginedRanks ranks(17);
      for (int r = 0; r < 17; ++r) {
        const Exchange exchange(held, wanted, DType::f64, ranks.as(r));
        const Exchange::Load& load = loads[std::size_t(r)];
        CHECK(exchange.workspace() == std::size_t(load.out + load.in) * 8);
        CHECK(exchange.apart() == (!load.adds && load.pieces > 0 && load.direct == 0));
        rooms += exchange.workspace();
      }
    }
  CHECK(rooms > 0);
}

TEST_CASE("blocks add up where they overlap or leave a gap, even both by as much") {
  const Shape whole{1, 1, 6, 1};
  const auto adds = [&](Part one, Part two, Part wanted) {
    const Blocks held{
        whole, {{{0, 1}, {0, 1}, one, {0, 1}}, {{0, 1}, {0, 1}, two, {0, 1}}}, {0, 1}};
    const Blocks all{whole, {{{0, 1}, {0, 1}, wanted, {0, 1}}, {}}, {0, -1}};
    return Exchange::loads(held, all)[0].adds;
  };
  CHECK_FALSE(adds({0, 2}, {2, 2}, {0, 4}));
  CHECK_FALSE(adds({0, 4}, {3, 3}, {1, 2}));  // what overlaps is not wanted
  CHECK(adds({0, 2}, {0, 2}, {0, 4}));
  CHECK(adds({0, 3}, {2, 3}, {0, 5}));
  CHECK(adds({0, 2}, {3, 2}, {0, 5}));
}

TEST_CASE("a block that lies in one run does not wait") {
  // A sample of four rows on each of two ranks; the other sample is wanted, or two rows of both.
  const Shape whole{2, 3, 4, 5};
  const Blocks samples = Blocks::of(whole, {.batch = 2}, Axis::batch, 2);
  const Blocks rows = Blocks::of(whole, {.height = 2}, Axis::height, 2);
  Blocks turned = samples;
  std::swap(turned.box[0], turned.box[1]);
  for (const auto& load : Exchange::loads(samples, turned)) CHECK((load.in == 0 && load.out == 0));
  // Of each 3 planes of 2 rows go, in 3 runs of 10: 30, for which there is room for 32.
  for (const auto& load : Exchange::loads(samples, rows)) {
    CHECK(load.out == 32);
    CHECK(load.in == 0);  // they are a sample of the rows that are wanted
    CHECK((load.pieces == 2 && load.direct == 1 && !load.adds));
  }
  for (const auto& load : Exchange::loads(rows, samples)) CHECK((load.out == 0 && load.in == 32));
}
