// Made-up clusters, whose times are easy to reckon by hand.
#pragma once

#include <lamina/plan/cluster.hpp>

namespace lamina::test {

/// Devices of 1 GFLOP/s, 2 in convolutions, and 1 GB/s whose kernels take 1 us to launch, one on a
/// node.
inline Cluster slow_cluster(int devices, double contention = 1) {
  const DeviceModel device{.name = "slow",
                           .memory = 1e12,
                           .bandwidth = 1e9,
                           .flops = {{.dtype = DType::f32, .gemm = 1e9, .conv = 2e9},
                                     {.dtype = DType::f64, .gemm = 1e9, .conv = 2e9}},
                           .launch = 1e-6};
  return {.name = "slow",
          .nodes = {{devices, device}},
          .inside = {1e-6, 1e9},
          .across = {1e-5, 1e8},
          .contention = contention};
}

}  // namespace lamina::test
