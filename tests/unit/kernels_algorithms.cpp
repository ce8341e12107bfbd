// Every implementation that the back end can choose for a convolution, forced in turn, and what it
// chooses by itself, against the reference in f64: over windows, paddings, strides and groups.
// CTest runs this for several instruction sets.
#include "catch.hpp"
#include "support/kernel_cases.hpp"

#include <lamina/base/threads.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/kernels/instruction_set.hpp>
#include <lamina/tensor/reserve.hpp>

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>

using namespace lamina;
using namespace lamina::test;

namespace {

struct Geometry {
  Shape x;
  ConvGeometry g;

  std::string text() const {
    return lamina::text(x, ", ", g.channels, " channels, kernel ", g.kernel.h, 'x', g.kernel.w,
                        ", stride ", g.stride.h, ", pad ", g.pad.top, ' ', g.pad.left, ' ',
                        g.pad.bottom, ' ', g.pad.right, ", dilation ", g.dilation.h, ", groups ",
                        g.groups);
  }
  bool fits() const { return g.output(x).h > 0 && g.output(x).w > 0; }
};

Geometry geometry(Shape x, std::int64_t channels, Pair kernel, Pad pad, std::int64_t stride = 1,
                  std::int64_t dilation = 1, std::int64_t groups = 1) {
  ConvGeometry g;
  g.channels = channels, g.kernel = kernel, g.pad = pad, g.stride = stride;
  g.dilation = dilation, g.groups = groups;
  return {x, g};
}

/// All ways to pad by 0 to 2 on four sides: 81.
std::vector<Pad> all_pads() {
  std::vector<Pad> pads;
  for (int t = 0; t < 3; ++t)
    for (int l = 0; l < 3; ++l)
      for (int b = 0; b < 3; ++b)
        for (int r = 0; r < 3; ++r) pads.push_back({t, l, b, r});
  return pads;
}

/// Winograd's transforms amplify rounding by one to two digits.
constexpr double tolerance = 3e-4;

/// y, dx, dw and db.
using Results = std::vector<Values>;

class Sweep {
 public:
  /// Checks what oneDNN chooses by itself and, where `forced`, all else that it offers.
  void check(const Geometry& at, bool forced) {
    if (!at.fits()) return;
    const Shape w = at.g.weight(at.x), y = at.g.output(at.x);
    in_ = {random_values(at.x.size(), 1), random_values(w.size(), 2),
           random_values(at.g.channels, 3)};
    dy_ = random_values(y.size(), 4);
    Setup f64{*reference_};
    const Results want =
        run_weighted(f64, *reference_->conv(at.g, {at.x, DType::f64, {}}), in_, dy_);
    std::set<std::string> offered;
    INFO(at.text());
    compare(at, {.offered = forced ? &offered : nullptr}, want);
    for (const std::string& name : offered)
      if (name.find("ref") == std::string::npos) compare(at, {.only = name}, want);
  }

  /// Implementations that computed something.
  const std::set<std::string>& names() const { return names_; }

 private:
  void compare(const Geometry& at, Choice choice, const Results& want) {
    const auto backend = onednn_backend(choice);
    Setup f32{*backend, DType::f32};
    const auto kernel = backend->conv(at.g, {at.x, DType::f32, {}});
    INFO("forced: '" << choice.only << "', taken: " << kernel->algorithm);
    Results got;
    CHECK_NOTHROW(got = run_weighted(f32, *kernel, in_, dy_));
    REQUIRE(got.size() == want.size());
    note(kernel->algorithm);
    for (std::size_t i = 0; i < got.size(); ++i) {
      // The one that is known to be wrong, which only a test can get.
      const bool known = i == 1 && choice.only.find("wino") != std::string::npos &&
                         at.g.pad.top != at.g.pad.bottom;
      if (known) continue;
      static constexpr const char* of[] = {"y", "dx", "dw", "db"};
      INFO(of[i]);
      CHECK(difference(got[i], want[i]) <= tolerance);
    }
  }

  void note(const std::string& algorithm) {
    std::size_t begin = 0;
    for (std::size_t bar; (bar = algorithm.find('|', begin)) != std::string::npos; begin = bar + 1)
      names_.insert(algorithm.substr(begin, bar - begin));
    names_.insert(algorithm.substr(begin));
  }

  std::shared_ptr<const Backend> reference_ = reference_backend();
  std::vector<Values> in_;
  Values dy_;
  std::set<std::string> names_;
};

/// Runs `work` with that many threads of this thread's kernels.
template <class Work>
void with_threads(int n, Work&& work) {
  const int before = threads();
  set_threads(n);
  work();
  set_threads(before);
}

/// oneDNN 3 has none for training.
bool has_winograd() {
  const std::string with = onednn_backend()->description();
  return with.starts_with("oneDNN 2") && with.find("AVX-512") != std::string::npos;
}

}  // namespace

TEST_CASE("every algorithm of a 3x3 convolution is right for all paddings", "[isa]") {
  if (!has_onednn()) return;
  for (const int n : {1, 2})
    with_threads(n, [&] {
      Sweep sweep;
      const auto pads = all_pads();
      for (std::size_t i = 0; i < pads.size(); i += n == 1 ? 1 : 4)  // threads share no rows
        sweep.check(geometry({2, 16, 6, 7}, 32, 3, pads[i]), true);
      CHECK(sweep.names().size() >= 2);  // or nothing was forced
      if (n == 1 && has_winograd()) {
        INFO("no Winograd among those that were tried");
        bool winograd = false;
        for (const auto& name : sweep.names()) winograd |= name.find("wino") != std::string::npos;
        CHECK(winograd);
      }
    });
}

TEST_CASE("every algorithm is right for other windows, strides, dilations and groups", "[isa]") {
  if (!has_onednn()) return;
  const std::vector<Pad> pads = all_pads();
  Sweep sweep;
  std::size_t at = 0;
  for (const Pair kernel : {Pair(1), Pair(2), Pair(5), Pair(3, 1), Pair(1, 3), Pair(7)})
    for (const int stride : {1, 2, 3})
      for (const int dilation : {1, 2})
        for (const int groups : {1, 2, 32})
          with_threads(int(at % 2) + 1, [&] {
            const Pad& pad = pads[(at += 29) % pads.size()];
            sweep.check(geometry({2, 32, 11, 13}, 32, kernel, pad, stride, dilation, groups), true);
          });
  CHECK(sweep.names().size() >= 2);
}

TEST_CASE("every algorithm is right for a few channels, and for odd numbers of them", "[isa]") {
  if (!has_onednn()) return;
  struct Channels {
    std::int64_t x, y;
  };
  const std::vector<Pad> pads = all_pads();
  Sweep sweep;
  std::size_t at = 0;
  for (const Channels c : {Channels{1, 6}, {3, 16}, {4, 8}, {6, 16}, {8, 12}, {16, 1}, {20, 23}})
    for (const int kernel : {1, 3, 5})
      for (const int stride : {1, 2})
        for (int i = 0; i < 3; ++i)
          with_threads(int(at % 2) + 1, [&] {
            const Pad& pad = pads[(at += 29) % pads.size()];
            sweep.check(geometry({3, c.x, 11, 13}, c.y, kernel, pad, stride), true);
          });
  CHECK(sweep.names().size() >= 2);
}

TEST_CASE("long windows around few channels are right, also in images padded beforehand", "[isa]") {
  if (!has_onednn()) return;
  Sweep sweep;
  for (const Pad& pad : {Pad(2), Pad(5), Pad{0, 3, 1, 0}, Pad{4, 0, 0, 2}})
    for (const std::int64_t channels : {1, 3})
      for (const Pair kernel : {Pair(11), Pair{3, 9}})
        for (const int n : {1, 2})
          with_threads(n, [&] {
            sweep.check(geometry({3, channels, 35, 38}, 16, kernel, pad, 4), n == 1);
          });
  bool padded = false;
  for (const auto& name : sweep.names()) padded |= name.starts_with("padded ");
  if (onednn_backend()->description().starts_with("oneDNN 2"))
    CHECK(padded == (instruction_set() == InstructionSet::avx2));
}

// Winograd's own sizes on AVX-512, for one thread and for two: without force, as users have it.
TEST_CASE("what is chosen by itself is right where that is Winograd") {
  if (!has_onednn() || !has_winograd()) {
    WARN("no Winograd of oneDNN's on this processor: nothing to test");
    return;
  }
  for (const int n : {1, 2})
    with_threads(n, [&] {
      Sweep sweep;
      for (const Shape x : {Shape{16, 16, 17, 32}, Shape{64, 64, 5, 8}})
        for (const Pad pad : {Pad{1, 1, 1, 1}, Pad{1, 1, 0, 1}, Pad{0, 1, 1, 1}, Pad{0, 0, 0, 0}})
          if (n == 1 || x.h == 5)
            sweep.check(geometry({n == 1 ? x.n : 192, x.c, x.h, x.w}, x.c, 3, pad), false);
      bool winograd = false;
      for (const auto& name : sweep.names()) winograd |= name.find("wino") != std::string::npos;
      CHECK(winograd);
    });
}

namespace {

/// Where oneDNN 2's Winograd gives a wrong dx.
const Geometry unlike_pads = geometry({16, 16, 17, 32}, 16, 3, {1, 1, 0, 1});

/// What was asked for, and how often a comparison was made.
struct Told final : Verdicts {
  std::optional<double> says;
  int kept = 0;

  std::optional<double> find(const std::string& what) override {
    return says ? says : Verdicts::find(what);
  }
  double keep(const std::string& what, double difference) override {
    ++kept;
    return Verdicts::keep(what, difference);
  }
};

/// Ours is for processors that oneDNN's is not for.
bool onednns_winograd() { return instruction_set() >= InstructionSet::avx512_core; }

std::unique_ptr<WeightedKernel> kernel_of(const Geometry& at, Choice choice) {
  return onednn_backend(std::move(choice))->conv(at.g, {at.x, DType::f32, {}});
}

}  // namespace

TEST_CASE("an algorithm that differs from the direct one is not taken, with a remark") {
  if (!has_onednn()) return;
  with_threads(1, [&] {
    const auto told = std::make_shared<Told>();
    const auto kernel = kernel_of(unlike_pads, {.avoid_known = false, .verdicts = told});
    if (told->kept == 0) return;  // oneDNN has nothing but direct kernels here
    const bool wrong = !kernel->remark.empty();
    INFO(kernel->algorithm << ": " << kernel->remark);
    CHECK(told->kept <= 3);
    Sweep sweep;  // right, whatever was found out
    sweep.check(unlike_pads, false);
    if (!onednns_winograd()) {
      CHECK(!wrong);
    } else if (onednn_backend()->description().find("oneDNN 2.6") != std::string::npos) {
      CHECK(wrong);
      CHECK(kernel->remark.find("dx by jit_wino_4x3") != std::string::npos);
    }
    // Each is compared once: whoever comes later goes by the verdict.
    const int kept = told->kept;
    CHECK(kernel_of(unlike_pads, {.avoid_known = false, .verdicts = told})->remark ==
          kernel->remark);
    CHECK(told->kept == kept);
  });
}

TEST_CASE("verdicts decide, and what is known to be wrong is not even compared") {
  if (!has_onednn()) return;
  with_threads(1, [&] {
    const auto told = std::make_shared<Told>();
    const auto chosen = kernel_of(unlike_pads, {.verdicts = told});
    CHECK(chosen->remark.empty());
    if (told->kept == 0) return;
    told->says = 1;
    const auto direct = kernel_of(unlike_pads, {.verdicts = told});
    CHECK(direct->algorithm.find("wino") == std::string::npos);
    const std::string by = onednns_winograd() ? "y by jit_wino" : "y by lamina:winograd";
    CHECK(direct->remark.find(by) != std::string::npos);
    told->says = 0;
    const auto trusted = kernel_of(unlike_pads, {.avoid_known = false, .verdicts = told});
    CHECK(trusted->remark.empty());
    CHECK(trusted->algorithm.find("wino") != std::string::npos);
  });
}

namespace {

/// Bytes of this process that are in memory.
std::size_t resident() {
  std::size_t all = 0, pages = 0;
  std::ifstream("/proc/self/statm") >> all >> pages;
  return pages * std::size_t(sysconf(_SC_PAGESIZE));
}

}  // namespace

TEST_CASE("the memory of operands that kernels were tried on is given back") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
  WARN("the heap is another one than glibc's: nothing to test");
  return;
#endif
  if (!has_onednn()) return;
  with_threads(1, [] {
    const auto backend = onednn_backend();  // which knows no verdicts
    const Geometry first = geometry({1, 64, 24, 24}, 64, 3, 1);
    backend->conv(first.g, {first.x, DType::f32, {}});  // oneDNN itself is in memory then
    backend->make_room();
    const std::size_t before = resident();
    std::vector<std::unique_ptr<WeightedKernel>> kernels;
    std::size_t scratch = 0;
    for (const std::int64_t size : {24, 32, 48, 64, 80, 96}) {
      const Geometry at = geometry({4, 64, size, size}, 64, 3, 1);
      kernels.push_back(backend->conv(at.g, {at.x, DType::f32, {}}));
      scratch = std::max(scratch, kernels.back()->scratch);
    }
    backend->make_room();
    CHECK(resident() < before + scratch + (std::size_t(32) << 20));
  });
}
