// Clusters that need no file, with the source of every number. Sources at GitHub are named by
// repository and the number of the thread; measured rates are those of one device.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/base/nearest.hpp>
#include <lamina/plan/cluster.hpp>

namespace lamina {

namespace detail::ready {

inline constexpr double mebi = 1 << 20, gibi = 1 << 30;

// `conv` is what convolutions reach in training ResNet-50, where that was measured: their 24.3
// GFLOP per image over what is left of its time when the bytes of all other layers and of the
// update have moved at `bandwidth`: 695 MB in f32 for 128 images, 350 MB with two bytes per
// element, 755 MB in f32 for 8 images, as Layer::cost and update_work count them.

// Seconds of a small kernel: 80 broadcasts in a stream take 260 us (CUDA.jl's manual, "Graphs";
// which GPU, it does not say).
inline constexpr double gpu_launch = 3.25e-6;

// With `contention`: kernels took 18.9 % longer beside collectives, the mean over A100, H100,
// MI210 and MI250 ("Characterizing Compute-Communication Overlap in GPU-Accelerated Distributed
// Deep Learning", arXiv 2507.03114, 2025). V100s were not among them.
inline constexpr double gpu_contention = 1.189;

// Latencies: with these, recursive doubling takes what NCCL's own cost model says of small
// all-reduces (NVIDIA/nccl 2.32, src/tuning/cost_model.cc, protocol LL: 6.6 us and 0.6 us per step
// of a ring over NVLink, 2.7 us over a network; 6.8 us and 5.0 us per level of a tree over a
// network). Of 4 and 8 devices of a node 10.2 and 15.0 us there, 10 and 15 here; of 2, 4 and 8
// nodes 12.0, 22.8 and 36.8 us there, 12, 24 and 36 here. Launching its kernel is included.
inline constexpr double nvlink_latency = 5e-6, gpu_network_latency = 12e-6;

// `reduction` stays 0: NCCL's all-reduce by a ring has the same bus bandwidth as its other
// collectives (NVIDIA/nccl-tests 212), so adding up hides behind the transfers.

inline DeviceModel v100() {
  return {.name = "V100 SXM2 16 GB",
          .memory = 16 * gibi,  // "NVIDIA V100 Tensor Core GPU", data sheet
          .bandwidth = 846e9,   // BabelStream 4.0, triad, V100-PCIE-16GB; data sheet: 900
          .flops = {{.dtype = DType::f32,
                     .gemm = 14.5e12,  // zzc0721/torch-performance-test-data 140; 15.7 at most
                     // 363 images/s: NVIDIA/DeepLearningExamples, RN50v1.5 for PyTorch, commit
                     // 20f0977: 1375.5 on four, which is 3.79 times one.
                     .conv = 12.6e12},
                    {.dtype = DType::f16,
                     .gemm = 97.4e12,    // zzc0721/torch-performance-test-data 140
                     .conv = 26.3e12}},  // 748 images/s: 2886.9 on four, 3.86 times one
          .launch = gpu_launch};
}

// Convolutions on H100 and H200 are judgments. In f32 they have the share of GEMM that they have on
// a V100, 0.87. With two bytes per element it is a half: for A100s the arithmetic above gives 0.47
// (2150 images/s, NVIDIA/apex 1445) and 0.75 (2600, huggingface/pytorch-image-models 1491), of 241
// TFLOP/s (zzc0721/torch-performance-test-data 108) and with 1.4 TB/s (0.9 of the data sheet's).

inline DeviceModel h100() {
  return {.name = "H100 SXM 80 GB",
          .memory = 81559 * mebi,  // nvidia-smi; "NVIDIA H100 Tensor Core GPU", data sheet: 80 GB
          .bandwidth = 3000e9,     // copy by PyTorch 2.11, read and written; data sheet: 3350
          // GEMM: zzc0721/torch-performance-test-data 79; data sheet: 67 and 989 TFLOP/s, dense
          .flops = {{DType::f32, 51.9e12, 45.2e12},
                    {DType::bf16, 797.5e12, 399e12},
                    {DType::f16, 760e12, 380e12}},
          .launch = gpu_launch};
}

inline DeviceModel h200() {
  return {.name = "H200 SXM 141 GB",
          .memory = 143771 * mebi,  // nvidia-smi; "NVIDIA H200 Tensor Core GPU", data sheet: 141 GB
          .bandwidth = 4300e9,      // copy by PyTorch 2.11, read and written; data sheet: 4800
          // GEMM: zzc0721/torch-performance-test-data 45; data sheet: as the H100's
          .flops = {{DType::f32, 51.3e12, 44.6e12},
                    {DType::bf16, 790.3e12, 395e12},
                    {DType::f16, 759.4e12, 380e12}},
          .launch = gpu_launch};
}

/// Eight of these with NVLink 4 and a network card each, as in a DGX.
inline Cluster ndr(std::string name, DeviceModel device) {
  return {.name = std::move(name),
          .nodes = {{1, std::move(device)}},
          .devices_per_node = 8,  // "NVIDIA DGX H100/H200 User Guide": 8 GPUs, 8 ConnectX-7
          // Of 450 GB/s each way, NCCL gets 370 (NVIDIA/nccl-tests 212); its all-reduce in the
          // switches, as fast as a ring of 480, is not in the formulas.
          .inside = {nvlink_latency, 370e9},
          .across = {gpu_network_latency, 48e9},  // 46 to 48 at 400 Gb/s: nccl-tests 290
          .sharers = 1,
          .contention = gpu_contention};
}

inline Cluster v100_100g() {
  return {.name = "v100-100g",
          .nodes = {{1, v100()}},
          .devices_per_node = 4,  // six NVLinks each, as in the measured nodes of eight
          // all_gather of 8 V100-SXM2, 150 GB/s of links each way: NVIDIA/nccl-tests 37
          .inside = {nvlink_latency, 129e9},
          .across = {gpu_network_latency, 12e9},  // of 100 Gb/s by NCCL: nccl-tests 119
          .sharers = 4,                           // one card per node
          .contention = gpu_contention};
}

/// Nodes like the virtual machine with two cores of an AMD EPYC that docs/machine.md measured, a
/// rank of two threads on each.
inline Cluster cpus(std::string name, const Link& across) {
  const DeviceModel device = {
      .name = "2 cores of an AMD EPYC",
      .memory = 24105 * mebi,  // MemTotal of such a machine
      .bandwidth = 64.9e9,     // docs/machine.md: memory, the best of the three
      .flops = {{.dtype = DType::f32,
                 .gemm = 232.1e9,  // docs/machine.md
                 .conv = 223e9},   // 8.28 images/s: docs/plans.md, "Recomputation"
                // A judgment: half of f32, as the multiply-adds in docs/machine.md.
                {.dtype = DType::f64, .gemm = 116e9, .conv = 111.5e9}},
      .launch = 0.35e-6,     // docs/machine.md
      .reduction = 21.6e9};  // reads two operands and writes one
  return {.name = std::move(name),
          .nodes = {{1, device}},
          .devices_per_node = 1,
          // Two ranks of a node, docs/machine.md: a halo of 1 KiB, and of 16 MiB.
          .inside = {24.4e-6, 10.96e9},
          .across = across,
          .sharers = 1,
          .contention = 1};  // not measured
}

// Latency of Open MPI over TCP: 17 to 70 us (docs/cluster.md); the geometric mean.
inline constexpr double tcp_latency = 35e-6;
// What a broadcast of 8 MiB got of 1 and 10 Gb/s: docs/cluster.md.
inline Cluster cpu_1g() { return cpus("cpu-1g", {tcp_latency, 107e6}); }
inline Cluster cpu_10g() { return cpus("cpu-10g", {tcp_latency, 1111e6}); }
// InfiniBand by UCX: 1.5 us (openucx/ucx 9908), 24.6 GB/s both ways (openucx/ucx 7245).
inline Cluster cpu_100g() { return cpus("cpu-100g", {1.5e-6, 12.3e9}); }
inline Cluster h100_ndr() { return ndr("h100-ndr", h100()); }
inline Cluster h200_ndr() { return ndr("h200-ndr", h200()); }

struct Entry {
  std::string_view name;
  Cluster (*make)();
};
inline constexpr Entry entries[] = {{"v100-100g", v100_100g}, {"h100-ndr", h100_ndr},
                                    {"h200-ndr", h200_ndr},   {"cpu-1g", cpu_1g},
                                    {"cpu-10g", cpu_10g},     {"cpu-100g", cpu_100g}};

}  // namespace detail::ready

LAMINA_INLINE std::vector<std::string_view> cluster_names() {
  std::vector<std::string_view> names;
  for (const auto& entry : detail::ready::entries) names.push_back(entry.name);
  return names;
}

LAMINA_INLINE Cluster ready_cluster(std::string_view name) {
  for (const auto& entry : detail::ready::entries)
    if (entry.name == name) return entry.make();
  const auto names = cluster_names();
  throw Error(text("cluster '", name, "' is not known", suggestion(name, names),
                   ": expected one of ", in_words(names), ", or a file"));
}

}  // namespace lamina
