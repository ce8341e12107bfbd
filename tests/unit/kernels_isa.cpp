// What the kernels must hold with every instruction set. oneDNN reads DNNL_MAX_CPU_ISA once, so
// CTest runs these, and all else with the tag [isa], in processes of their own.
#include "catch.hpp"
#include "cpu/onednn_isa.hpp"

#include <lamina/base/threads.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/kernels/instruction_set.hpp>
#include <lamina/network/models.hpp>
#include <lamina/network/placed.hpp>

using namespace lamina;

namespace {

/// Whether a pass runs by oneDNN's reference: "ref:any", but not "gemm:ref".
bool by_reference(const std::string& algorithm) {
  return ("|" + algorithm).find("|ref") != std::string::npos;
}

bool has(std::string_view isa) {
  return onednn_backend()->description().find(isa) != std::string::npos;
}

std::unique_ptr<WeightedKernel> conv(Shape x, const ConvGeometry& g) {
  return onednn_backend()->conv(g, {x, DType::f32, {}});
}

}  // namespace

namespace {

/// Takes all for right: what is compared elsewhere need not be here, on whole models.
struct Trusting final : Verdicts {
  std::optional<double> find(const std::string&) override { return 0.0; }
};

}  // namespace

TEST_CASE("what oneDNN will take is known beforehand", "[isa]") {
  if (!has_onednn()) return;
  const InstructionSet expected = instruction_set();
  const std::string settled = onednn_backend()->description();
  CHECK(instruction_set() == expected);
  CHECK(expected != InstructionSet::none);
  limit_instruction_set(InstructionSet::sse41);  // too late
  CHECK(instruction_set() == expected);
  CHECK(onednn_backend()->description() == settled);
}

TEST_CASE("of instruction sets that only newer versions of oneDNN know, the known part counts") {
  if (!has_onednn()) return;
  using enum InstructionSet;
  const std::pair<unsigned, InstructionSet> sets[] = {
      {0, none},
      {1, sse41},
      {7, avx2},
      {0x27, avx512_core},
      {0x67, avx512_core_vnni},
      {0xe7, avx512_core_bf16},
      {0x3e7, avx512_core_bf16},    // with AMX
      {0x1ef, avx512_core_bf16},    // with f16, in version 3
      {0x1fef, avx512_core_bf16}};  // and with AMX for f16
  for (const auto& [bits, set] : sets) {
    CAPTURE(bits);
    CHECK(detail::instruction_set_of(bits) == set);
  }
}

TEST_CASE("no model runs by oneDNN's reference", "[isa]") {
  if (!has_onednn()) return;
  const int before = threads();
  for (const int count : {1, 2}) {
    set_threads(count);
    for (const std::string_view model : model_names()) {
      for (const std::int64_t batch : {1, 16}) {
        const PlacedNetwork net(
            make_model(model),
            {.batch = batch,
             .backend = onednn_backend({.verdicts = std::make_shared<Trusting>()})});
        for (const Step& step : net.steps()) {
          CAPTURE(model, batch, count, step.name, step.placement.algorithm);
          CHECK_FALSE(by_reference(step.placement.algorithm));
        }
      }
    }
  }
  set_threads(before);
}

TEST_CASE("few channels, groups and dilations do not run by oneDNN's reference", "[isa]") {
  if (!has_onednn()) return;
  for (const std::int64_t c : {1, 2, 3, 6, 16, 24})
    for (const std::int64_t k : {6, 20, 64})
      for (const std::int64_t r : {1, 3, 5})
        for (const std::int64_t stride : {1, 2})
          for (const std::int64_t groups : {std::int64_t(1), std::int64_t(2), c})
            for (const std::int64_t dilation : {1, 2}) {
              if (c % groups != 0 || k % groups != 0) continue;
              ConvGeometry g;
              g.channels = k, g.kernel = r, g.stride = stride, g.pad = dilation * (r / 2);
              g.groups = groups, g.dilation = dilation;
              const auto kernel = conv({4, c, 28, 28}, g);
              CAPTURE(c, k, r, stride, groups, dilation, kernel->algorithm);
              CHECK_FALSE(by_reference(kernel->algorithm));
            }
}

TEST_CASE("where oneDNN has but loops both ways, the reference's are taken", "[isa]") {
  if (!has_onednn()) return;
  const auto backend = onednn_backend();
  const auto expect = [](const UnaryKernel& kernel) {
    const std::string& how = kernel.algorithm;
    CAPTURE(how);
    const bool both = how.find("simple_nchw") != how.npos && how.find('|') == how.npos;
    CHECK_FALSE(both);
    CHECK((how.find("ref") == how.npos || how.find("jit") != how.npos));
  };
  expect(*backend->softmax({{2, 21, 8, 8}, DType::f32, {}}));
  expect(*backend->softmax({{2, 21, 8, 8}, DType::bf16, {}}));
  for (const int size : {3, 5, 7}) {
    LrnGeometry g;
    g.size = size;
    expect(*backend->lrn(g, {{2, 16, 9, 9}, DType::f32, {}}));
  }
  PoolGeometry g;
  g.kind = PoolGeometry::Kind::average, g.window = 3, g.pad = 1;
  expect(*backend->pool(g, {{2, 16, 9, 9}, DType::f32, {}}));
}

TEST_CASE("3x3 convolutions of many pixels go by Winograd's filtering on AVX2", "[isa]") {
  if (!has_onednn() || !has(", AVX2")) return;
  ConvGeometry g;
  g.channels = 64, g.kernel = 3, g.pad = 1;
  CHECK(conv({4, 64, 28, 28}, g)->algorithm == "lamina:winograd");
  CHECK(conv({1, 64, 7, 7}, g)->algorithm == "jit:avx2");  // transforming w would take longer
  g.stride = 2;
  CHECK(conv({4, 64, 28, 28}, g)->algorithm == "jit:avx2");
}
