// In place of oneDNN's instruction sets, in a program without oneDNN. A file of its own: tests have
// another back end in the place of oneDNN's.
#include "cpu/onednn_isa.hpp"

namespace lamina {

std::string in_words(InstructionSet) { return "no instruction set"; }
InstructionSet instruction_set() { return InstructionSet::none; }
void limit_instruction_set(InstructionSet) {}
InstructionSet detail::instruction_set_of(unsigned) { return InstructionSet::none; }

}  // namespace lamina
