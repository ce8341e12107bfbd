// The instruction set by which the back end onednn chooses its kernels, and the layouts of weights.
#pragma once

#include <string>

namespace lamina {

/// From the least to the best. What oneDNN's kernels in f32 do not ask about (AMX, say) has no
/// place here.
enum class InstructionSet {
  none,
  sse41,
  avx,
  avx2,
  avx512_core,
  avx512_core_vnni,
  avx512_core_bf16
};

/// "AVX2", "AVX-512 (avx512_core)".
std::string in_words(InstructionSet);

/// That of this process: what the processor has, or less where the environment says so
/// (ONEDNN_MAX_CPU_ISA, DNNL_MAX_CPU_ISA). Does not settle it, as oneDNN does when it makes its
/// first kernel. `none` where oneDNN is not built in.
InstructionSet instruction_set();

/// Kernels take no more than that from here on. Where oneDNN has settled what it takes, nothing
/// changes: instruction_set() says what holds.
void limit_instruction_set(InstructionSet);

}  // namespace lamina
