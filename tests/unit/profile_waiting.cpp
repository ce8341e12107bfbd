// Waiting told apart: posting and waking up, ranks that come late, bytes that move.
#include "catch.hpp"
#include "profile_made.hpp"
#include "profile_same.hpp"
#include "profile_small.hpp"

#include <lamina/comm/threads.hpp>
#include <lamina/profile/detail/denied.hpp>
#include <lamina/profile/detail/late.hpp>
#include <lamina/profile/table.hpp>

#include <unistd.h>

#include <cmath>
#include <thread>

using namespace lamina;
using namespace lamina::test;
using Run = Profiler::Run;

namespace {

constexpr std::uint64_t group = 7;

Run all_of(int rank, int step, double begin, double end) {
  return {{group, rank, -1, -1}, step, begin, end};
}
Run halo(int rank, int to, int from, double begin, double end) {
  return {{group, rank, to, from}, 0, begin, end};
}

thread_local double ahead = 0;
double shifted() { return now() + ahead; }

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

}  // namespace

TEST_CASE("a collective has all its ranks when the last one comes") {
  const std::vector<std::vector<Run>> runs = {
      {all_of(0, 0, 1, 5), all_of(0, 0, 6, 7), all_of(0, 1, 10, 11)},
      {all_of(1, 0, 4, 5), all_of(1, 0, 5.5, 7), all_of(1, 1, 9, 11)}};
  const std::vector<detail::ClockOffset> same(2);
  CHECK(detail::all_had_come(runs, 0, same) == std::vector<double>{4, 6, 10});
  CHECK(detail::all_had_come(runs, 1, same) == std::vector<double>{4, 6, 10});
}

TEST_CASE("what another clock says is set against one's own, and stays within the collective") {
  std::vector<std::vector<Run>> runs = {{all_of(0, 0, 1, 5)}, {all_of(1, 0, 103, 105)}};
  CHECK(detail::all_had_come(runs, 0, {{0, 0}, {100, 1e-6}})[0] == 3);
  CHECK(detail::all_had_come(runs, 1, {{-100, 1e-6}, {0, 0}})[0] == 103);
  CHECK(detail::all_had_come(runs, 0, {{0, 0}, {90, 1}})[0] == 5);   // 13: it was over by then
  CHECK(detail::all_had_come(runs, 0, {{0, 0}, {110, 1}})[0] == 1);  // -7: before it began
}

TEST_CASE("a halo needs its peers, not the whole group") {
  // A row of three: each sends to the next one. Rank 2 comes last, which rank 0 does not notice.
  const std::vector<std::vector<Run>> runs = {
      {halo(0, 1, -1, 1, 9)}, {halo(1, 2, 0, 3, 9)}, {halo(2, -1, 1, 8, 9)}};
  const std::vector<detail::ClockOffset> same(3);
  CHECK(detail::all_had_come(runs, 0, same)[0] == 3);
  CHECK(detail::all_had_come(runs, 1, same)[0] == 8);
  CHECK(detail::all_had_come(runs, 2, same)[0] == 8);
}

TEST_CASE("nobody is late where ranks recorded other collectives, or a group is not known") {
  std::vector<std::vector<Run>> runs = {{all_of(0, 0, 1, 5), all_of(0, 0, 6, 8)},
                                        {all_of(1, 0, 7, 8)}};
  const std::vector<detail::ClockOffset> same(2);
  CHECK(detail::all_had_come(runs, 0, same) == std::vector<double>{1, 6});
  runs[0].pop_back(), runs[1][0].end = 9;
  CHECK(detail::all_had_come(runs, 0, same)[0] == 5);
  runs[0][0].party.group = runs[1][0].party.group = 0;
  CHECK(detail::all_had_come(runs, 0, same)[0] == 1);
}

TEST_CASE("clocks of different hosts are compared, to within what is said") {
  run_ranks(3, [](World& world) {
    const Communicator& ranks = world.comm();
    ahead = world.rank() == 1 ? 1000 : world.rank() == 2 ? -50 : 0;
    const std::string name = world.rank() == 1 ? "far" : "near";  // who has whose clock
    const auto offsets = detail::clock_offsets(ranks, shifted, name);
    const double expected = ranks.all_gather_value(ahead)[1] - ahead;
    const auto& far = offsets[1];
    if (world.rank() == 1) {
      check(far.seconds == 0 && far.error == 0, "one's own clock");
    } else {
      check(far.error > 0 && far.error < 100, "error ", far.error);
      check(std::abs(far.seconds - expected) <= far.error, "off by ", far.seconds - expected);
      check(offsets[0].error == 0 && offsets[2].error == 0, "the same clock");
    }
    for (const auto& same : detail::clock_offsets(ranks, shifted, "one"))
      check(same.seconds == 0 && same.error == 0, "the same clock for all");
  });
}

TEST_CASE("a clock has its host's name where nothing tells one start of a host from another") {
  char host[256] = "";
  REQUIRE(gethostname(host, sizeof host - 1) == 0);
  CHECK(detail::clock_name("/no/such/file").starts_with(host));
  CHECK(detail::clock_name() == detail::clock_name());
}

TEST_CASE("waiting is told apart: a late rank, transfer, and the rest") {
  const PlacedNetwork net = place(small());
  Profiler p;
  const int conv = step_of(net, "conv"), fc = step_of(net, "fc");
  for (int step = 0; step < 2; ++step) {
    p.begin_step();
    p.record({fc, Pass::forward, Lane::communication, "all_reduce", 1, 4, 8, 8, {}});
    p.record({conv, Pass::forward, Lane::communication, "all_reduce", 4.5, 6, 8, 8, {}});
    p.record({fc, Pass::forward, Lane::wait, "post", 0.5, 1.5});
    p.record({conv, Pass::forward, Lane::wait, "all_reduce", 3, 7});
    p.end_step();
  }
  REQUIRE(p.runs().size() == 4);
  REQUIRE(p.waits().size() == 4);  // of two steps: beside each of the two collectives
  CHECK(p.waits()[1].run == 1);
  CHECK(p.waits()[2].begin == 3);
  CHECK(p.waits()[2].end == 4);
  const Profile profile = make_profile(net, p, {}, {});
  const ProfileRow& posts = row(profile, "fc", Pass::forward);
  const ProfileRow& waits = row(profile, "conv", Pass::forward);
  CHECK(posts.exposed.mean == Approx(1));  // to hand over, though a collective ran meanwhile
  CHECK(posts.transfer.mean == 0);
  CHECK(waits.exposed.mean == Approx(4));
  CHECK(waits.late.mean == 0);
  CHECK(waits.transfer.mean == Approx(1 + 1.5));  // and 1.5 between, and to wake up
}

TEST_CASE("how waiting divides is sampled, and stands for all steps") {
  const PlacedNetwork net = place(small());
  Profiler p;
  const int fc = step_of(net, "fc");
  const int sample = int(Profiler::sample), steps = sample + 36;
  for (int step = 0; step < steps; ++step) {
    p.begin_step();
    p.record({fc, Pass::forward, Lane::communication, "all_reduce", 1, 2, 8, 8, {}});
    p.record({fc, Pass::forward, Lane::wait, "all_reduce", 1, step < sample ? 5.0 : 9.0});
    p.end_step();
  }
  CHECK(p.runs().size() == Profiler::sample);
  const Profile profile = make_profile(net, p, {}, {});
  const ProfileRow& r = row(profile, "fc", Pass::forward);
  CHECK(r.exposed.mean == Approx((4.0 * sample + 8.0 * 36) / steps));
  CHECK(r.transfer.mean == Approx(r.exposed.mean / 4));
}

TEST_CASE("a peer that is late is shown as late, and who waited") {
  std::vector<Profile> profiles(2);
  run_ranks(2, [&](World& world) {
    const PlacedNetwork net = place(small(), world.comm());
    Profiler p;
    Stream stream;
    p.start(stream);
    stream.enter(step_of(net, "fc"));
    Tensor x({1000, 1, 1, 1}, DType::f32);
    world.comm().barrier();
    if (world.rank() == 1) sleep_ms(200);  // while the other one is there, sooner or later
    world.comm().all_reduce(stream, Pass::forward, x).wait(stream);
    p.next_step();
    p.stop();
    profiles[std::size_t(world.rank())] = make_profile(net, p, {}, world.comm());
  });
  const ProfileRow& r = row(profiles[0], "fc", Pass::forward);
  CHECK(r.late.slowest == 0);
  CHECK(r.late.max > 0.02);
  CHECK(r.exposed.max >= r.late.max);
  CHECK(r.late.mean + r.transfer.mean <= r.exposed.mean + 1e-9);
  CHECK(row(profiles[1], "fc", Pass::forward).late.max == r.late.max);
  CHECK(profiles[0].clock_error == 0);
  CHECK(profiles[0].processor == profiles[1].processor);  // all ranks', on all of them
}

TEST_CASE("handing a collective over is recorded as waiting") {
  run_ranks(2, [](World& world) {
    const PlacedNetwork net = place(small(), world.comm());
    Profiler p;
    Stream stream;
    p.start(stream);
    stream.enter(step_of(net, "fc"));
    Tensor x({10, 1, 1, 1}, DType::f32);
    {
      const Pending sum = world.comm().all_reduce(stream, Pass::forward, x);
      while (!sum.done()) std::this_thread::yield();  // nothing is waited for
    }
    p.next_step();
    p.stop();
    const Profile profile = make_profile(net, p, {}, world.comm());
    const ProfileRow& r = row(profile, "fc", Pass::forward);
    check(r.exposed.min > 0, "no time to hand over");
    check(r.late.max == 0 && r.transfer.max == 0, "but that is not waiting for anybody");
    check(r.kernels.size() == 2, "kernels: ", r.kernels.size());
  });
}

TEST_CASE("processor time and lost processors are counted over the steps") {
  const PlacedNetwork net = place(small());
  Profiler p;
  for (int step = 0; step < 2; ++step) {
    sleep_ms(10);  // outside of steps: nobody's
    p.begin_step();
    const double begin = usage().processor;
    while (usage().processor - begin < 0.02) {
    }
    p.end_step();
  }
  const Profile profile = make_profile(net, p, {}, {});
  CHECK(profile.processor.time.mean >= 0.02);
  CHECK(profile.processor.time.mean <= usage().processor);
  CHECK(profile.processor.denied.mean >= 0);
  CHECK(profile.processor.switches.mean >= 0);
  CHECK(profile.processor.stolen >= 0);
  CHECK(profile.processor.stolen <= 1);
}

TEST_CASE("usages add up, and what is unknown stays so") {
  Usage sum{0, 0, 0, 0, 0};
  sum += Usage{5, 4, 3, 2, 10} - Usage{4, 1, 1, 1, 2};
  sum += Usage{1, 1, 1, -1, -1};
  CHECK(sum.processor == 2);
  CHECK(sum.switches == 4);
  CHECK(sum.denied == 3);
  CHECK(sum.stolen == -1);
  CHECK(sum.processors == -1);
  CHECK((Usage{1, 1, -1, -1, -1} - Usage{1, 1, -1, -1, -1}).denied == -1);
}

TEST_CASE("switches prove that a processor was lacking only to a single rank") {
  // Processor time, switches, and what the system says that was denied.
  CHECK(detail::denied({1, 5, -1, -1, -1}, 3, 1) == 2);
  CHECK(detail::denied({1, 5, -1, -1, -1}, 3, 2) == 0);
  CHECK(detail::denied({1, 0, -1, -1, -1}, 3, 1) == 0);
  CHECK(detail::denied({4, 5, -1, -1, -1}, 3, 1) == 0);
  CHECK(detail::denied({1, 5, 0.5, -1, -1}, 3, 2) == 0.5);
}

TEST_CASE("a disturbed run says so") {
  Profile p = made_profile(2);  // steps of 6 ms
  CHECK_FALSE(p.disturbed());
  CHECK_THAT(table(p), !ContainsSubstring("DISTURBED"));
  CHECK_THAT(table(p), ContainsSubstring("3.0 involuntary switches"));
  p.processor.denied = {0, 200e-6, 301e-6, 1};
  CHECK(p.disturbed());
  const std::string all = table(p, {.width = 1000});
  CHECK_THAT(all,
             ContainsSubstring("DISTURBED, so that times are too long: rank 1 was ready but had "
                               "no processor for 301.0 us, 5.0 % of the step"));
  p.processor.denied = {}, p.processor.stolen = 0.06;
  CHECK(p.disturbed());
  CHECK_THAT(table(p, {.width = 1000}), ContainsSubstring("its host gave away 6.0 %"));
}

TEST_CASE("the table names kernels that are far below both roofs") {
  Profile p = made_profile_on_machine();
  CHECK_THAT(table(p), !ContainsSubstring(" kernel "));
  for (ProfileRow& r : p.rows) r.time.mean *= 20;
  CHECK_THAT(table(p), ContainsSubstring(" kernel "));
}

TEST_CASE("roofs that were disturbed are said to be so") {
  Profile p = made_profile_on_machine(2);
  CHECK_THAT(table(p), !ContainsSubstring("DISTURBED"));
  p.machine->compute[3].disturbed = true;  // GEMM: no roof
  CHECK_THAT(table(p), !ContainsSubstring("DISTURBED"));
  p.machine->compute[0].disturbed = true;
  CHECK_THAT(table(p),
             ContainsSubstring("DISTURBED when they were measured: roofs may be too low"));
}

TEST_CASE("kernels that take longer alone take no longer beside communication") {
  Profile p = made_profile(2);
  CHECK_THAT(table(p), ContainsSubstring("1.111 times as long"));
  CHECK_THAT(table(p, {.wide = true}), ContainsSubstring(" 1.11 "));
  for (ProfileRow& r : p.rows)
    if (r.alone.mean > 0) r.alone.mean = 3 * r.time.mean;
  const std::string all = table(p, {.wide = true});
  CHECK_THAT(all, ContainsSubstring("alone 6000.7: no longer"));
  CHECK_THAT(all, !ContainsSubstring("0.333") && !ContainsSubstring(" 0.33 "));
}
