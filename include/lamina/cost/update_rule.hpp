// UpdateRule: what the update of a parameter computes.
#pragma once

namespace lamina {

/// The update of one parameter, element by element (train/optimizer.hpp gives the formulas).
struct UpdateRule {
  enum class Kind { sgd, adam, adamw };
  Kind kind = Kind::sgd;
  double momentum = 0;
  bool nesterov = false;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;

  /// Buffers like w that the rule keeps between steps: momentum, or the two moments.
  int states() const { return kind != Kind::sgd ? 2 : momentum != 0 ? 1 : 0; }
};

}  // namespace lamina
