// UpdateRule: what the update of a parameter computes.
#pragma once

#include <string>

namespace lamina {

/// The update of one parameter, element by element (train/optimizer.hpp gives the formulas).
struct UpdateRule {
  /// `custom`: a function of somebody's own (train/optimizer.hpp), which no back end has.
  enum class Kind { sgd, adam, adamw, custom };
  Kind kind = Kind::sgd;
  double momentum = 0;
  bool nesterov = false;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  std::string custom_name = {};
  int custom_states = 0;

  /// Buffers like w that the rule keeps between steps: momentum, or the two moments.
  int states() const {
    if (kind == Kind::custom) return custom_states;
    return kind != Kind::sgd ? 2 : momentum != 0 ? 1 : 0;
  }
};

}  // namespace lamina
