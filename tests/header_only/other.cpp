// A second source file of a program without the library. Before main() it tries what is missing:
// each must be an Error that says so.
#include <lamina/lamina.hpp>

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

}  // namespace
