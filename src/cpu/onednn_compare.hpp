// Two implementations of one operation, side by side on random data.
#pragma once

#include "cpu/onednn_core.hpp"

#include <functional>
#include <unordered_map>
#include <vector>

namespace lamina::detail {

/// An operand of both: how each wants it to lie.
struct Compared {
  int id = 0;
  Desc first, second;
  bool result = false;
};

/// Operands by their number, as oneDNN's primitives take them.
using Arguments = std::unordered_map<int, dnnl::memory>;
using Run = std::function<void(const Arguments&)>;

Run run_of(const RuntimePtr&, const dnnl::primitive_desc_base&, const dnnl::primitive&);

/// The largest difference between the results of the two, relative to the largest value that the
/// second gives; infinite where one of them is not a number. Operands with an empty descriptor are
/// left out.
double difference(const RuntimePtr&, const Run& first, const Run& second,
                  const std::vector<Compared>& operands);

/// Seconds of the fastest of three runs, behind one that does not count, on the first's operands.
double time_of(const RuntimePtr&, const Run&, const std::vector<Compared>& operands);

}  // namespace lamina::detail
