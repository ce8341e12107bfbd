// Which activations are computed twice, and where all of them and their gradients lie: arithmetic
// over the steps of a placed network.
#pragma once

#include <lamina/network/step.hpp>

#include <string>
#include <vector>

namespace lamina {

// What backward of a vertex reads, as bits.
inline constexpr char reads_x = 1, reads_y = 2;

/// Decides for each step whose vertex is `marked` before whose backward its forward runs once more
/// (Step::recomputed, Step::recomputes). `reads` says of each vertex what its backward reads, on
/// any rank: a forward that runs again may send, so all ranks must decide alike.
void plan_recomputation(std::vector<Step>& steps, const std::vector<bool>& marked,
                        const std::string& reads);

/// Buffers of the arena, and which of them each step's y, kept_y, dy, dx and parts are; -1 = none.
struct ActivationPlan {
  std::vector<Lifetime> storages;
  std::vector<int> y, kept, dy;
  std::vector<std::vector<int>> dx, parts;
  std::vector<std::size_t> brought;  ///< bytes that each step adds
  std::size_t bytes = 0;             ///< of the arena
};

/// Whether the gradient of step `s`, of which there are so many parts, is added up by the kernel
/// that makes its y, and not before that.
bool absorber_adds(const Step& s, const std::vector<Step>& steps, std::size_t parts);

/// Forward of step i happens at time i, its backward, and what that recomputes, at time
/// 2 * steps - i.
ActivationPlan plan_activations(const std::vector<Step>& steps, bool training);

}  // namespace lamina
