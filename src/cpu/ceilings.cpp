// Ceilings: small loops that come as close as a program can to what the processor does at most.
#include "cpu/rate_in.hpp"
#include "cpu/tiles.hpp"

#include <lamina/base/threads.hpp>
#include <lamina/tensor/large_pages.hpp>

#include <omp.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lamina {

namespace {

struct Loops {
  std::size_t vector;  // bytes of a register
  void (*f32)(std::size_t times, float* constants_and_sum);
  void (*f64)(std::size_t times, double* constants_and_sum);
  void (*bf16)(std::size_t times, float* constants_and_sum);  // null where it is widened first
  void (*triad)(float* a, const float* b, const float* c, std::size_t n, float s,
                std::size_t times);
  float (*read)(const float* x, std::size_t n, std::size_t times);
  void (*scale)(float* x, std::size_t n, float s, std::size_t times);
};

constexpr int chains = 12;  // of multiply_add()

#if defined(__x86_64__)
#define LAMINA_SET sse2
#define LAMINA_VECTOR 16
#define LAMINA_TARGET __attribute__((target("sse2")))
#include "cpu/ceilings_loops.hpp"
#undef LAMINA_SET
#undef LAMINA_VECTOR
#undef LAMINA_TARGET
#define LAMINA_SET avx2
#define LAMINA_VECTOR 32
#define LAMINA_TARGET __attribute__((target("avx2,fma")))
#include "cpu/ceilings_loops.hpp"
#undef LAMINA_SET
#undef LAMINA_VECTOR
#undef LAMINA_TARGET
#define LAMINA_SET avx512
#define LAMINA_VECTOR 64
#define LAMINA_TARGET __attribute__((target("avx512f")))
#include "cpu/ceilings_loops.hpp"

/// As multiply_add(), of pairs that are added to an f32.
__attribute__((target("avx512f,avx512bf16"))) void multiply_add_bf16(std::size_t times,
                                                                     float* out) {
  const __m512bh x = _mm512_cvtne2ps_pbh(_mm512_set1_ps(out[0]), _mm512_set1_ps(out[0]));
  __m512 sums[chains];
  for (__m512& s : sums) s = _mm512_set1_ps(out[1]);
  for (std::size_t n = 0; n < times; ++n) {
#pragma GCC unroll 12
    for (__m512& s : sums) s = _mm512_dpbf16_ps(s, x, x);
  }
  for (const __m512& s : sums) {
    float lanes[16];
    _mm512_storeu_ps(lanes, s);
    for (const float lane : lanes) out[2] += lane;
  }
}
constexpr Loops avx512bf16 = {64, nullptr, nullptr, multiply_add_bf16, nullptr, nullptr, nullptr};

/// 12 products of two tiles of 16 rows, each added to one of 6 tiles: an addition takes as long as
/// it takes to begin four.
__attribute__((target("avx512f,amx-tile,amx-bf16"))) void multiply_tiles(std::size_t times,
                                                                         float* out) {
  const auto wide = std::bit_cast<std::uint32_t>(out[0]);  // whose upper half is the same in bf16
  alignas(64) float tile[16][16];
  for (auto& row : tile)
    for (float& pair : row) pair = std::bit_cast<float>(wide | wide >> 16);
  _tile_loadconfig(&detail::tile_shapes);
  _tile_loadd(6, tile, 64);
  _tile_loadd(7, tile, 64);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  for (std::size_t n = 0; n < 2 * times; ++n) {
    _tile_dpbf16ps(0, 6, 7);
    _tile_dpbf16ps(1, 6, 7);
    _tile_dpbf16ps(2, 6, 7);
    _tile_dpbf16ps(3, 6, 7);
    _tile_dpbf16ps(4, 6, 7);
    _tile_dpbf16ps(5, 6, 7);
  }
  _tile_stored(0, tile, 64);
  _tile_release();
  for (const auto& row : tile)
    for (const float sum : row) out[2] += sum;
}
// As if a register had all of the numbers that one instruction multiplies: 16 x 16 sums of 32.
constexpr Loops amx = {16 * 16 * 32 * 2, nullptr, nullptr, multiply_tiles,
                       nullptr,          nullptr, nullptr};
#else
#define LAMINA_SET portable
#define LAMINA_VECTOR 16
#define LAMINA_TARGET
#include "cpu/ceilings_loops.hpp"
#endif
#undef LAMINA_SET
#undef LAMINA_VECTOR
#undef LAMINA_TARGET

struct InstructionSet {
  std::string_view name;
  const Loops* loops;
};

/// Narrowest first. Those that multiply bf16 have loops for nothing else.
std::vector<InstructionSet> available(DType t = DType::f32) {
#if defined(__x86_64__)
  std::vector<InstructionSet> sets;
  if (t == DType::f16) return sets;
  if (t == DType::bf16) {
    if (__builtin_cpu_supports("avx512bf16")) sets.push_back({"avx512bf16", &avx512bf16});
    if (detail::may_use_tiles()) sets.push_back({"amx", &amx});
    return sets;
  }
  sets.push_back({"sse2", &sse2::loops});
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    sets.push_back({"avx2", &avx2::loops});
  if (__builtin_cpu_supports("avx512f")) sets.push_back({"avx512", &avx512::loops});
  return sets;
#else
  if (is_narrow(t)) return {};
  return {{"portable", &portable::loops}};
#endif
}

/// Where the threads of a team wait for each other, again and again, without falling asleep: on a
/// busy machine a thread that sleeps wakes up late. OpenMP's barrier puts them to sleep.
class Meeting {
 public:
  void wait(int size) {
    const unsigned round = round_.load();
    if (here_.fetch_add(1) + 1 == size) {
      here_.store(0);
      round_.fetch_add(1);
      return;
    }
    for (int n = 0; round_.load() == round; ++n)
      if (n > 10000) sched_yield();  // the one we wait for may need this core
  }

 private:
  std::atomic<int> here_ = 0;
  std::atomic<unsigned> round_ = 0;
};

/// Repetitions of work(thread, times) per second, of all threads together. A slice is from when the
/// first thread begins to when the last one ends: any single one's clock would miss what the others
/// do while it is interrupted.
template <class Work>
double rate_of_team(const Slices& slices, const Work& work) {
  struct alignas(64) Turn {
    double begin = 0, end = 0;
  };
  const int team = threads();
  int came = team;  // OpenMP may grant fewer
  std::vector<Turn> turns(static_cast<std::size_t>(team));
  Meeting meeting;
  std::size_t times = 0;  // of the next slice; 0 = that was all
  double rate = 0;
  const auto slice = [&](int thread) {
    Turn& turn = turns[std::size_t(thread)];
    meeting.wait(came);
    if (times == 0) return false;
    turn.begin = now();
    work(thread, times);
    turn.end = now();
    meeting.wait(came);
    return true;
  };
#pragma omp parallel num_threads(team)
  {
    const int thread = omp_get_thread_num();
#pragma omp single
    came = omp_get_num_threads();
    if (thread == 0) {
      const auto fill = [&](std::size_t n) { work(0, n); };
      rate = detail::rate_in(slices, fill, [&](std::size_t n) {
        times = n;
        slice(0);
        double begin = turns[0].begin, end = turns[0].end;
        for (int i = 1; i < came; ++i) {
          begin = std::min(begin, turns[std::size_t(i)].begin);
          end = std::max(end, turns[std::size_t(i)].end);
        }
        return end - begin;
      });
      times = 0;
      slice(0);
    } else {
      while (slice(thread)) {
      }
    }
  }
  return rate * came;
}

/// Memory whose pages belong to whoever writes to them first.
struct Buffer {
  explicit Buffer(std::size_t bytes) {
    constexpr std::size_t page = std::size_t(2) << 20;  // few address translations
    bytes = (bytes + page - 1) / page * page;
    data = std::static_pointer_cast<float>(LargePages::take(bytes));
    check(data != nullptr, "not enough memory to measure its bandwidth with ", bytes >> 20, " MiB");
  }
  std::shared_ptr<float> data;
};

/// The first word of a file of /sys; nothing where there is none.
std::string word_in(const std::string& path) {
  std::string word;
  std::ifstream(path) >> word;
  return word;
}

/// "32K" -> 32768.
std::size_t parse_size(const std::string& s) {
  const std::size_t n = std::strtoull(s.c_str(), nullptr, 10);
  const char unit = s.empty() ? ' ' : s.back();
  return n << (unit == 'K' ? 10 : unit == 'M' ? 20 : unit == 'G' ? 30 : 0);
}

/// "0-3,8" -> 5.
int parse_list(const std::string& s) {
  int n = 0;
  for (const char* at = s.c_str(); *at;) {
    char* end = nullptr;
    const long first = std::strtol(at, &end, 10);
    const long last = *end == '-' ? std::strtol(end + 1, &end, 10) : first;
    if (end == at || last < first) break;
    n += int(last - first) + 1;
    at = *end ? end + 1 : end;
  }
  return std::max(1, n);
}

}  // namespace

std::vector<CacheLevel> cache_levels() {
  std::vector<CacheLevel> levels;
  for (int i = 0; i < 16; ++i) {
    const std::string folder = text("/sys/devices/system/cpu/cpu0/cache/index", i, '/');
    const std::string type = word_in(folder + "type");
    if (type.empty()) break;
    const CacheLevel level{"L" + word_in(folder + "level"), parse_size(word_in(folder + "size")),
                           parse_list(word_in(folder + "shared_cpu_list"))};
    if (type != "Instruction" && level.bytes > 0) levels.push_back(level);
  }
  if (levels.empty()) {  // no Linux, or a container without /sys
    const auto size = [](int name, std::size_t otherwise) {
      const long bytes = sysconf(name);
      return bytes > 0 ? std::size_t(bytes) : otherwise;
    };
    levels = {{"L1", size(_SC_LEVEL1_DCACHE_SIZE, std::size_t(32) << 10), 1},
              {"L2", size(_SC_LEVEL2_CACHE_SIZE, std::size_t(1) << 20), 1},
              {"L3", size(_SC_LEVEL3_CACHE_SIZE, std::size_t(32) << 20),
               int(std::thread::hardware_concurrency())}};
  }
  std::sort(levels.begin(), levels.end(),
            [](const CacheLevel& a, const CacheLevel& b) { return a.name < b.name; });
  return levels;
}

std::vector<std::string> instruction_sets(DType dtype) {
  std::vector<std::string> names;
  for (const InstructionSet& set : available(dtype)) names.emplace_back(set.name);
  return names;
}

double fma_rate(std::string_view instruction_set, DType dtype, const Slices& slices) {
  check(dtype == DType::f32 || dtype == DType::f64 || dtype == DType::bf16,
        "multiply-adds are measured in f32, f64 or bf16, got ", name(dtype));
  const Loops* loops = nullptr;
  std::string known;
  for (const InstructionSet& set : available(dtype)) {
    known += text(known.empty() ? "" : ", ", set.name);
    if (set.name == instruction_set) loops = set.loops;
  }
  check(loops, "this processor has no ", instruction_set, ": expected one of ", known);
  // Values go to 0.5 / (1 - 0.5), or sums grow to 2^23: far from infinities and from denormals.
  const double rate = rate_of_team(slices, [&](int, std::size_t times) {
    volatile float start = 0.5F;  // as far as the compiler knows, any number
    float single[3] = {start, start, 0};
    double twofold[3] = {start, start, 0};
    if (dtype == DType::f64) loops->f64(times, twofold);
    if (dtype != DType::f64) (dtype == DType::f32 ? loops->f32 : loops->bf16)(times, single);
    [[maybe_unused]] volatile double sink = single[2] + twofold[2];
  });
  return rate * chains * 2 * double(loops->vector / size_of(dtype));
}

Bandwidths bandwidths(std::size_t bytes, const Slices& slices) {
  const Loops& loops = *available().back().loops;
  const int team = threads();
  constexpr std::size_t block = 128;  // floats that read() takes at a time, at most
  // A large set is gone through piece by piece, so that a slice need not hold all of it.
  constexpr std::size_t most = std::size_t(6) << 20;
  const std::size_t pieces = std::max<std::size_t>((bytes + most - 1) / most, 1);
  const std::size_t piece =
      std::max<std::size_t>(bytes / pieces / sizeof(float) / (3 * block), 1) * 3 * block;
  const std::size_t third = piece / 3, whole = pieces * piece;
  const Buffer buffer(whole * std::size_t(team) * sizeof(float));
#pragma omp parallel for schedule(static, 1) num_threads(team)
  for (int thread = 0; thread < team; ++thread)
    std::fill_n(buffer.data.get() + whole * std::size_t(thread), whole, 0.5F);
  struct alignas(64) Place {
    std::size_t piece = 0;
  };
  std::vector<Place> places(static_cast<std::size_t>(team));
  const auto rate = [&](auto&& loop) {
    return rate_of_team(slices, [&](int thread, std::size_t times) {
      float* const part = buffer.data.get() + whole * std::size_t(thread);
      if (pieces == 1) return loop(part, times);
      for (std::size_t& at = places[std::size_t(thread)].piece; times > 0; --times) {
        loop(part + at * piece, 1);
        at = (at + 1) % pieces;
      }
    });
  };
  const double read = rate([&](float* x, std::size_t times) {
    [[maybe_unused]] volatile float sink = loops.read(x, piece, times);
  });
  const double triad = rate([&](float* a, std::size_t times) {
    loops.triad(a, a + third, a + 2 * third, third, 0.5F, times);
  });
  const double passed = double(piece * sizeof(float));
  const double scale = rate([&](float* x, std::size_t times) {
    volatile float one = 1;  // as far as the compiler knows, any number
    loops.scale(x, piece, one, times);
  });
  return {triad * passed, read * passed, scale * 2 * passed};
}

namespace {

class ProcessorLoops final : public CeilingLoops {
 public:
  int units() const override { return threads(); }
  bool shared() const override { return true; }
  std::vector<CacheLevel> cache_levels() const override { return lamina::cache_levels(); }
  std::vector<std::string> instruction_sets(DType t) const override {
    return lamina::instruction_sets(t);
  }
  double fma_rate(std::string_view set, DType t, const Slices& slices) const override {
    return lamina::fma_rate(set, t, slices);
  }
  Bandwidths bandwidths(std::size_t bytes, const Slices& slices) const override {
    return lamina::bandwidths(bytes, slices);
  }
};

}  // namespace

const CeilingLoops& processor_loops() {
  static const ProcessorLoops loops;
  return loops;
}

}  // namespace lamina
