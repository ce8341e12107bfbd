// Ranks of a program as threads, by LAMINA_RANKS.
#include "catch.hpp"

#include <lamina/comm/threads.hpp>

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <functional>

using namespace lamina;

namespace {

/// The status of a program with this body.
int status(const char* ranks, const std::function<int(World&)>& body) {
  setenv("LAMINA_RANKS", ranks, 1);
  char name[] = "program";
  char* words[] = {name, nullptr};
  const int code = run(1, words, body);
  unsetenv("LAMINA_RANKS");
  return code;
}

}  // namespace

TEST_CASE("LAMINA_RANKS makes a program's ranks threads of it") {
  std::atomic<int> ranks = 0;
  const auto sum = [&](World& world) {
    ranks += 1 << world.rank();
    return world.comm().all_reduce_value(1.0) == 3 && world.size() == 3 ? 0 : 1;
  };
  CHECK(status("3", sum) == 0);
  CHECK(ranks == 7);
  CHECK(status("", [](World& world) { return world.size(); }) == 1);
}

TEST_CASE("a thread's status or error is that of the program") {
  CHECK(status("3", [](World& world) { return world.rank() == 1 ? 7 : 0; }) == 7);
  CHECK(status("2", [](World& world) {
          check(world.rank() == 0, "rank 1 has had enough");
          world.comm().barrier();  // ends, since rank 1 will not come
          return 0;
        }) == 1);
}

TEST_CASE("what is no std::exception ends all ranks, too") {
  CHECK_THROWS_AS(run_ranks(2,
                            [](World& world) {
                              if (world.rank() == 1) throw 7;
                              world.comm().barrier();
                            }),
                  int);
}

TEST_CASE("a rank whose thread cannot be had is an error") {
  pthread_attr_t before, huge;
  REQUIRE(pthread_getattr_default_np(&before) == 0);
  REQUIRE(pthread_attr_init(&huge) == 0);
  REQUIRE(pthread_attr_setstacksize(&huge, std::size_t(1) << 50) == 0);
  REQUIRE(pthread_setattr_default_np(&huge) == 0);
  CHECK_THROWS_WITH(run_ranks(2, [](World&) {}),
                    Catch::Matchers::StartsWith("no thread could be started for rank 0 of 2: "));
  REQUIRE(pthread_setattr_default_np(&before) == 0);
  pthread_attr_destroy(&huge), pthread_attr_destroy(&before);
}

TEST_CASE("LAMINA_RANKS is refused where it makes no ranks") {
  const auto never = [](World&) { return 0; };
  for (const char* ranks : {"0", "-1", "1025", "4x", "two"}) CHECK(status(ranks, never) == 1);
  setenv("PMI_RANK", "0", 1);
  CHECK(status("2", never) == 1);
  unsetenv("PMI_RANK");

  setenv("LAMINA_RANKS", "2", 1);
  int count = 1;
  char name[] = "program";
  char* words[] = {name, nullptr};
  char** arguments = words;
  CHECK_THROWS_AS(World(count, arguments), Error);
  unsetenv("LAMINA_RANKS");
}
