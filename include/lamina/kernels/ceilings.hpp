// Ceilings: small loops that come as close as a program can to what a device does at most: the
// processor, or a GPU.
#pragma once

#include <lamina/tensor/dtype.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lamina {

/// A data cache of this machine.
struct CacheLevel {
  std::string name;       ///< "L1", "L2", "L3"
  std::size_t bytes = 0;  ///< of one such cache
  int sharers = 1;        ///< processors that share one
};

/// From the first level on, as the operating system tells; sizes of a usual processor where it does
/// not.
std::vector<CacheLevel> cache_levels();

/// Instruction sets for which there are loops and that this processor has, narrowest first: some of
/// "sse2", "avx2" (with FMA) and "avx512", or "portable" on other architectures. For bf16 those
/// that multiply it: "avx512bf16", "amx", both or none.
std::vector<std::string> instruction_sets(DType dtype = DType::f32);

/// How long a loop is measured: in slices, one after the other. Slices that begin in the first or
/// end in the last sixth of the time do not count: ranks that start together do so only to within
/// that.
struct Slices {
  double seconds = 0.08;  ///< all of them
  double slice = 5e-4;    ///< each; other programs interrupt few of the short ones
  /// The middle slice counts in place of the fastest: for ranks that all measure at once, of which
  /// the fastest slices may have found the others interrupted.
  bool middle = false;
};

/// FLOP per second of multiply-adds whose operands all stay in registers, on all threads(). A
/// multiply-add is 2 FLOP, also where it takes two instructions (sse2). Throws Error where the
/// processor lacks the instruction set; dtype is f32, f64 or bf16.
double fma_rate(std::string_view instruction_set, DType dtype, const Slices& slices = {});

/// Memory that the threads go through, each its own part, again and again.
struct Bandwidths {
  double triad = 0;  ///< bytes/s of a = b + s * c, counted as 3 operands
  double read = 0;   ///< bytes/s of the sum of one operand
  double scale = 0;  ///< bytes/s of x = s * x in place, counted as 2 operands
};

/// With `bytes` per thread (of all operands together, at least 3 cache lines) and the widest
/// instruction set, on all threads(). Throws Error where there is not that much memory.
Bandwidths bandwidths(std::size_t bytes, const Slices& slices = {});

/// The same of whatever a back end computes with.
class CeilingLoops {
 public:
  virtual ~CeilingLoops() = default;

  /// How many work side by side, each on a part of its own: threads(), or multiprocessors.
  virtual int units() const = 0;
  /// Whether the ranks of a node have caches and memory in common.
  virtual bool shared() const = 0;
  virtual std::vector<CacheLevel> cache_levels() const = 0;
  /// With a GPU the instructions are named: "fma" of its cores, "mma" and "wgmma" of its tensor
  /// cores.
  virtual std::vector<std::string> instruction_sets(DType dtype) const = 0;
  virtual double fma_rate(std::string_view instruction_set, DType dtype,
                          const Slices& slices) const = 0;
  /// With `bytes` per unit.
  virtual Bandwidths bandwidths(std::size_t bytes, const Slices& slices) const = 0;
};

/// Those above.
const CeilingLoops& processor_loops();

}  // namespace lamina
