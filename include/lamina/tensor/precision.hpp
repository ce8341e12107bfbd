// Precision: in which types of numbers a network computes, and keeps what it learns.
#pragma once

#include <lamina/tensor/dtype.hpp>

#include <string>

namespace lamina {

/// A DType is the usual precision with it: all in f32 or f64; with bf16 and f16, what is large in
/// those two bytes, and what is summed up over many steps or samples in f32.
struct Precision {
  DType compute = DType::f32;     ///< samples, activations and their gradients
  DType weights = DType::f32;     ///< parameters as kernels read them
  DType gradients = DType::f32;   ///< of parameters; what ranks sum
  DType states = DType::f32;      ///< the optimizer's; if wider than weights, also master weights
  DType statistics = DType::f32;  ///< batch norm's running averages, its weight and bias

  constexpr Precision() = default;
  constexpr Precision(DType t)
      : compute(t), weights(t), gradients(wide(t)), states(wide(t)), statistics(wide(t)) {}

  constexpr bool operator==(const Precision&) const = default;
  /// "bf16"; with what is not usual: "bf16 (gradients bf16)"
  std::string text() const;
};

/// Whether an optimizer keeps master weights beside these: what it adds to them may be less than
/// they can show.
constexpr bool keeps_master(DType weights, DType states) {
  return size_of(states) > size_of(weights);
}

inline std::string Precision::text() const {
  const Precision usual(compute);
  std::string unusual;
  const auto tell = [&](const char* of, DType is, DType would_be) {
    if (is == would_be) return;
    append(unusual, lamina::text(unusual.empty() ? " (" : ", ", of, ' ', name(is)));
  };
  tell("weights", weights, usual.weights), tell("gradients", gradients, usual.gradients);
  tell("states", states, usual.states), tell("statistics", statistics, usual.statistics);
  return lamina::text(name(compute), unusual, unusual.empty() ? "" : ")");
}

}  // namespace lamina
