// Names of back ends.
#include "catch.hpp"

#include <lamina/kernels/backends.hpp>
#include <lamina/kernels/gpu_name.hpp>

using namespace lamina;

TEST_CASE("back ends are found by name") {
  CHECK(make_backend("reference", DType::f64)->name() == "reference");
  CHECK(make_backend("auto", DType::f64)->name() == "reference");
  CHECK(make_backend("auto", DType::f32)->name() == (has_onednn() ? "onednn" : "reference"));
  CHECK_THROWS_AS(make_backend("onednn", DType::f64), Error);
  if (has_onednn()) {
    CHECK_THROWS_WITH(make_backend("onednn", DType::f64),
                      ContainsSubstring("'onednn'") && ContainsSubstring("f64"));
  }
  if (!has_cuda()) {
    CHECK_THROWS_WITH(make_backend("cuda", DType::f32), ContainsSubstring("not built in"));
  } else if (cuda_devices() == 0) {
    for (const char* name : {"cuda:1", "cuda:tf32", "cuda:deterministic:1"}) {
      CHECK_THROWS_WITH(make_backend(name, DType::f32), ContainsSubstring("no GPU can be used"));
    }
  }
  for (const char* name : {"fast", "cuda:", "cuda:x", "cuda:1x", "cuda:-1", "cudax",
                           "cuda:tf32:", "tf32", ":tf32", "onednn:tf32", "cuda::tf32", "cuda:0:1",
                           "cuda:workspace=", "cuda:workspace=-1", "cuda:workspace=1k"}) {
    CHECK_THROWS_WITH(make_backend(name, DType::f32),
                      ContainsSubstring("expected auto, reference, onednn, onednn:mixed, cuda or "
                                        "cuda:N, which may have :tf32, "));
  }
}

TEST_CASE("a GPU's name says which one, and what its kernels may do") {
  const auto text = [](const char* name) { return GpuName::of(name)->text(); };
  for (const char* name : {"cuda", "cuda:0", "cuda:12", "cuda:tf32", "cuda:3:deterministic",
                           "cuda:1:tf32:deterministic:workspace=1000", "cuda:workspace=0"})
    CHECK(text(name) == name);
  CHECK(text("cuda:workspace=7:deterministic:2:tf32") == "cuda:2:tf32:deterministic:workspace=7");
  CHECK(GpuName::of("cuda")->number == -1);
  CHECK(GpuName::of("cuda:5:workspace=64")->number == 5);
  CHECK(GpuName::of("cuda:5:workspace=64")->demands.most_workspace == 64);
  CHECK_FALSE(GpuName::of("onednn"));
}
