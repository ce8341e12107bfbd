// Labels, from the ranks that load the samples to those that compute the loss; and Outcome, what
// these found, to all.
#pragma once

#include <lamina/layers/exchange.hpp>
#include <lamina/network/placed.hpp>

namespace lamina {

/// Rank r loads the labels of rows PlacedNetwork::rows(); the last layer may cut the batch in
/// other parts, among fewer ranks. Where it does not, nothing moves.
class Labels {
 public:
  Labels() = default;
  /// Of a placed network.
  explicit Labels(const PlacedNetwork& network);

  /// i32 {rows,1,1,1}: where those that this rank loads are to be put.
  const View& loaded() const { return loaded_; }
  /// Those of this rank's part of the loss, once they are loaded on all ranks.
  const View& move(Stream& stream) {
    if (!moves_) return loaded_;
    exchange_.run(stream, Pass::forward, loaded_, wanted_);
    return wanted_;
  }

 private:
  bool moves_ = false;
  Tensor loaded_, wanted_;
  Exchange exchange_;
};

/// What SoftmaxCrossEntropy found at the end of a network, over the global batch.
struct Outcome {
  double loss = 0;            ///< mean over the rows that count; 0 where none does
  double top1 = 0, top5 = 0;  ///< hits
  double rows = 0;            ///< that count: those with a label that is not below zero
  bool stop = false;          ///< a rank asks to end the training
};

/// Of the last forward; on all ranks, those that take no part in the loss, too. Collective where
/// there are such, and these say here whether they ask to stop (Context::stop).
Outcome outcome(const PlacedNetwork& network, Stream& stream, bool stop = false);

}  // namespace lamina
