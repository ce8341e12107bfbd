// Groups of ranks by their members, and ranks that are not there.
#include "catch.hpp"

#include <lamina/comm/imagined.hpp>
#include <lamina/comm/threads.hpp>

using namespace lamina;
using namespace lamina::test;

namespace {

/// The message with which all of the ranks' work ends.
template <class Work>
std::string error_of(int ranks, Work&& work) {
  try {
    run_ranks(ranks, work);
  } catch (const std::exception& e) {
    return e.what();
  }
  return {};
}

}  // namespace

TEST_CASE("a group has the members that are said, in that order") {
  run_ranks(5, [](World& world) {
    const int rank = world.rank();
    const std::vector<int> members = rank % 2 ? std::vector{1, 3} : std::vector{4, 0, 2};
    const Communicator group = world.comm().group(members);
    check(group.size() == int(members.size()), "size");
    check(members[std::size_t(group.rank())] == rank, "rank");
    check(group.all_gather_value(rank) == members, "members");
    const Communicator none = world.comm().group({});
    check(none.size() == 1, "none");
    const Communicator turned = group.group(std::vector(
        group.rank() < 2 ? std::vector{1, 0} : std::vector{2}));  // of the group's own ranks
    check(turned.size() == (group.rank() < 2 ? 2 : 1), "a group of a group");
    if (turned.size() == 2) check(turned.rank() == 1 - group.rank(), "its order");
  });
  CHECK(Communicator().group({0}).size() == 1);
}

TEST_CASE("members that do not agree are told") {
  const auto group = [](std::vector<std::vector<int>> members) {
    return error_of(3,
                    [=](World& world) { world.comm().group(members[std::size_t(world.rank())]); });
  };
  CHECK(group({{0, 1}, {0, 1}, {}}).empty());
  const std::string unlike = group({{0, 1}, {1, 2}, {2}});
  CHECK((unlike.starts_with("group: rank ") && unlike.ends_with("do not say the same members")));
  CHECK(group({{0, 1}, {1, 0}, {}}).ends_with("do not say the same members"));
  CHECK(group({{0, 3}, {}, {}}) == "group: rank 3 is not one of the 3 ranks of the group");
  CHECK(group({{0, 1}, {0, 1}, {0, 1}}) ==
        "group: rank 2 is not one of the members, or more than once");
}

TEST_CASE("imagined ranks stand in groups as real ones do") {
  ImaginedRanks all(6);
  const Communicator four = all.as(4);
  CHECK(four.rank() == 4);
  CHECK(four.size() == 6);
  CHECK(four.imagined());
  CHECK_FALSE(Communicator().imagined());
  const Communicator group = four.group({5, 4, 1});
  CHECK(group.rank() == 1);
  CHECK(group.size() == 3);
  CHECK(group.imagined());
  CHECK(group.group({2, 1}).rank() == 1);
  CHECK(four.group({}).size() == 1);
  CHECK_THROWS_WITH(four.group({0, 1}),
                    "group: rank 4 is not one of the members, or more than once");
}

TEST_CASE("imagined ranks agree with the one that asks, and rank 0 said what it said") {
  ImaginedRanks all(3);
  const auto ask = [&](int rank, int value, const std::string& words) {
    const Communicator ranks = all.as(rank);
    const auto values = ranks.all_gather_value(value);
    const auto texts = ranks.all_gather_text(words);
    return std::tuple(values, texts, ranks.broadcast_text(words),
                      ranks.all_reduce_value(value, ReduceOp::max));
  };
  using Values = std::vector<int>;
  using Texts = std::vector<std::string>;
  CHECK(ask(0, 7, "zero says") ==
        std::tuple(Values{7, 7, 7}, Texts(3, "zero says"), "zero says", 7));
  CHECK(ask(2, 5, "two, which says more") ==
        std::tuple(Values{7, 5, 5},
                   Texts{"zero says", "two, which says more", "two, which says more"}, "zero says",
                   7));
  CHECK(ask(1, 9, "1") ==
        std::tuple(Values{7, 9, 9}, Texts{"zero says", "1", "1"}, "zero says", 9));
  CHECK(ask(0, 1, "anew") == std::tuple(Values{1, 1, 1}, Texts(3, "anew"), "anew", 1));
  CHECK(std::get<3>(ask(2, 0, "")) == 1);
  all.as(0).group({0, 2});
  const Communicator pair = all.as(2).group({0, 2});  // where each says what this one does
  CHECK(pair.all_gather_value(4) == Values{4, 4});
}

TEST_CASE("what would be sent between imagined ranks is refused") {
  CHECK_THROWS_WITH(ImaginedRanks(0), "the number of ranks must be positive, got 0");
  ImaginedRanks all(2);
  CHECK_THROWS_WITH(all.as(2), "expected a rank from 0 to 1, got 2");
  const Communicator one = all.as(1);
  one.barrier();
  Stream s;
  const Tensor x({3, 1, 1, 1}, DType::f32);
  CHECK_THROWS_WITH(one.all_reduce(s, Pass::forward, x).wait(s),
                    "all_reduce sum of 3 f32: what is placed on imagined ranks never runs");
  CHECK_THROWS_WITH(one.exchange(s, Pass::forward, x, 0, x, 0).wait(s),
                    ContainsSubstring("never runs"));
  CHECK_THROWS_WITH(one.broadcast_text("mine", 1), ContainsSubstring("never runs"));
}
