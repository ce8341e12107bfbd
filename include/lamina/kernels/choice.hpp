// Choice: how a back end picks among the implementations that its library has, and what it
// remembers of them.
#pragma once

#include <lamina/base/text.hpp>

#include <cstddef>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace lamina {

/// What was found out of implementations, a number each: how far they were from others of the same
/// operation, or how many seconds they took. A back end asks before it compares: once is enough for
/// one library on one processor. These are kept in memory.
class Verdicts {
 public:
  virtual ~Verdicts() = default;
  /// Nothing where it was never found out. A difference is the largest one relative to the largest
  /// value.
  virtual std::optional<double> find(const std::string& what) {
    const auto at = known_.find(what);
    return at == known_.end() ? std::nullopt : std::optional(at->second);
  }
  /// The number that counts: the first that is kept.
  virtual double keep(const std::string& what, double number) {
    return known_.try_emplace(what, number).first->second;
  }

 private:
  std::map<std::string, double> known_;
};

/// Those of all processes on machines with this processor, in a file beside the measured ceilings
/// (cached_machine() says where); in memory where there is nowhere to keep it. Processes that find
/// out the same at the same time all go by what the first one wrote.
std::shared_ptr<Verdicts> kept_verdicts();

/// Of kernels that a GPU's libraries have.
struct Demands {
  bool tf32 = false;  ///< f32 may be multiplied as TF32, of which 10 bits of mantissa count
  bool deterministic = false;  ///< the same bits, whenever it runs
  std::size_t most_workspace = std::numeric_limits<std::size_t>::max();  ///< bytes

  /// ":tf32:deterministic:workspace=268435456", without what is not asked for.
  std::string text() const {
    const bool any = most_workspace < Demands().most_workspace;
    return lamina::text(tf32 ? ":tf32" : "", deterministic ? ":deterministic" : "",
                        any ? lamina::text(":workspace=", most_workspace) : std::string());
  }
};

struct Choice {
  /// For tests: takes the first implementation whose name has this in it, right or wrong, in every
  /// pass that has one. Empty: the fastest that is right.
  std::string only = {};
  /// For tests: gets the names of all implementations that the library has for the passes.
  std::set<std::string>* offered = nullptr;
  /// For tests: false leaves even what is known to be wrong to the comparison.
  bool avoid_known = true;
  /// For bf16: takes a kernel for f32, between copies, where it takes less time than one for bf16
  /// does.
  bool mixed = false;
  /// On GPUs.
  Demands demands = {};
  /// Null: those of this back end alone.
  std::shared_ptr<Verdicts> verdicts = {};
};

}  // namespace lamina
