// What oneDNN takes the processor for. It says so itself, but then it cannot be told otherwise any
// more: so that is found out beside it, until it is settled.
#include "cpu/onednn_isa.hpp"

#include "cpu/onednn_compat.hpp"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdlib>
#include <iterator>

namespace lamina {
namespace {

using enum InstructionSet;

struct Known {
  InstructionSet set;
  dnnl_cpu_isa_t isa;
  const char* variable;  ///< what the environment calls it
  const char* words;
};

constexpr Known known[] = {
    {sse41, dnnl_cpu_isa_sse41, "SSE41", "SSE4.1"},
    {avx, dnnl_cpu_isa_avx, "AVX", "AVX"},
    {avx2, dnnl_cpu_isa_avx2, "AVX2", "AVX2"},
    {avx2, dnnl_cpu_isa_avx2_vnni, "AVX2_VNNI", "AVX2 (avx2_vnni)"},
    {avx512_core, dnnl_cpu_isa_avx512_core, "AVX512_CORE", "AVX-512 (avx512_core)"},
    {avx512_core_vnni, dnnl_cpu_isa_avx512_core_vnni, "AVX512_CORE_VNNI",
     "AVX-512 (avx512_core_vnni)"},
    {avx512_core_bf16, dnnl_cpu_isa_avx512_core_bf16, "AVX512_CORE_BF16",
     "AVX-512 (avx512_core_bf16)"},
    {avx512_core_bf16, dnnl_cpu_isa_avx512_core_amx, "", "AVX-512 (avx512_core_amx)"}};

constexpr const char* others = "another instruction set";

std::atomic<bool> settled = false;  // as far as is known here

/// The most of what is named here that is part of `isa`, a set of bits: newer versions of oneDNN
/// know of more.
const Known* find_known(unsigned isa) {
  const Known* found = nullptr;
  for (const Known& k : known)
    if ((unsigned(k.isa) & ~isa) == 0) found = &k;
  return found;
}

const Known* find(InstructionSet set) {
  const auto* found = std::ranges::find(known, set, &Known::set);
  return found == std::end(known) ? nullptr : found;
}

/// What oneDNN says, which settles it; null for what has no name here.
const Known* find_settled() { return find_known(unsigned(dnnl_get_effective_cpu_isa())); }

InstructionSet of_processor() {
#if defined(__x86_64__) && defined(__GNUC__)
  const auto all = [](auto... has) { return (... && bool(has)); };
  const bool core = all(__builtin_cpu_supports("avx512f"), __builtin_cpu_supports("avx512bw"),
                        __builtin_cpu_supports("avx512vl"), __builtin_cpu_supports("avx512dq"));
  const bool vnni = core && __builtin_cpu_supports("avx512vnni");
  if (vnni && __builtin_cpu_supports("avx512bf16")) return avx512_core_bf16;
  if (vnni) return avx512_core_vnni;
  if (core) return avx512_core;
  if (all(__builtin_cpu_supports("avx2"), __builtin_cpu_supports("fma"))) return avx2;
  if (__builtin_cpu_supports("avx")) return avx;
  if (__builtin_cpu_supports("sse4.1")) return sse41;
#endif
  return none;
}

/// As oneDNN reads it: the first of the two that is not empty, in any case, and nothing where it
/// does not know the word.
InstructionSet of_environment() {
  for (const char* variable : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"}) {
    const char* value = std::getenv(variable);
    std::string word = value ? value : "";
    if (word.empty()) continue;
    for (char& c : word) c = char(std::toupper(static_cast<unsigned char>(c)));
    for (const Known& k : known)
      if (word == k.variable) return k.set;
    break;
  }
  return avx512_core_bf16;
}

}  // namespace

std::string in_words(InstructionSet set) {
  const Known* found = find(set);
  return found ? found->words : others;
}

InstructionSet instruction_set() {
  if (!settled) return std::min(of_processor(), of_environment());
  return detail::instruction_set_of(unsigned(dnnl_get_effective_cpu_isa()));
}

InstructionSet detail::instruction_set_of(unsigned isa) {
  const Known* found = find_known(isa);
  return found ? found->set : none;
}

std::string detail::settled_instruction_set() {
  settled = true;
  const Known* found = find_settled();
  return found ? found->words : others;
}

bool detail::multiplies_bf16() { return instruction_set() == avx512_core_bf16; }

void limit_instruction_set(InstructionSet set) {
  const Known* found = find(set);
  const bool tiles = set == avx512_core_bf16;  // which have no place in the order: they go, too
  if (!found || instruction_set() < set || (instruction_set() == set && !tiles)) return;
  dnnl_set_max_cpu_isa(found->isa);  // refuses where it comes too late
  settled = true;
}

}  // namespace lamina
