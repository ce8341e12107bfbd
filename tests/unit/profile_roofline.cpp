// Roofs: every bound, sum and excuse against arithmetic by hand.
#include "catch.hpp"
#include "profile_made.hpp"

#include <lamina/profile/roofline.hpp>

using namespace lamina;
using test::made_profile_on_machine;

namespace {

/// Against 200 GFLOP/s and 20 GB/s.
ProfileRow row(double us, Work work) {
  return test::made_row(1, "a", "Conv2D", Pass::forward, us, work);
}

Roof roof_of(const ProfileRow& r, int ranks = 1) { return roof(made_profile_on_machine(ranks), r); }

}  // namespace

TEST_CASE("a row that computes more than it moves is bound by compute") {
  const Roof r = roof_of(row(80, {10e6, 0.2e6}));  // 50 us beside 10 us
  CHECK(r.bound == Bound::compute);
  CHECK(r.seconds == Approx(50e-6));
  CHECK(r.flops == Approx(200e9));
  CHECK(r.fraction == Approx(0.625));
  CHECK(r.wasted == Approx(30e-6));
  CHECK_FALSE(r.above);
  CHECK(r.reason.empty());
}

TEST_CASE("a row that moves more than it computes is bound by memory") {
  const Roof r = roof_of(row(400, {10e6, 4e6}));  // 50 us beside 200 us
  CHECK(r.bound == Bound::memory);
  CHECK(r.seconds == Approx(200e-6));
  CHECK(r.flops == Approx(2.5 * 20e9));  // intensity times bandwidth
  CHECK(r.fraction == Approx(0.5));
  CHECK(r.wasted == Approx(200e-6));
}

TEST_CASE("a row that waits longer than it could run is bound by communication") {
  ProfileRow waits = row(60, {10e6, 0.2e6});
  waits.exposed.mean = 49e-6;
  CHECK(roof_of(waits).bound == Bound::compute);
  waits.exposed.mean = 51e-6;
  CHECK(roof_of(waits).bound == Bound::communication);
  CHECK(roof_of(waits).wasted == Approx(61e-6));
  CHECK(roof_of(waits).fraction == Approx(50. / 60));  // of the kernels alone
  waits.time.mean = 40e-6;                             // faster than the roof: no excuse to wait
  CHECK(roof_of(waits).wasted == Approx(51e-6));
}

TEST_CASE("a row of many tiny kernels is bound by overhead") {
  ProfileRow tiny = row(5, {0.2e6, 20e3});  // 1 us and 1 us; a launch takes 1 us
  tiny.kernels = {{"a", Lane::compute, 3, 10e-6, 0},
                  {"all_reduce", Lane::communication, 100, 1e-6, 0}};
  CHECK(roof_of(tiny).bound == Bound::overhead);
  tiny.kernels[0].calls = 0.5;
  CHECK(roof_of(tiny).bound != Bound::overhead);
}

TEST_CASE("a kernel far below both roofs is bound by neither") {
  // At least 50 us of compute or 10 of memory: at 12 % of the roof, neither holds it.
  CHECK(roof_of(row(50 / 0.12, {10e6, 0.2e6})).bound == Bound::kernel);
  CHECK(roof_of(row(50 / 0.12, {2e6, 1e6})).bound == Bound::kernel);  // 10 us, 50 us
  CHECK(roof_of(row(101, {10e6, 0.2e6})).bound == Bound::kernel);
  CHECK(roof_of(row(99, {10e6, 0.2e6})).bound == Bound::compute);
  CHECK(name(Bound::kernel) == "kernel");
  ProfileRow far = row(200, {10e6, 0.2e6});  // 150 us beyond the roof
  far.exposed.mean = 151e-6;
  CHECK(roof_of(far).bound == Bound::communication);
  far.exposed.mean = 149e-6;
  CHECK(roof_of(far).bound == Bound::kernel);
  far.kernels = {{"a", Lane::compute, 80, 200e-6, 0}};  // launches, 1 us each, explain 80 of it
  far.exposed.mean = 0;
  CHECK(roof_of(far).bound == Bound::overhead);
  far.kernels[0].calls = 70;
  CHECK(roof_of(far).bound == Bound::kernel);
}

TEST_CASE("a row without work has no roof, and wastes all of its time") {
  ProfileRow load = row(40, {});
  load.exposed.mean = 5e-6;
  const Roof r = roof_of(load);
  CHECK(r.bound == Bound::overhead);
  CHECK(r.seconds == 0);
  CHECK(r.flops == 0);
  CHECK(r.fraction == 0);
  CHECK(r.wasted == Approx(45e-6));
  CHECK_FALSE(r.above);
  CHECK(roof_of(ProfileRow()).bound == Bound::overhead);
}

TEST_CASE("a row without kernels has no roof, whatever its arithmetic says") {
  ProfileRow waits = row(0, {10e6, 0.2e6});
  waits.exposed.mean = 5e-6;
  const Roof r = roof_of(waits);
  CHECK(r.bound == Bound::communication);
  CHECK(r.seconds == 0);
  CHECK(r.wasted == Approx(5e-6));
  CHECK_FALSE(r.above);
}

TEST_CASE("roofs of several rows add up") {
  const Profile p = made_profile_on_machine();
  ProfileRow compute = row(80, {10e6, 0.2e6});  // at least 50 us, moves for 10 us
  ProfileRow memory = row(400, {10e6, 4e6});    // at least 200 us, computes for 50 us
  const ProfileRow fast = row(40, {10e6, 0.2e6});
  const ProfileRow* two[] = {&compute, &memory};
  Roof sum = roof(p, two);
  CHECK(sum.seconds == Approx(250e-6));
  CHECK(sum.flops == Approx(20e6 / 250e-6));
  CHECK(sum.fraction == Approx(250. / 480));
  CHECK(sum.wasted == Approx(230e-6));
  CHECK(sum.bound == Bound::memory);  // 100 us of compute, 210 us of memory
  CHECK_FALSE(sum.above);

  // A row above its roof gives nothing back to those below.
  const ProfileRow* with_fast[] = {&compute, &memory, &fast};
  sum = roof(p, with_fast);
  CHECK(sum.wasted == Approx(230e-6));
  CHECK(sum.fraction == Approx(300. / 520));
  CHECK(sum.above);
  CHECK(sum.reason.empty());

  compute.exposed.mean = memory.exposed.mean = 110e-6;
  CHECK(roof(p, two).bound == Bound::communication);
  CHECK(roof(p, {two, 0}).bound == Bound::overhead);
}

TEST_CASE("5 % above the roof may be chance") {
  CHECK_FALSE(roof_of(row(48, {10e6, 0.2e6})).above);
  CHECK(roof_of(row(48, {10e6, 0.2e6})).fraction == Approx(50. / 48));
  CHECK(roof_of(row(47, {10e6, 0.2e6})).above);
  CHECK(roof_of(row(47, {10e6, 0.2e6})).wasted == 0);
}

TEST_CASE("Winograd explains FLOP above the peak, and nothing else") {
  ProfileRow r = row(40, {10e6, 0.2e6});
  CHECK(roof_of(r).above);
  CHECK(roof_of(r).reason.empty());
  r.algorithm = "wino:avx512_core";
  CHECK(roof_of(r).reason == "Winograd: FLOPs are counted as those of a direct convolution");
  CHECK(roof_of(r).fraction == Approx(1.25));
  r.algorithm = "jit:avx512_core|jit:avx512_core|jit_wino_4x3:avx512_core";
  CHECK(roof_of(r).reason.empty());  // forward has the first one
  r.pass = Pass::weight_grad;
  CHECK_FALSE(roof_of(r).reason.empty());
  r.work.bytes = 60e6;  // at 1500 GB/s, faster than any cache
  CHECK(roof_of(r).above);
  CHECK(roof_of(r).reason.empty());
  r.work = {10e6, 2e6};
  CHECK(roof_of(r).reason ==
        "Winograd: FLOPs are counted as those of a direct convolution; "
        "operands in L3 (32 MB): memory can have moved 0.8 of 2 MB");
}

TEST_CASE("a cache explains bytes that memory cannot have moved, if they fit and it is as fast") {
  // 40 GB/s, of which memory gives 20: 2 of 4 MB.
  CHECK(roof_of(row(100, {1e6, 4e6})).reason ==
        "operands in L3 (32 MB): memory can have moved 2 of 4 MB");
  // The same rate with more than L3 can hold: 40 of 80 MB are left.
  CHECK(roof_of(row(2000, {1e6, 80e6})).above);
  CHECK(roof_of(row(2000, {1e6, 80e6})).reason.empty());
  CHECK_FALSE(roof_of(row(1600, {1e6, 62e6})).reason.empty());  // 30 are left
  // 200 GB/s: faster than L3 with its 60, so that L2 must have given 1.4 of 2 MB.
  CHECK(roof_of(row(10, {1e6, 2e6})).reason ==
        "operands in L2 (2 MB): L3 can have moved 0.6 of 2 MB");
  // The same rate with 2.8 of 4 MB: more than L2 can hold.
  CHECK(roof_of(row(20, {1e6, 4e6})).reason.empty());
  // 1000 GB/s: nothing is as fast.
  CHECK(roof_of(row(1, {1e3, 1e6})).above);
  CHECK(roof_of(row(1, {1e3, 1e6})).reason.empty());
}

TEST_CASE("beside idle ranks a rank may get more than its part") {
  // 22 GB/s: one rank alone gets 25.
  CHECK(roof_of(row(100, {1e3, 2.2e6}), 2).reason ==
        "other ranks were not as busy: below the 25.0 GB/s of a rank alone");
  CHECK(roof_of(row(100, {22e6, 1e3}), 2).reason ==
        "other ranks were not as busy: below the 250.0 GFLOP/s of a rank alone");
  CHECK(roof_of(row(100, {22e6, 1e3}), 1).reason.empty());
  CHECK(roof_of(row(100, {27e6, 1e3}), 2).reason.empty());
}

TEST_CASE("a sum names every excuse once, and none where one is missing") {
  const Profile p = made_profile_on_machine();
  ProfileRow wino = row(40, {10e6, 0.2e6});
  wino.algorithm = "wino:avx512_core";
  const ProfileRow cached = row(100, {1e6, 4e6}), wonder = row(40, {10e6, 0.2e6});
  const ProfileRow* known[] = {&wino, &cached, &wino};
  CHECK(roof(p, known).reason ==
        "Winograd: FLOPs are counted as those of a direct convolution; "
        "operands in L3 (32 MB): memory can have moved 2 of 4 MB");
  const ProfileRow* unknown[] = {&wino, &wonder, &cached};
  CHECK(roof(p, unknown).above);
  CHECK(roof(p, unknown).reason.empty());
}

TEST_CASE("roofs need ceilings in the profile's type") {
  Profile p = test::made_profile();
  const ProfileRow r = row(1, {1, 1});
  CHECK_FALSE(has_ceilings(Profile()));
  CHECK_FALSE(has_ceilings(p));
  CHECK_THROWS_WITH(roof(p, r), ContainsSubstring("no ceilings"));
  p = made_profile_on_machine();
  CHECK(has_ceilings(p));
  p.dtype = "f64", p.arithmetic = DType::f64;
  CHECK(roof(p, row(200, {10e6, 1})).fraction == Approx(0.5));  // 100 GFLOP/s
  p.machine->compute.clear();
  CHECK_FALSE(has_ceilings(p));
  CHECK_THROWS_WITH(roof(p, r), ContainsSubstring("f64"));
  p = made_profile_on_machine();
  p.machine->memory.clear();
  CHECK_FALSE(has_ceilings(p));
  CHECK_THROWS_WITH(roof(p, r), ContainsSubstring("bandwidth"));
}

TEST_CASE("zeros around an image explain as many FLOP as are spent on them, and no more") {
  ProfileRow r = row(35, {10e6, 0.1e6});  // 50 us at the peak
  CHECK(roof_of(r).above);
  CHECK(roof_of(r).reason.empty());
  r.work.padding = 4e6;  // without them: 30 us
  CHECK_THAT(roof_of(r).reason, ContainsSubstring("padding: 40.0 %"));
  r.time.mean = 25e-6;
  CHECK(roof_of(r).reason.empty());
  r.time.mean = 35e-6;
  r.work.padding = 2e6;
  CHECK(roof_of(r).reason.empty());
}
