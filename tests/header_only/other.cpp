// A second source file of a program without the library. Before main() it tries what is missing:
// each must be an Error that says so; and layers that are split among ranks.
#include <lamina/lamina.hpp>

#include <cmath>
#include <cstdlib>
#include <iostream>
#include <string_view>

namespace {

template <class Use>
void expect(std::string_view words, Use&& use) {
  std::string_view said = "nothing";
  try {
    use();
  } catch (const lamina::Error& e) {
    said = e.what();
    if (said.find(words) != said.npos && said.find("LAMINA_HEADER_ONLY") != said.npos) return;
    std::cerr << "said: " << said << '\n';
  }
  std::cerr << "expected an error about " << words << '\n';
  std::exit(1);
}

const bool tried = [] {
  using namespace lamina;
  expect("checkpoints", [] { read_progress("a.safetensors"); });
  expect("plans", [] { read_plan("plan.json"); });
  expect("clusters", [] { find_cluster("cluster.json"); });
  expect("images", [] { open_data("cifar10:data"); });
  expect("oneDNN", [] { make_backend("onednn", DType::f32); });
  expect("CUDA", [] { make_backend("cuda", DType::f32); });
  expect("files", [] { JsonLog log("train.jsonl"); });
  expect("reports", [] { report_html(Profile()); });
  expect("ceilings", [] { measure_machine(World(), *reference_backend()); });
  check(make_backend("auto", DType::f32)->name() == "reference", "another back end was found");
  check(find_cluster("h100-ndr").of(64).node_count() == 8, "a cluster is not ready-made");
  check(!open_counters() && !has_onednn() && !has_cuda() && mpi_library().empty(), "more is there");
  return true;
}();

/// Of a training on so many ranks, which share rows and features.
double loss_on(int ranks) {
  using namespace lamina;
  double loss = 0;
  run_ranks(ranks, [&](World& world) {
    Network net({.c = 2, .h = 8, .w = 6});
    net.add<Conv2D>({.channels = 4, .kernel = 3, .pad = 1}, "conv");
    net.add<Linear>({.features = 4}, "fc");
    net.add<SoftmaxCrossEntropy>({}, "loss");
    Plan plan{.ranks = ranks};
    plan.split("conv", {.height = ranks}), plan.split("fc", {.channel = ranks});
    Trainer trainer(net, world, SGD{.rate = 0.1},
                    {.batch = 8, .splits = splits_of(decide(plan, net, 8))});
    const auto data =
        synthetic({.limit = 32, .channels = 2, .height = 8, .width = 6, .classes = 4});
    for (const Epoch& epoch : trainer.fit(*data, {.epochs = 2}))
      if (world.rank() == 0) loss = epoch.loss;
  });
  return loss;
}

const bool split = [] {
  const double one = loss_on(1), two = loss_on(2);
  if (one > 0 && std::abs(one - two) < 1e-5) return true;
  std::cerr << "split among ranks the loss is " << two << ", not " << one << '\n';
  std::exit(1);
}();

}  // namespace
