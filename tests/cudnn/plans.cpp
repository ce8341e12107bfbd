// cuDNN plans for a GPU that is not there: every convolution and linear layer of every model, in
// every type, has ways that need no compiler at run time; also as plans split them. The first of
// them becomes a plan.
#include "catch.hpp"
#include "cuda/cudnn_conv.hpp"

#include <lamina/base/file.hpp>
#include <lamina/comm/imagined.hpp>
#include <lamina/kernels/reference.hpp>
#include <lamina/kernels/reference/impl/planning.hpp>
#include <lamina/network/models.hpp>
#include <lamina/network/placed.hpp>
#include <lamina/plan/plan.hpp>

#include <map>

using namespace lamina;
using cuda::Convolution;

namespace {

/// Notes what convolutions a network would have.
class Noting final : public Reference {
 public:
  using All = std::map<std::string, Convolution>;

  explicit Noting(All& all) : Reference(detail::no_memory()), all_(all) {}

  std::unique_ptr<WeightedKernel> conv(const ConvGeometry& g, const Form& x,
                                       const Epilogue& e) const override {
    note({g, x.shape, x.dtype, e});
    return Reference::conv(g, x, e);
  }
  std::unique_ptr<WeightedKernel> linear(std::int64_t features, bool bias, const Form& x,
                                         const Epilogue& e) const override {
    note(cuda::as_convolution(features, bias, x, e));
    return Reference::linear(features, bias, x, e);
  }
  bool fuses(Fusible, const Epilogue& e) const override { return e.rectifies(); }

 private:
  void note(const Convolution& c) const { all_.emplace(c.text(Pass::forward), c); }

  All& all_;
};

/// Of all models under these plans on 4 ranks.
Noting::All convolutions(DType t, std::initializer_list<const char*> plans) {
  Noting::All all;
  const auto backend = std::make_shared<const Noting>(all);
  for (const std::string_view model : model_names()) {
    const Network net = make_model(model);
    for (const char* plan : plans) {
      constexpr int ranks = 4;
      PlaceOptions options{.batch = 32, .backend = backend, .dtype = t};
      options.splits = splits_of(decide(built_in_plan(plan, net, 32, ranks), net, 32));
      for (const bool fuse : {false, true}) {
        ImaginedRanks imagined(ranks);
        for (int r = 0; r < ranks; ++r) {
          options.ranks = imagined.as(r), options.fuse = fuse;
          const PlacedNetwork placed(net, options);
        }
      }
    }
  }
  return all;
}

const cuda::Gpu& h200() {
  static const cuda::Gpu gpu(read_file(LAMINA_GPU_PROPERTIES, 1 << 20));
  return gpu;
}

/// How many ways there are; of the first one, a plan.
void check_ways(const std::string& what, const std::vector<cuda::Candidate>& candidates,
                bool make_plans) {
  CAPTURE(what);
  for (const cuda::Candidate& candidate : candidates) {
    int ready = 0;
    for (const cuda::Way& way : candidate.graph.ways(h200(), {.deterministic = true})) {
      if (way.compiled) continue;
      if (++ready > 1 || !make_plans) continue;
      const cuda::CudnnPlan plan(candidate.graph, way, h200());
      CHECK(plan.workspace() <= way.workspace);
    }
    CHECK(ready > 0);
  }
}

void check_all(const Noting::All& all, bool make_plans) {
  for (const auto& [name, c] : all) {
    check_ways(c.text(Pass::forward), forward_candidates(c), make_plans);
    check_ways(c.text(Pass::input_grad), input_grad_candidates(c), make_plans);
    check_ways(c.text(Pass::weight_grad), weight_grad_candidates(c), make_plans);
  }
}

}  // namespace

TEST_CASE("cuDNN makes plans for every convolution of every model") {
  const DType t = GENERATE(DType::bf16, DType::f16, DType::f32, DType::f64);
  const Noting::All all = convolutions(t, {"data"});
  CHECK(all.size() > 60);
  check_all(all, true);
}

TEST_CASE("cuDNN has ways for what plans make of convolutions") {
  const DType t = DType::bf16;
  check_all(convolutions(t, {"owt", "spatial", "filter"}), false);
}

TEST_CASE("cuDNN's ways are those that were asked for") {
  const Convolution c{{.channels = 64, .kernel = 3, .pad = 1}, {32, 64, 56, 56}, DType::f32};
  const auto graph = std::move(input_grad_candidates(c)[0].graph);
  const auto exact = graph.ways(h200()), tf32 = graph.ways(h200(), {.tf32 = true});
  CHECK(exact.size() > 0);
  CHECK(tf32.size() > exact.size());
  CHECK(graph.ways(h200(), {.deterministic = true}).size() < exact.size());
  const auto small = graph.ways(h200(), {.tf32 = true, .most_workspace = 1 << 20});
  CHECK(small.size() > 0);
  CHECK(small.size() < tf32.size());
  for (const cuda::Way& way : small) CHECK(way.workspace <= 1 << 20);
}

TEST_CASE("a GPU's properties that make no sense are refused") {
  CHECK_THROWS_WITH(cuda::Gpu("no JSON"), Catch::Contains("cuDNN: take a GPU's properties"));
}
