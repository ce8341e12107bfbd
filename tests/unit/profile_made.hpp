// A profile made by hand, with all that a table and a file must show.
#pragma once

#include <lamina/profile/profile.hpp>

namespace lamina::test {

inline ProfileRow made_row(int layer, std::string name, std::string type, Pass pass, double us,
                           Work work) {
  ProfileRow r;
  r.layer = layer, r.name = std::move(name), r.type = std::move(type), r.pass = pass;
  r.time = {us * 1e-6, us * 1e-6, us * 1e-6, 0};
  r.work = work;
  r.step_min = r.step_median = us * 1e-6;
  return r;
}

/// Of one rank, or of two of which the second one is slower.
inline Profile made_profile(int ranks = 1) {
  Profile p;
  p.version = "0.1.0", p.model = "made", p.backend = "onednn 2.6", p.dtype = "f32";
  p.optimizer = "sgd momentum 0.9", p.ranks = ranks, p.steps = 10, p.batch = 32;
  const Work conv{236.027e6, 12.883e6}, relu{0.8e6, 6.4e6};
  for (const Pass pass : {Pass::forward, Pass::weight_grad}) {
    p.rows.push_back(made_row(1, "conv1", "Conv2D", pass, 1200.25, conv));
    p.rows.back().describe = "64 7x7 s2 p3";
    p.rows.back().algorithm = "jit:avx512_core";
    p.rows.back().workspace = 1.5e6;
  }
  p.rows.push_back(made_row(1, "conv1", "Conv2D", Pass::update, 10.5, {37632, 188160}));
  p.rows.push_back(made_row(2, "relu1", "ReLU", Pass::forward, 300, relu));
  p.rows.push_back(made_row(2, "relu1", "ReLU", Pass::input_grad, 450, relu));
  const std::string deep = "layer4.2.bottleneck.downsample.conv";
  for (const Pass pass : {Pass::forward, Pass::input_grad, Pass::weight_grad}) {
    p.rows.push_back(made_row(3, deep, "Conv2D", pass, 800, {1e9, 2.5e6}));
    p.rows.back().algorithm = "wino:avx512_core";
  }
  p.rows.push_back(made_row(-1, outside_layers, "", Pass::forward, 40, {}));
  p.rows.back().kernels = {{"load", Lane::compute, 1, 40e-6, 0}};
  double compute = 0, waiting = 0;
  for (ProfileRow& r : p.rows) {
    r.split = ranks > 1 && r.layer >= 0 ? "batch:2" : r.layer >= 0 ? "none" : "";
    if (ranks > 1) {
      r.time.max = 1.5 * r.time.mean, r.time.min = 0.5 * r.time.mean, r.time.slowest = 1;
      if (r.pass == Pass::weight_grad) {
        r.comm = {900e-6, 1000e-6, 1100e-6, 1};
        r.exposed = {0, 100e-6, 200e-6, 0};
        r.comm_bytes = 9408 * 4;
        r.kernels = {{"all_reduce", Lane::communication, 1, 900e-6, 9408 * 4},
                     {"all_reduce", Lane::wait, 1, 200e-6, 0}};
      }
    }
    compute += r.time.mean, waiting += r.exposed.mean;
  }
  p.compute = {compute / ranks, compute, compute * (ranks > 1 ? 1.5 : 1), ranks - 1};
  p.sum_layers = {compute + waiting, compute + waiting, compute + waiting, 0};
  p.end_to_end = {6e-3, 6e-3, 6e-3, 0};
  return p;
}

}  // namespace lamina::test
