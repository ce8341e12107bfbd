// Two implementations of one operation, side by side on random data.
#pragma once

#include "cpu/onednn_core.hpp"

#include <vector>

namespace lamina::detail {

/// An operand of both: how each wants it to lie.
struct Compared {
  int id = 0;
  Desc first, second;
  bool result = false;
};

/// The largest difference between the results of the two, relative to the largest value that the
/// second gives; infinite where one of them is not a number. Operands with an empty descriptor are
/// left out.
double difference(const ContextPtr&, const dnnl::primitive_desc_base& first_desc,
                  const dnnl::primitive& first, const dnnl::primitive_desc_base& second_desc,
                  const dnnl::primitive& second, const std::vector<Compared>& operands);

}  // namespace lamina::detail
