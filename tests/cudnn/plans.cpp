// cuDNN plans for a GPU that is not there: every convolution and linear layer of every model, in
// every type, has ways that need no compiler at run time; also as plans split them. The first of
// them becomes a plan.
#include "catch.hpp"
#include "gpu/models.hpp"
#include "gpu/weighted.hpp"

#include <lamina/base/file.hpp>

using namespace lamina;
using namespace lamina::test;
using cuda::Convolution;

namespace {

const cuda::Gpu& h200() {
  static const cuda::Gpu gpu(read_file(LAMINA_GPU_PROPERTIES, 1 << 20));
  return gpu;
}

/// Null where it is cuBLAS's.
const cuda::CudnnGraph* graph_of(const cuda::Candidate& candidate) {
  return dynamic_cast<const cuda::CudnnGraph*>(candidate.problem.get());
}

/// How many ways there are; of the first one, a plan.
void check_ways(const std::string& what, const std::vector<cuda::Candidate>& candidates,
                bool make_plans, bool tf32) {
  CAPTURE(what);
  int graphs = 0;
  for (const cuda::Candidate& candidate : candidates) {
    const cuda::CudnnGraph* const graph = graph_of(candidate);
    if (!graph) continue;
    ++graphs;
    int ready = 0;
    for (const cuda::Engine& engine :
         graph->engines(h200(), {.tf32 = tf32, .deterministic = true})) {
      if (engine.compiled) continue;
      if (++ready > 1 || !make_plans) continue;
      const cuda::CudnnPlan plan(*graph, engine, h200());
      CHECK(plan.workspace() <= engine.workspace);
    }
    CHECK(ready > 0);
  }
  CHECK(graphs > 0);
}

/// Whether there are candidates in blocks among them.
bool blocks(const std::vector<cuda::Candidate>& candidates) {
  return candidates.back().wiring.named == "blocks+";
}

void check_all(const Convolutions& all, bool make_plans, bool tf32 = false) {
  for (const auto& [name, c] : all) {
    check_ways(c.text(Pass::forward), forward_candidates(c), make_plans, tf32);
    check_ways(c.text(Pass::input_grad), input_grad_candidates(c), make_plans, tf32);
    check_ways(c.text(Pass::weight_grad), weight_grad_candidates(c), make_plans, tf32);
  }
}

}  // namespace

TEST_CASE("cuDNN makes plans for every convolution of every model") {
  using Type = std::pair<DType, bool>;  // and whether as TF32
  const auto [t, tf32] =
      GENERATE(Type(DType::bf16, false), Type(DType::f16, false), Type(DType::f32, false),
               Type(DType::f32, true), Type(DType::f64, false));
  const Convolutions all = convolutions(t, 32, {"data"});
  CHECK(all.size() > 60);
  check_all(all, true, tf32);
  int in_blocks = 0;
  for (const auto& [name, c] : all)
    in_blocks += blocks(forward_candidates(c)) && blocks(weight_grad_candidates(c));
  CHECK(in_blocks >= 3);  // the first ones
}

TEST_CASE("cuDNN has ways for what plans make of convolutions") {
  const DType t = DType::bf16;
  check_all(convolutions(t, 32, {"owt", "spatial", "filter"}), false);
}

TEST_CASE("cuDNN has ways for the convolutions that tests compute") {
  const DType t = GENERATE(DType::bf16, DType::f16, DType::f32, DType::f64);
  Convolutions all;
  for (const ConvGeometry& g : geometries) {
    const Convolution c{g, {2, 6, 7, 5}, t};  // without what comes behind it
    all.emplace(c.text(Pass::forward), c);
  }
  for (const First& f : firsts) {
    const Convolution c{f.geometry, f.x, t};
    all.emplace(c.text(Pass::forward), c);
  }
  for (const Shape& x : {Shape{3, 7, 1, 1}, Shape{3, 4, 2, 3}}) {
    const Convolution c = cuda::as_convolution(5, true, {x, t, {}}, {});
    all.emplace(c.text(Pass::forward), c);
  }
  check_all(all, false);
}

TEST_CASE("cuDNN's ways are those that were asked for") {
  const Convolution c{{.channels = 64, .kernel = 3, .pad = 1}, {32, 64, 56, 56}, DType::f32};
  const auto candidates = input_grad_candidates(c);
  const cuda::CudnnGraph& graph = *graph_of(candidates[0]);
  const auto exact = graph.engines(h200()), tf32 = graph.engines(h200(), {.tf32 = true});
  CHECK(exact.size() > 0);
  CHECK(tf32.size() > exact.size());
  CHECK(graph.engines(h200(), {.deterministic = true}).size() < exact.size());
  const auto small = graph.engines(h200(), {.tf32 = true, .most_workspace = 1 << 20});
  CHECK(small.size() > 0);
  CHECK(small.size() < tf32.size());
  for (const cuda::Engine& engine : small) CHECK(engine.workspace <= 1 << 20);
}

TEST_CASE("a GPU's properties that make no sense are refused") {
  CHECK_THROWS_WITH(cuda::Gpu("no JSON"), Catch::Contains("cuDNN: take a GPU's properties"));
}
