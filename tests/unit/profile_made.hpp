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

/// Ceilings that are easy to divide by: 200 GFLOP/s and 20 GB/s.
inline Machine made_machine(int ranks = 1) {
  Machine m;
  m.host = "made", m.cpu = "CPU", m.backend = "onednn 2.6", m.date = "2026-01-31";
  m.threads = 2, m.ranks = ranks, m.launch = 1e-6;
  using Kind = ComputeCeiling::Kind;
  m.compute = {{Kind::fma, "avx512", DType::f32, {250e9, 200e9}},
               {Kind::fma, "avx2", DType::f32, {125e9, 100e9}},
               {Kind::fma, "avx512", DType::f64, {125e9, 100e9}},
               {Kind::gemm, "linear brg:avx512_core", DType::f32, {220e9, 180e9}},
               {Kind::conv, "conv 3x3 jit:avx512_core", DType::f32, {200e9, 160e9}}};
  m.memory = {{"L1", 64e3, {800e9, 700e9}, {900e9, 850e9}, {700e9, 600e9}},
              {"L2", 2e6, {300e9, 280e9}, {320e9, 300e9}, {290e9, 270e9}},
              {"L3", 32e6, {60e9, 50e9}, {80e9, 60e9}, {70e9, 55e9}},
              {"memory", 0, {20e9, 18e9}, {25e9, 20e9}, {21e9, 19e9}}};
  if (ranks > 1)
    for (double bytes = 1024; bytes < 2e7; bytes *= 4)
      for (const Collective op :
           {Collective::all_reduce, Collective::all_gather, Collective::reduce_scatter,
            Collective::all_to_all, Collective::halo})
        m.comm.push_back({op, ranks, 1, bytes, 10e-6 + bytes / 5e9});
  return m;
}

/// Of one rank, or of two of which the second one is slower.
inline Profile made_profile(int ranks = 1) {
  Profile p;
  p.version = "0.1.0", p.model = "made", p.backend = "onednn 2.6", p.dtype = "f32";
  p.optimizer = "sgd momentum 0.9", p.ranks = ranks, p.steps = 10, p.batch = 32;
  p.command = "bench_network --model made";
  for (int r = 0; r < ranks; ++r) p.hosts.push_back(text("host", r, ", 2 threads"));
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
        r.late = {0, 60e-6, 120e-6, 0}, r.transfer = {0, 30e-6, 60e-6, 0};
        r.comm_bytes = r.wire_bytes = 9408 * 4;
        r.alone = {0.4 * r.time.mean, 0.9 * r.time.mean, 1.4 * r.time.mean, 1};
        r.kernels = {{"all_reduce", Lane::communication, 1, 900e-6, 9408 * 4},
                     {"all_reduce", Lane::wait, 1, 200e-6, 0}};
      }
    }
    compute += r.time.mean, waiting += r.exposed.mean;
  }
  p.compute = {compute / ranks, compute, compute * (ranks > 1 ? 1.5 : 1), ranks - 1};
  p.sum_layers = {compute + waiting, compute + waiting, compute + waiting, 0};
  p.end_to_end = {6e-3, 6e-3, 6e-3, 0};
  p.processor = {{11e-3, 11.5e-3, 12e-3, ranks - 1}, {0, 60e-6, 120e-6, 0}, {2, 3, 4, 0}, 0.01};
  for (ProfileRow& r : p.rows)
    if (r.layer >= 0) r.output = r.layer < 3 ? Shape{32, 64, 112, 112} : Shape{32, 512, 7, 7};

  p.layers = {"input", "conv1", "relu1", deep};
  constexpr std::size_t kb = 1000, mb = 1000 * kb;
  p.layer_memory = {{"conv1", "Conv2D", {37632, 37632, 37632, 12 * mb, 1500 * kb, 100 * kb}},
                    {"relu1", "ReLU", {}},
                    {deep, "Conv2D", {mb, mb, mb, 6 * mb, 0, 0}}};
  p.memory = {mb + 37632, mb + 37632, mb + 37632, 14 * mb, 1500 * kb, 100 * kb};
  for (int r = 0; r < ranks; ++r) {
    auto& spans = p.timeline.emplace_back();
    double at = 1e-5 * r;
    for (const ProfileRow& row : p.rows) {
      spans.push_back({row.layer, row.pass, Lane::compute, row.layer < 0 ? "load" : "kernel", at,
                       at + row.time.mean, 0});
      at += row.time.mean;
      if (row.comm.mean == 0) continue;
      spans.push_back({row.layer, row.pass, Lane::communication, "all_reduce", at - 100e-6,
                       at + 300e-6, row.comm_bytes});
      spans.push_back({row.layer, row.pass, Lane::wait, "all_reduce", at, at + 300e-6, 0});
      at += 300e-6;
    }
  }
  return p;
}

/// The same with ceilings.
inline Profile made_profile_on_machine(int ranks = 1) {
  Profile p = made_profile(ranks);
  p.machine = made_machine(ranks);
  p.clean = {5.9e-3, 5.9e-3, 5.9e-3, 0}, p.overhead = 0.017;
  return p;
}

}  // namespace lamina::test
