// A machine as data: what is looked up, what JSON keeps, and what the cache does with it.
#include "../../src/machine/cache.hpp"
#include "../../src/machine/json.hpp"
#include "../../src/machine/measure.hpp"
#include "catch.hpp"
#include "profile_made.hpp"
#include "support/cache_folder.hpp"
#include "support/golden.hpp"

#include <lamina/base/threads.hpp>
#include <lamina/comm/threads.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/profile/detail/best.hpp>

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

using namespace lamina;
using lamina::test::CacheFolder, lamina::test::content, lamina::test::made_machine;

namespace {

std::atomic<int> measured = 0;

Machine measure(const World& world, const Backend&) {
  if (world.rank() == 0) ++measured;
  return made_machine(world.size());
}

/// What measure_next() gives, one after the other; the last one for ever.
std::vector<Machine> next;

Machine measure_next(const World&, const Backend&) {
  ++measured;
  const Machine m = next.front();
  if (next.size() > 1) next.erase(next.begin());
  return m;
}

/// With that bandwidth of memory, disturbed or not.
Machine with_memory(double rate, bool disturbed) {
  Machine m = made_machine();
  MemoryCeiling& memory = m.memory.back();
  memory.triad = memory.read = memory.scale = {rate, rate};
  memory.disturbed = disturbed;
  return m;
}

struct Folder : CacheFolder {
  Folder() { measured = 0; }
};

std::string dump(const Machine& m) { return detail::machine_to_json(m).dump(); }

}  // namespace

TEST_CASE("bus factors are those of nccl-tests", "[machine]") {
  CHECK(bus_factor(Collective::all_reduce, 4) == 1.5);
  CHECK(bus_factor(Collective::reduce_scatter, 4) == 0.75);
  CHECK(bus_factor(Collective::all_gather, 2) == 0.5);
  CHECK(bus_factor(Collective::all_to_all, 8) == 0.875);
  CHECK(bus_factor(Collective::broadcast, 3) == 1);
  CHECK(bus_factor(Collective::halo, 2) == 1);
  CHECK(bus_factor(Collective::barrier, 2) == 0);
  CHECK(bus_factor(Collective::all_reduce, 1) == 0);
}

TEST_CASE("a machine knows its best rates", "[machine]") {
  Machine m = made_machine(2);
  CHECK(m.peak(DType::f32) == 200e9);
  CHECK(m.peak(DType::f64) == 100e9);
  CHECK(m.bandwidth() == 20e9);
  m.comm = {{Collective::all_reduce, 2, 1, 1e6, 1e-3},
            {Collective::all_reduce, 2, 1, 4e6, 2e-3},
            {Collective::all_reduce, 4, 1, 4e6, 1e-3},
            {Collective::all_gather, 2, 1, 9e9, 1e-3}};
  CHECK(m.bus_bandwidth(Collective::all_reduce, 2) == Approx(2e9));
  CHECK(m.bus_bandwidth(Collective::all_reduce, 4) == Approx(6e9));
  CHECK(m.bus_bandwidth(Collective::all_reduce, 8) == Approx(6e9));
  CHECK(m.bus_bandwidth(Collective::halo, 2) == 0);
}

TEST_CASE("a machine survives JSON, and damage does not", "[machine]") {
  const auto json = detail::machine_to_json(made_machine(2));
  const auto read = [](const nlohmann::ordered_json& j) {
    return detail::machine_from_json(detail::JsonPart(j, "machine"));
  };
  const Machine back = read(nlohmann::ordered_json::parse(json.dump()));
  CHECK(dump(back) == json.dump());
  CHECK(back.comm.size() == made_machine(2).comm.size());
  CHECK(back.compute[2].dtype == DType::f64);
  CHECK(back.compute[3].kind == ComputeCeiling::Kind::gemm);
  Machine narrow = made_machine(2);
  for (const DType t : {DType::bf16, DType::f16}) {
    narrow.compute[2].dtype = t;
    CHECK(read(detail::machine_to_json(narrow)).compute[2].dtype == t);
  }
  CHECK(back.memory[1].read.together == 300e9);
  CHECK(back.launch == 1e-6);
  for (const auto& [name, value] : json.items()) {
    INFO(name);
    auto less = json;
    less.erase(name);
    CHECK_THROWS_WITH(read(less), "machine: expected a member '" + name + "'");
    auto other = json;
    other[name] = {{"a", 1}};
    CHECK_THROWS_WITH(read(other), ContainsSubstring("machine." + name + ": expected a"));
  }
  // No type is taken for another, nothing is rounded, and nothing is below zero.
  const auto refused = [&](const char* at, const nlohmann::ordered_json& value,
                           const std::string& why) {
    auto j = json;
    j[nlohmann::ordered_json::json_pointer(at)] = value;
    INFO(at);
    CHECK_THROWS_WITH(read(j), "machine." + why);
  };
  const std::string rate = "memory[0].read.alone: expected a number of at least 0, got ";
  refused("/memory/0/read/alone", -1, rate + "-1");
  refused("/memory/0/read/alone", nullptr, rate + "null");
  refused("/memory/0/read/alone", true, rate + "true");
  refused("/launch", false, "launch: expected a number of at least 0, got false");
  const std::string threads = "threads: expected a whole number from 1 to 2147483647, got ";
  refused("/threads", true, threads + "true");
  refused("/threads", 1.5, threads + "1.5");
  refused("/threads", 1ull << 33, threads + "8589934592");
  refused("/comm/0/op", "scan", "comm[0].op: expected a known name, got \"scan\"");
  refused("/comm/0/ranks", 0, "comm[0].ranks: expected a whole number from 1 to 2147483647, got 0");
  refused("/compute/0/kind", "guess", "compute[0].kind: expected a known name, got \"guess\"");
  refused("/compute/0/dtype", "f8", "compute[0].dtype: expected a known name, got \"f8\"");
}

TEST_CASE("the table of a machine", "[machine][golden]") {
  lamina::test::golden("machine.txt", table(made_machine(2)));
}

TEST_CASE("ceilings are measured once, and when asked to", "[machine]") {
  const Folder folder;
  const World world;
  const auto backend = reference_backend();
  const std::string file = detail::cache_file(world, *backend);
  CHECK(file.starts_with(folder.path + "/machine-"));
  bool found = true;
  CHECK(cached_machine(world, *backend, &found).compute.empty());
  CHECK(!found);
  CHECK(!std::filesystem::exists(folder.path));

  CHECK(dump(detail::cached_or(measure, world, *backend, false)) == dump(made_machine()));
  CHECK(measured == 1);
  CHECK(dump(detail::cached_or(measure, world, *backend, false)) == dump(made_machine()));
  CHECK(measured == 1);
  CHECK(dump(cached_machine(world, *backend, &found)) == dump(made_machine()));
  CHECK(found);
  detail::cached_or(measure, world, *backend, true);
  CHECK(measured == 2);
  // Nothing but the one file is left behind.
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path), {}) == 1);

  const int before = threads();
  set_threads(before + 1);  // another key
  CHECK(detail::cache_file(world, *backend) != file);
  detail::cached_or(measure, world, *backend, false);
  CHECK(measured == 3);
  set_threads(before);
}

TEST_CASE("a damaged or foreign cache is measured anew", "[machine]") {
  const Folder folder;
  const World world;
  const auto backend = reference_backend();
  detail::cached_or(measure, world, *backend, false);
  const std::string file = detail::cache_file(world, *backend), good = content(file);
  const auto replaced = [&](const std::string& what, const std::string& by) {
    std::string s = good;
    REQUIRE(s.find(what) != std::string::npos);
    return s.replace(s.find(what), what.size(), by);
  };
  const std::vector<std::string> bad = {"",
                                        "null",
                                        "[1, 2]",
                                        good.substr(0, good.size() / 2),
                                        std::string(1000, '['),
                                        "\xff\xfe",
                                        replaced("\"schema\": 4", "\"schema\": 3"),
                                        replaced("\"threads\"", "\"thread\""),
                                        replaced("\"cpu\": \"", "\"cpu\": \"not "),
                                        replaced("\"memory\"", "\"memories\"")};
  for (const std::string& s : bad) {
    INFO(s.substr(0, 60));
    std::ofstream(file) << s;
    measured = 0;
    CHECK(dump(detail::cached_or(measure, world, *backend, false)) == dump(made_machine()));
    CHECK(measured == 1);
    CHECK(content(file) == good);  // and mended
  }
}

TEST_CASE("a cache that cannot be written is done without", "[machine]") {
  const Folder folder;
  const World world;
  const auto backend = reference_backend();
  std::ofstream(folder.path) << "a file in the folder's place";
  for (int i = 1; i <= 2; ++i) {
    CHECK(dump(detail::cached_or(measure, world, *backend, false)) == dump(made_machine()));
    CHECK(measured == i);
  }
  setenv("LAMINA_CACHE", "0", 1);
  CHECK(detail::cache_file(world, *backend).empty());
  detail::cached_or(measure, world, *backend, false);
  CHECK(measured == 3);
}

TEST_CASE("all ranks get the cached ceilings from rank 0", "[machine]") {
  const Folder folder;
  std::vector<std::string> found(4);
  for (int turn = 0; turn < 2; ++turn)
    run_ranks(2, [&](World& world) {
      const auto m = detail::cached_or(measure, world, *reference_backend(), false);
      found[std::size_t(2 * turn + world.rank())] = dump(m);
    });
  CHECK(measured == 1);
  for (const std::string& s : found) CHECK(s == dump(made_machine(2)));
}

TEST_CASE("disturbed ceilings are measured a second time, and not kept", "[machine]") {
  const Folder folder;
  const World world;
  const auto backend = reference_backend();
  bool found = false;
  next = {with_memory(20e9, true), with_memory(30e9, true)};
  Machine m = detail::cached_or(measure_next, world, *backend, false);
  CHECK(measured == 2);
  CHECK(m.bandwidth() == 30e9);  // the better of the two, as good as it gets, and marked
  CHECK(m.disturbed() == 1);
  CHECK(m.disturbed(DType::f32));
  CHECK_THAT(table(m), ContainsSubstring("memory ?") && ContainsSubstring("? disturbed: "));
  m = cached_machine(world, *backend, &found);
  CHECK(found);
  CHECK(m.missing == 1);
  CHECK(m.disturbed() == 0);
  CHECK(m.bandwidth() == 0);
  CHECK(m.memory.size() == 3);
  CHECK(m.peak(DType::f32) == 200e9);  // which was not

  next = {with_memory(50e9, false)};  // what is missing is measured when it is asked for next
  m = detail::cached_or(measure_next, world, *backend, false);
  CHECK(measured == 3);
  CHECK(m.bandwidth() == 50e9);
  m = detail::cached_or(measure_next, world, *backend, false);
  CHECK(measured == 3);
  CHECK(m.missing == 0);
  CHECK_FALSE(m.disturbed(DType::f32));

  next = {with_memory(20e9, true)};  // a disturbed run leaves the cache as it is
  m = detail::cached_or(measure_next, world, *backend, true);
  CHECK(m.bandwidth() == 50e9);
  CHECK(m.missing == 0);
  CHECK(cached_machine(world, *backend, &found).bandwidth() == 50e9);
}

TEST_CASE("where the peak was disturbed no lower rate is taken for it", "[machine]") {
  const Folder folder;
  const World world;
  const auto backend = reference_backend();
  Machine m = with_memory(20e9, false);
  ComputeCeiling lower = m.compute[0];
  REQUIRE(lower.kind == ComputeCeiling::Kind::fma);
  lower.name = "lower", lower.flops = {1e9, 1e9};
  const double before = m.peak(lower.dtype);
  for (ComputeCeiling& c : m.compute) c.disturbed = c.flops.together == before;
  m.compute.push_back(lower);
  next = {m, m};
  CHECK(detail::cached_or(measure_next, world, *backend, false).peak(lower.dtype) == before);
  CHECK(cached_machine(world, *backend, nullptr).peak(lower.dtype) == 0);
}

TEST_CASE("the best of two measurements that is plausible counts", "[machine]") {
  const auto best = [](double older, bool older_disturbed, double newer, bool newer_disturbed) {
    const Machine m =
        detail::best_of(with_memory(older, older_disturbed), with_memory(newer, newer_disturbed));
    CHECK(m.memory.back().read.together == m.bandwidth());
    return std::pair(m.bandwidth(), m.memory.back().disturbed);
  };
  using Pair = std::pair<double, bool>;
  CHECK(best(58, true, 134, false) == Pair(134, false));
  CHECK(best(134, false, 58, true) == Pair(134, false));
  CHECK(best(100, false, 120, false) == Pair(120, false));
  CHECK(best(120, false, 100, false) == Pair(120, false));
  CHECK(best(100, false, 120, true) == Pair(120, false));
  CHECK(best(100, false, 130, true) == Pair(100, false));  // not believed
  CHECK(best(130, true, 100, false) == Pair(100, false));
  CHECK(best(130, false, 100, false) == Pair(100, false));  // the machine has changed
  CHECK(best(100, false, 130, false) == Pair(130, false));
  CHECK(best(80, true, 100, true) == Pair(100, true));
  CHECK(best(100, true, 100, true) == Pair(100, true));  // by the same disturbance, perhaps

  Machine slow = made_machine(2), fast = made_machine(2);
  slow.comm[3].seconds = 2 * fast.comm[3].seconds, slow.comm[3].disturbed = true;
  slow.launch = 2e-6;
  CHECK(detail::best_of(fast, slow).comm[3].seconds == Approx(fast.comm[3].seconds));
  CHECK(detail::best_of(slow, fast).launch == 1e-6);
}

TEST_CASE("memory is measured with a set that no cache holds", "[machine]") {
  constexpr double mib = 1 << 20, gib = 1 << 30;
  CHECK(detail::memory_set(32 * mib, 1, 100 * gib) == gib);
  CHECK(detail::memory_set(32 * mib, 4, 100 * gib) == 2 * gib);   // 512 MiB per thread
  CHECK(detail::memory_set(32 * mib, 64, 100 * gib) == 4 * gib);  // more than any socket has
  CHECK(detail::memory_set(1152 * mib, 96, 100 * gib) == 4 * 1152 * mib);
  CHECK(detail::memory_set(32 * mib, 1, 2 * gib) == gib / 2);  // of memory, a quarter
}
