// The convolutions of all models.
#pragma once

#include "cuda/libraries/candidates.hpp"

#include <lamina/comm/imagined.hpp>
#include <lamina/kernels/reference.hpp>
#include <lamina/kernels/reference/impl/planning.hpp>
#include <lamina/network/models.hpp>
#include <lamina/network/placed.hpp>
#include <lamina/plan/plan.hpp>

#include <map>

namespace lamina::test {

/// By all that the time of forward depends on. Linear layers are among them.
using Convolutions = std::map<std::string, cuda::Convolution>;

/// Notes what convolutions a network would have.
class Noting final : public Reference {
 public:
  explicit Noting(Convolutions& all) : Reference(detail::no_memory()), all_(all) {}

  std::unique_ptr<WeightedKernel> conv(const ConvGeometry& g, const Form& x,
                                       const Epilogue& e) const override {
    note(cuda::Convolution{g, x.shape, x.dtype, e});
    return Reference::conv(g, x, e);
  }
  std::unique_ptr<WeightedKernel> linear(std::int64_t features, bool bias, const Form& x,
                                         const Epilogue& e) const override {
    note(cuda::as_convolution(features, bias, x, e));
    return Reference::linear(features, bias, x, e);
  }
  bool fuses(Fusible, const Epilogue& e) const override { return e.rectifies(); }

 private:
  void note(const cuda::Convolution& c) const { all_.emplace(c.text(Pass::forward), c); }

  Convolutions& all_;
};

/// Of all models under these plans on 4 ranks, which have so many samples together.
inline Convolutions convolutions(DType t, std::int64_t batch,
                                 std::initializer_list<const char*> plans) {
  Convolutions all;
  const auto backend = std::make_shared<const Noting>(all);
  for (const std::string_view model : model_names()) {
    const Network net = make_model(model);
    for (const char* plan : plans) {
      constexpr int ranks = 4;
      PlaceOptions options{.batch = batch, .backend = backend, .dtype = t};
      options.splits = splits_of(decide(built_in_plan(plan, net, batch, ranks), net, batch));
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

}  // namespace lamina::test
