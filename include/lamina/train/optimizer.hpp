// Optimizer: updates the parameters of a network as the sums of their gradients land.
#pragma once

#include <lamina/network/placed.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace lamina {

/// v = momentum * v + dw + weight_decay * w;  w -= rate * v   (nesterov: dw + momentum * v in place
/// of v; Sutskever et al., 2013, in the form of PyTorch).
struct SGD {
  double rate = 0.01, momentum = 0, weight_decay = 0;
  bool nesterov = false;
};

/// Kingma and Ba, 2015; weight decay is added to the gradient.
struct Adam {
  double rate = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
};

/// Loshchilov and Hutter, 2019: w -= rate * weight_decay * w apart from the gradient.
struct AdamW {
  double rate = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 1e-2;
};

/// SGD with momentum whose gradient of each weight tensor is scaled by
/// trust * |w| / (|dw| + weight_decay * |w|) (You, Gitman and Ginsburg, 2017); biases and batch
/// norm keep their plain gradient.
struct LARS {
  double rate = 0.1, momentum = 0.9, weight_decay = 0, trust = 1e-3;
};

/// A rule of one's own. All else (groups, clipping, sharding, checkpoints, the profile) is as with
/// the others.
struct CustomRule {
  /// Updates w in place, element by element. It is called for runs of neighbouring elements, with
  /// views {1, elements, 1, 1}: of w (its master weights, where it has such) and of each state,
  /// zero at first, in Precision::states, and of its gradient, in Precision::gradients. Where runs
  /// begin and end depends on buckets and ranks, and layouts put padding between: elements of which
  /// all is zero, and must stay so. `step` has what is to be used: the rate and the weight decay of
  /// these parameters, and by what the gradient is to be multiplied. On all ranks it must be the
  /// same function.
  using Update = std::function<void(Stream& stream, const UpdateStep& step, const View& w,
                                    const View& dw, std::span<const View> states)>;

  std::string name = "custom";
  double rate = 0.01, weight_decay = 0;
  int states = 0;  ///< values that it keeps for each parameter
  Update update = {};
};

/// What is different for some parameters.
struct ParameterGroup {
  double rate = 1;                          ///< times the learning rate
  std::optional<double> weight_decay = {};  ///< in place of the optimizer's

  bool operator==(const ParameterGroup&) const = default;
};

class Optimizer {
 public:
  Optimizer(const SGD& o);
  Optimizer(const Adam& o) : Optimizer("adam", UpdateRule::Kind::adam, o) {}
  Optimizer(const AdamW& o) : Optimizer("adamw", UpdateRule::Kind::adamw, o) {}
  Optimizer(const LARS& o);
  /// Throws Error without a function, or for fewer states than none.
  Optimizer(CustomRule o);

  /// Weight decay leaves out biases and batch norm.
  Optimizer& decay_weights_only(bool on = true);
  /// For the parameters whose names match a pattern (base/pattern.hpp), as "*.bias"; of several
  /// groups that a parameter matches, the last one counts. Throws Error for a number below zero;
  /// attach() does where a pattern matches no parameter that is trained. A group's weight decay is
  /// also that of what decay_weights_only() leaves out.
  Optimizer& group(std::string pattern, ParameterGroup group);
  /// Gradients are scaled down to this norm, over all parameters, where theirs is larger; 0 =
  /// never. Throws Error for a number below zero.
  Optimizer& clip_norm(double norm);

  const std::string& name() const { return name_; }
  /// With all options, to their last digit: what ranks must agree on.
  std::string text() const;
  const UpdateRule& rule() const { return rule_; }
  double rate() const { return rate_; }

  /// The state for the parameters of a placed network, all zero, with master weights where those of
  /// the network are narrower: as these are now. It must outlive their updates.
  /// What is set after that, the norm of clip_norm() apart, needs another attach().
  [[nodiscard]] Tensor attach(PlacedNetwork& network) const;

  /// What a network that is prepared or placed takes on this rank, with the states that attach()
  /// makes for it.
  Memory memory(const PlacedNetwork& network) const;
  /// What one of its steps brings.
  Memory memory(const Step& step) const;

  /// Step number `step` (from 1) with this learning rate. Waits for the gradients of each bucket,
  /// in the order in which backward finished them, and updates it while others are on their way.
  /// Gradients count `scale` times; those of micro-batches become means over the rows that count.
  /// Throws Error unless the optimizer is attached to the network, and one backward pass (of all
  /// micro-batches) has run since the last update. The first time it is collective over the ranks
  /// of the network, and throws Error, on all of them, where they have unlike weights, or share a
  /// loss of which they found unlike values.
  void update(PlacedNetwork& network, Stream& stream, double rate, std::int64_t step,
              double scale = 1) const;
  // The same in two parts, for who runs the second one again as it was recorded: the first one puts
  // where kernels find it what differs from step to step.
  void begin_update(PlacedNetwork& network, Stream& stream, double rate, std::int64_t step,
                    double scale = 1) const;
  void run_update(PlacedNetwork& network, Stream& stream) const;

 private:
  template <class O>
  Optimizer(const char* name, UpdateRule::Kind kind, const O& o)
      : name_(name), rate_(o.rate), weight_decay_(o.weight_decay) {
    rule_.kind = kind, rule_.beta1 = o.beta1, rule_.beta2 = o.beta2, rule_.epsilon = o.epsilon;
    settle();
  }

  /// Throws Error where an option is impossible.
  void validate() const;
  void check_attached(const PlacedNetwork& network) const;
  /// To be called when what attach() reads has changed.
  void settle();

  std::size_t bytes(const Parameter& p) const;
  /// Throws Error where a group has no parameters.
  void check_groups(const PlacedNetwork& network) const;
  ParameterGroup settings(const NamedParameter& n) const;
  /// What is updated alike: neighbours, or what of them this rank updates.
  std::vector<UpdatePart> parts_of(const PlacedNetwork& network, const Bucket& bucket) const;
  std::unique_ptr<UpdateKernel> update_of(const Backend& backend,
                                          std::vector<UpdatePart> parts) const;
  /// Where ranks hold different blocks, each adds up the blocks that no rank before it holds.
  std::vector<SquaresPart> squares_of(const PlacedNetwork& network, const Bucket& bucket) const;
  /// What is alike for all parameters.
  UpdateStep step_of(const PlacedNetwork& network) const;

  enum class Square { grad, value };

  /// Where the sum of squares of a parameter or of its gradient lies.
  View square_of(const PlacedNetwork& network, Square of, int number) const;
  /// Those of all parameters, when their gradients have come: the same bits on all ranks.
  void add_up_squares(PlacedNetwork& network, Stream& stream) const;

  std::string name_;
  UpdateRule rule_;
  CustomRule::Update custom_;
  double rate_ = 0, weight_decay_ = 0, trust_ = 0, clip_norm_ = 0;
  bool weights_only_ = false;
  std::vector<std::pair<std::string, ParameterGroup>> groups_;  // by pattern
  std::uint64_t key_ = 0;                                       ///< of all that attach() reads
};

}  // namespace lamina
