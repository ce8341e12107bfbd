// Updates and sums of squares that run on the host, part after part: what back ends and rules of
// one's own share.
#pragma once

#include <lamina/kernels/backend.hpp>

#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace lamina::detail {

/// Throws Error unless the parts are what a back end's kernel for this rule takes.
void check_parts(const UpdateRule& rule, std::span<const UpdatePart> parts);

/// Recorded as one update.
class UpdateInTurn final : public UpdateKernel {
 public:
  /// Updates a part, by these numbers.
  using One = std::function<void(Stream&, const UpdateStep& numbers, const UpdatePart&)>;

  /// What is rounded goes by reorders of `rounding` behind the update; without it `one` rounds.
  UpdateInTurn(const Backend* rounding, std::vector<UpdatePart> parts, One one);
  void run(Stream& stream, const UpdateStep& step) override;

 private:
  std::vector<UpdatePart> parts_;
  std::vector<std::unique_ptr<UnaryKernel>> rounds_;  // null where nothing is rounded
  One one_;
};

class SquaresInTurn final : public SquaresKernel {
 public:
  using One = double (*)(const View& x);

  SquaresInTurn(std::vector<SquaresPart> parts, One one);
  void run(Stream& stream, Pass pass) override;

 private:
  std::vector<SquaresPart> parts_;
  One one_;
};

}  // namespace lamina::detail
