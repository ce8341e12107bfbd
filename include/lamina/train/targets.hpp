// Targets, from the ranks that load the samples to those that compute the loss; and Outcome, what
// these found, to all.
#pragma once

#include <lamina/layers/exchange.hpp>
#include <lamina/network/placed.hpp>

#include <optional>

namespace lamina {

/// What the last layer, a loss, is to be compared with (Layer::targets): labels of samples or of
/// pixels, or values. Rank r loads those of the samples PlacedNetwork::rows(); the loss may cut the
/// batch in other parts, among fewer ranks. Where it does not, nothing moves.
class Targets {
 public:
  Targets() = default;
  /// Of a placed network.
  explicit Targets(const PlacedNetwork& network);

  /// Plain, of the loss's form: where those that this rank loads are to be put.
  const View& loaded() const { return loaded_; }
  /// Puts them there, from as many plain elements: with a stream behind the caller, who may change
  /// them at once.
  void load(const void* from) const;
  void load(Stream& stream, const void* from) const;
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

/// What a loss found at the end of a network, over the global batch: see Layer::is_loss().
struct Outcome {
  double loss = 0;            ///< mean over the rows that count; 0 where none does
  double top1 = 0, top5 = 0;  ///< hits
  double rows = 0;            ///< that count: those with a target
  bool stop = false;          ///< a rank asks to end the training
  int resize = 0;             ///< rank 0 announces that it goes on with so many ranks; 0 = not
  bool steady = false;        ///< on all ranks, steps can be recorded
  std::optional<LossScale> loss_scale = {};  ///< after what was in the stream; none without scaling

  /// What a rank says of the last three (Context::stop): numbers that add up over ranks.
  static double says(bool stop, int resize, bool steady) {
    return double(stop) + resize * unit + (steady ? 0 : 1 / unit);
  }
  static constexpr double unit = 1 << 20;  ///< more than the times that ranks say it in a step
};

/// An outcome that is on its way: to be read while the next step runs.
class PendingOutcome {
 public:
  PendingOutcome() = default;
  PendingOutcome(const PendingOutcome&) = delete;
  ~PendingOutcome();  ///< what was asked for arrives first, well or not
  /// Of PlacedNetwork::found(), and of its loss_scale() where there is one.
  void ask(const View& found, const View& loss_scale, Stream& stream);
  /// Waits for what was asked for last.
  Outcome get() const;

 private:
  struct Found {
    double numbers[5] = {};
    LossScale loss_scale = {};
    bool scales = false;
  };
  std::unique_ptr<Found> found_ = std::make_unique<Found>();
  Event event_;
};

/// The same at once.
inline Outcome outcome(const PlacedNetwork& network, Stream& stream) {
  PendingOutcome outcome;
  outcome.ask(network.found(stream), network.loss_scale(), stream);
  return outcome.get();
}

}  // namespace lamina
