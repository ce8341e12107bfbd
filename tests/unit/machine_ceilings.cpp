// Ceilings: plausible against one another, and complete.
#include "../../src/cpu/rate_in.hpp"
#include "../../src/machine/measure.hpp"
#include "../../src/machine/time_collective.hpp"
#include "catch.hpp"

#include <lamina/base/threads.hpp>
#include <lamina/comm/threads.hpp>
#include <lamina/kernels/backends.hpp>

#include <map>
#include <mutex>
#include <set>
#include <tuple>

using namespace lamina;

namespace {

#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
constexpr bool fast = true;
#else
constexpr bool fast = false;  // the loops are then bound by what the compiler left in them
#endif

struct OneThread {
  int before = threads();
  OneThread() { set_threads(1); }
  ~OneThread() { set_threads(before); }
};

using Kind = ComputeCeiling::Kind;

double flops(const std::vector<ComputeCeiling>& all, Kind kind, DType dtype,
             const std::string& name = "") {
  double best = 0;
  for (const ComputeCeiling& c : all)
    if (c.kind == kind && c.dtype == dtype && (name.empty() || c.name == name))
      best = std::max(best, c.flops.together);
  return best;
}

/// What does not fit together; empty where all does.
std::string contradiction(const Backend& backend, const detail::Effort& effort) {
  const World world;
  const auto fma = detail::measure_fma(world, processor_loops(), effort);
  const auto sets = instruction_sets();
  for (std::size_t i = 1; i < sets.size(); ++i)
    for (const DType t : {DType::f32, DType::f64})
      if (flops(fma, Kind::fma, t, sets[i]) < 0.9 * flops(fma, Kind::fma, t, sets[i - 1]))
        return text(sets[i], " is slower than ", sets[i - 1]);
  const double f32 = flops(fma, Kind::fma, DType::f32), f64 = flops(fma, Kind::fma, DType::f64);
  if (f32 < 1.7 * f64 || f32 > 2.3 * f64) return text("f32 ", f32, ", f64 ", f64);
  // Twice as many, in each, every second or (Intel's) every fourth cycle.
  const double bf16 = flops(fma, Kind::fma, DType::bf16, "avx512bf16");
  if (bf16 != 0 && (bf16 < 0.4 * f32 || bf16 > 4.5 * f32))
    return text("bf16 ", bf16, ", f32 ", f32);
  // 1024 in a cycle, of which two ports of 16 numbers have 64 in f32.
  const double tiles = flops(fma, Kind::fma, DType::bf16, "amx");
  if (tiles != 0 && (tiles < 6 * f32 || tiles > 34 * f32))
    return text("tiles ", tiles, ", f32 ", f32);

  // A count that is wrong by a factor of 2, here or there, leaves these bounds.
  const auto kernels = detail::measure_kernels(world, backend, effort);
  const double gemm = flops(kernels, Kind::gemm, DType::f32) / f32;
  const double least = backend.name() == "onednn" ? 0.6 : 0.01;
  if (gemm < least || gemm > 1.05) return text("GEMM reaches ", gemm, " of FMA");
  for (const ComputeCeiling& c : kernels) {
    const bool winograd = c.name.find("wino") != std::string::npos;
    const double of_peak = c.flops.together / flops(fma, Kind::fma, c.dtype);
    if (c.kind == Kind::conv && !winograd && of_peak > 1.05)
      return text(c.name, " reaches ", of_peak, " of FMA");
  }

  const auto memory = detail::measure_memory(world, processor_loops(), available_memory(), effort);
  const auto& first = memory.front();
  const auto& last = memory.back();
  if (memory.size() < 3 || first.level != "L1") return "there are too few levels";
  if (first.read.alone < 1.1 * memory[1].read.alone)
    return text("L1 reads ", first.read.alone, ", L2 ", memory[1].read.alone);
  for (std::size_t i = 1; i < memory.size(); ++i)
    if (memory[i].bandwidth() > 1.1 * memory[i - 1].bandwidth())
      return text(memory[i].level, " is faster than ", memory[i - 1].level);
  if (memory[1].bandwidth() < 1.3 * last.bandwidth()) return "memory is as fast as L2";
  // Processors read about 2 bytes in the time of one FLOP of f32 at full width.
  if (first.read.alone > 3 * f32)
    return text("L1 reads ", first.read.alone, " B/s at ", f32, " FLOP/s");
  return "";
}

}  // namespace

TEST_CASE("ceilings fit together", "[machine]") {
  const OneThread one;  // other programs take turns with few threads
  const auto backend = make_backend("auto", DType::f32);
  std::string wrong = "not tried";
  detail::Effort effort{.loop = fast ? 0.01 : 0.001, .memory = 256 << 20};
  for (int i = 0; i < (fast ? 4 : 1) && !wrong.empty(); ++i, effort.loop *= 2) {
    wrong = contradiction(*backend, effort);
    if (!wrong.empty()) UNSCOPED_INFO(wrong);
  }
  if (fast) CHECK(wrong == "");
}

TEST_CASE("what a loop cannot measure is refused", "[machine]") {
  CHECK_THROWS_WITH(fma_rate("mmx", DType::f32), ContainsSubstring("no mmx"));
  CHECK_THROWS_AS(fma_rate(instruction_sets().back(), DType::i32), Error);
}

TEST_CASE("the fastest slice counts, or the middle one", "[machine]") {
  int n = 0;
  const auto work = [&](std::size_t) {  // as if every third slice were twice as fast
    for (const double end = now() + 2e-4; now() < end;) {
    }
    return n++ % 3 == 0 ? 1.0 : 2.0;
  };
  const auto fill = [&](std::size_t times) { work(times), n = 0; };
  // So long that many slices are left even where others take most of the processor.
  CHECK(detail::rate_in({.seconds = 0.3, .slice = 1e-4}, fill, work) == 1);
  CHECK(detail::rate_in({.seconds = 0.3, .slice = 1e-4, .middle = true}, fill, work) == 0.5);
}

TEST_CASE("caches are listed from the first level on, and ranks share them", "[machine]") {
  const auto levels = cache_levels();
  REQUIRE(!levels.empty());
  CHECK(levels[0].name == "L1");
  for (std::size_t i = 1; i < levels.size(); ++i) {
    CHECK(levels[i].bytes > levels[i - 1].bytes);
    CHECK(levels[i].sharers >= levels[i - 1].sharers);
  }
  run_ranks(2, [&](World& world) {
    const OneThread one;
    const auto memory = detail::measure_memory(world, processor_loops(), available_memory(),
                                               {.loop = 1e-3, .memory = 64 << 20});
    const std::lock_guard lock([]() -> std::mutex& {
      static std::mutex mutex;
      return mutex;
    }());
    REQUIRE(memory.size() == levels.size() + 1);
    CHECK(memory.back().level == "memory");
    CHECK(memory.back().capacity == 0);
    for (std::size_t i = 0; i < levels.size(); ++i) {
      const int sharers = std::min(levels[i].sharers, 2);
      CHECK(memory[i].capacity == double(levels[i].bytes / std::size_t(sharers)));
      CHECK(memory[i].triad.together > 0);
      CHECK(memory[i].read.alone > 0);
    }
  });
}

TEST_CASE("every collective is timed for every size and group", "[machine]") {
  const int n = GENERATE(1, 2, 4, 5);
  std::vector<std::vector<CommCeiling>> found(static_cast<std::size_t>(n));
  run_ranks(n, [&](World& world) {
    found[std::size_t(world.rank())] =
        detail::measure_collectives(world, host_memory(), {.transfer = 1e-4, .max_bytes = 16384});
  });
  using Group = std::pair<int, int>;
  const std::map<int, std::set<Group>> groups = {
      {1, {}}, {2, {{2, 1}}}, {4, {{2, 1}, {4, 1}, {2, 2}}}, {5, {{2, 1}, {4, 1}, {5, 1}, {2, 2}}}};
  std::set<std::tuple<int, int, Collective, double>> wanted, seen;
  for (const auto& [size, stride] : groups.at(n))
    for (const Collective op :
         {Collective::all_reduce, Collective::all_gather, Collective::reduce_scatter,
          Collective::all_to_all, Collective::halo})
      for (const double bytes : {1024, 4096, 16384})
        if (op != Collective::halo || size == 2)
          wanted.insert({size, stride, op, bytes - std::int64_t(bytes) % (4 * size)});
  for (const CommCeiling& c : found[0]) {
    CHECK(c.seconds > 0);
    seen.insert({c.ranks, c.stride, c.op, c.bytes});
  }
  CHECK(seen == wanted);
  for (const auto& other : found) {
    REQUIRE(other.size() == found[0].size());
    for (std::size_t i = 0; i < other.size(); ++i) CHECK(other[i].seconds == found[0][i].seconds);
  }
}

TEST_CASE("no collective is timed beyond the size that is slow", "[machine]") {
  run_ranks(2, [&](World& world) {
    const auto found = detail::measure_collectives(
        world, host_memory(), {.transfer = 1e-4, .max_bytes = 16384, .slow = 0});
    if (world.rank() != 0) return;
    CHECK(found.size() == 5);  // one of each
    for (const CommCeiling& c : found) CHECK(c.bytes == 1024);
  });
}

TEST_CASE("a timed collective does what it says", "[machine]") {
  const int n = GENERATE(1, 2, 3);
  const DType dtype = GENERATE(DType::f32, DType::f64);
  double wrong = 0;
  run_ranks(n, [&](World& world) {
    for (const Collective op : detail::timed_collectives()) {
      detail::TimedCollective timed(world.comm(), op, dtype, 1000);
      const double mine = n == 1 && op == Collective::halo ? 0 : timed.wrong();
      if (world.rank() == 0) wrong += mine + (timed.bytes() % (size_of(dtype) * std::size_t(n)));
    }
  });
  CHECK(wrong == 0);
}

TEST_CASE("all ranks have the same rates", "[machine]") {
  std::vector<std::vector<ComputeCeiling>> found(2);
  run_ranks(2, [&](World& world) {
    const OneThread one;
    found[std::size_t(world.rank())] =
        detail::measure_fma(world, processor_loops(), {.loop = 2e-3});
  });
  REQUIRE(found[0].size() == 2 * instruction_sets().size() + instruction_sets(DType::bf16).size());
  for (std::size_t i = 0; i < found[0].size(); ++i) {
    CHECK(found[0][i].flops.alone > 0);
    CHECK(found[0][i].flops.together > 0);
    CHECK(found[0][i].flops.alone == found[1][i].flops.alone);
    CHECK(found[0][i].flops.together == found[1][i].flops.together);
  }
}

TEST_CASE("ranks lose patience together, by rank 0's clock", "[machine]") {
  for (const bool first : {true, false}) {
    std::vector<int> patient(2, -1);
    run_ranks(2, [&](World& world) {
      detail::Effort effort;
      if ((world.rank() == 0) == first) effort.begin -= 2 * effort.patience;
      patient[std::size_t(world.rank())] = detail::patient(world, effort);
    });
    CHECK(patient == std::vector<int>{!first, !first});
  }
}
