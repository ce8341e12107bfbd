// The back ends that are compiled in, by name.
#pragma once

#include <lamina/kernels/backend.hpp>
#include <lamina/kernels/choice.hpp>

#include <memory>
#include <string_view>

namespace lamina {

/// Plain loops and Eigen, all floating point numbers (kernels/reference.hpp).
std::shared_ptr<const Backend> reference_backend();

/// The reference back end without memory: its kernels say what they take, but nothing is allocated,
/// and nothing can run. For whoever plans (network/predict.hpp). Fuses what `like` fuses, if given.
std::shared_ptr<const Backend> planning_backend(std::shared_ptr<const Backend> like = {});

/// oneDNN, f32 and bf16. Throws Error where it is not built in. Kernels that are not the direct
/// ones (Winograd) are compared with those on random data when they are made, unless the verdict is
/// known, and not taken where they differ; Kernel::remark says so.
std::shared_ptr<const Backend> onednn_backend(Choice choice = {});

/// Whether onednn_backend() is built in.
bool has_onednn();

/// cuDNN, and kernels of our own, on GPU number `device`. Which of cuDNN's ways are the fastest is
/// timed when kernels are made, unless the verdicts know. Throws Error where it is not built in,
/// and where there is no such GPU or no driver for it.
std::shared_ptr<const Backend> cuda_backend(int device, Choice choice = {});

/// Whether cuda_backend() is built in.
bool has_cuda();
/// How many GPUs there are that can be used: 0 without a driver.
int cuda_devices();

/// A listener that marks every layer as a named range for the platform's profilers (NVTX); null
/// where the CUDA back end is not built in.
std::unique_ptr<Listener> cuda_ranges();

/// What "auto" stands for: the fastest back end of the CPU's that is built in and computes so.
std::string_view fastest_backend(const Precision& precision);

/// onednn_backend() with Choice::mixed.
inline constexpr std::string_view mixed_onednn = "onednn:mixed";

/// "reference", "onednn", "onednn:mixed", "cuda" (GPU 0), "cuda:N" or more of a GpuName, or "auto",
/// which is fastest_backend(); with kept_verdicts(). Throws Error for other names, and for one that
/// is absent or does not.
std::shared_ptr<const Backend> make_backend(std::string_view name, const Precision& precision);

/// Backend::name() of what that makes, without making it.
std::string backend_name(std::string_view name, const Precision& precision);

}  // namespace lamina
