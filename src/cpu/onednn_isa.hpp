// What oneDNN takes the processor for, beside kernels/instruction_set.hpp.
#pragma once

#include <lamina/kernels/instruction_set.hpp>

#include <string>

namespace lamina::detail {

/// The best that is part of a set of bits of oneDNN's (dnnl_cpu_isa_t, of any version).
InstructionSet instruction_set_of(unsigned isa);
/// The instruction set of which no kernel takes more, in words; it cannot be limited from here on.
std::string settled_instruction_set();
/// Whether the processor multiplies bf16, so that it is faster than f32.
bool multiplies_bf16();

}  // namespace lamina::detail
