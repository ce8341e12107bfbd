// PlacedNetwork: what runs. A network where it is placed, with its kernels, its parameters and the
// buffers between its layers. It knows no plan, no optimizer and no data.
#pragma once

#include <lamina/network/activations.hpp>
#include <lamina/network/fusion.hpp>
#include <lamina/network/network.hpp>
#include <lamina/network/parameters.hpp>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lamina {

namespace detail {
class Source;
}

/// Where kernels reach them: what differs from step to step, and what the loss found.
struct StepNumbers {
  StepNumbers() = default;
  explicit StepNumbers(MemorySpace& memory)
      : now(memory),
        update(memory),
        loss_scale(memory),
        found(form(), memory),
        totals(form(), memory) {}
  static Form form() { return {{1, 5, 1, 1}, DType::f64, {}}; }
  static std::size_t bytes() {
    return Passed<StepValues>::form().bytes() + Passed<UpdateValues>::form().bytes() +
           Passed<LossScale>::form().bytes() + 2 * form().bytes();
  }

  Passed<StepValues> now;
  Passed<UpdateValues> update;
  Passed<LossScale> loss_scale;
  Tensor found;         ///< as all ranks know it, where some take no part in the loss
  Tensor totals;        ///< over the micro-batches of the step so far
  Tensor by_worker;     ///< a row for each worker; all but those of this rank are zero
  bool add_up = false;  ///< the last forward was one of these
};

/// A network can be placed any number of times, and each of these goes its own way: for training
/// and for inference, with other batches, on other ranks, under other splits, several at once.
class PlacedNetwork {
 public:
  /// The first half of Network::place(): makes the layers' kernels, with their workspace, and plans
  /// all other buffers. From here on steps() and memory() say exactly what allocate() will take.
  PlacedNetwork(const Network& network, PlaceOptions options);
  PlacedNetwork(PlacedNetwork&&) noexcept;
  PlacedNetwork& operator=(PlacedNetwork&&) noexcept;
  ~PlacedNetwork();

  /// The second half: allocates parameters, gradients and activations. `gradients`, where given:
  /// memory for those that lie in buckets, of gradient_form().
  void allocate(Tensor gradients = {});
  /// Gives back what only runs need: parameters stay, to be read. It never runs again.
  void end();
  Form gradient_form() const;
  bool allocated() const { return allocated_; }

  /// What was placed.
  const Network& network() const { return network_; }
  const PlaceOptions& placing() const { return options_; }
  /// Which layers are absorbed by others' kernels; none without PlaceOptions::fuse.
  const Fusion& fusion() const { return fusion_; }
  const std::vector<Step>& steps() const { return steps_; }
  /// This rank's part of the batch, as it is given to x(): rows [begin, begin + size). Where there
  /// are fewer samples than ranks, the last ranks have none.
  const Part& rows() const { return rows_; }
  /// Where the caller puts the samples: plain {rows, c, h, w} in the network's dtype.
  /// Forward may use the memory for other things once the samples are read.
  const View& x() const { return steps_[0].buffers.y; }
  /// Output of the last layer.
  const View& y() const { return steps_.back().buffers.y; }
  /// Of this rank, the optimizer's states apart; Step::memory has that of each layer.
  const Memory& memory() const { return memory_; }

  /// Those of which this rank holds a block.
  const std::vector<NamedParameter>& parameters() const { return parameters_.mine; }
  /// All parameters, in the order of the graph: the same list on all ranks.
  const std::vector<WholeParameter>& all_parameters() const { return parameters_.all; }
  /// With workers: of a parameter that is not trained what each of them has, {workers, elements, 1,
  /// 1}; as the workers of other ranks had left it when average_kept() ran last. Absent where all
  /// have the same.
  View kept_of(const Parameter& p) const;
  const View& all_kept() const { return kept_values_.view(); }
  /// Whether all_kept() is what workers have: at first that is the parameters' values.
  bool knows_kept() const { return !kept_is_new_; }
  /// To be called when values of parameters have been set from outside: all workers have these.
  void values_are_new() { kept_is_new_ = true, parameters_.changes->of_one_worker = false; }
  /// Or what workers keep: all_kept().
  void kept_is_known() { kept_is_new_ = false; }
  /// All values of parameters, one after the other. They are this network's own.
  const View& values() const { return parameters_.values.view(); }
  /// See Parameters::squares.
  const View& squares() const { return parameters_.squares.view(); }
  bool scattered() const { return parameters_.scattered; }
  const std::vector<Bucket>& buckets() const { return parameters_.buckets; }
  std::vector<Bucket>& buckets() { return parameters_.buckets; }

  /// Where the values of parameters lie. Throws Error where they are another network's.
  std::shared_ptr<const void> parameter_memory() const;
  /// Whether they are another network's, and only read here.
  bool borrows() const { return source_ != nullptr; }
  /// To be called whenever the values of parameters have changed: networks that have them ask for a
  /// refresh() then.
  void changed() { ++parameters_.changes->count, prepared_ = false; }
  std::shared_ptr<const Parameters::Changes> changes() const { return parameters_.changes; }

  /// Draws all parameters from the seed and their names: the same on all ranks and back ends.
  void initialize(std::uint64_t seed);
  /// This rank's block of a parameter becomes `plain`, which lies on the host; so do the master
  /// weights where an optimizer keeps any, and what all workers have. What is wider than the value
  /// is rounded for it. All ranks that hold the block must do the same.
  void set_value(const Parameter& p, const View& plain);
  /// With PlaceOptions::parameters_of: takes that network's parameters as they are now, and the
  /// mean of running statistics that its ranks have of their own. What lies here as it lies there
  /// is the same memory, for which nothing need be done. Collective over the ranks of that network;
  /// throws Error if that is gone: its parameters stay here as they were last.
  void refresh();

  /// With workers: from the next step on they are shared out so, among these ranks. Collective over
  /// them; throws Error, on all of them, where their parameters do not lie alike.
  void share(Workers workers);
  /// Takes the memory that this needs, ahead of share().
  void make_room(const Workers& workers);
  /// How many bytes that will be.
  std::size_t lacks(const Workers& workers) const;
  /// How the parameters lie, as one number: ranks that run workers must agree on it.
  std::uint64_t layout() const;
  /// All ranks of the workers get to know what each of them keeps. Collective over these ranks.
  void exchange_kept(Stream& stream);
  /// The same, and what is not trained becomes the mean, for inference and files: training goes on
  /// with what each worker has.
  void average_kept(Stream& stream);
  /// What the workers of all ranks found in a step is put together: what found_by_step() is. An
  /// update begins with it. Collective over the ranks of the workers; nothing without workers.
  void add_up_workers(Stream& stream);
  /// How long a worker of this rank took: all ranks know it when workers have been added up. On
  /// devices that the host cannot look into, nobody does: 0.
  void note_seconds(int turn, double seconds);
  double seconds_of(int worker) const;

  /// Throws Error where the parameters are another network's that has changed them since refresh();
  /// and in inference where running statistics are those of a worker: average_kept() makes them the
  /// mean.
  void forward(Context& context);
  /// Writes all gradients and starts their sums over the ranks; see Parameter::wait. With
  /// PlaceOptions::micro_batches it does so the last time of as many, and adds to them before.
  /// Throws Error unless the last forward was one of training, which has not run backward yet.
  void backward(Context& context);
  // Both in training, in three parts, for who runs the second one again as it was recorded. The
  // first one puts where kernels find it what differs from step to step; the last one ends the turn
  // on the host.
  void begin_turn(Context& context);
  void run_turn(Context& context) { run_forward(context), run_backward(context); }
  void end_turn();
  /// Throws Error unless the gradients of a step, of one only, wait for an update. Before the first
  /// backward() they may have been put there by hand.
  void check_update() const;
  /// An update takes them.
  void take_gradients() {
    note_worker();  // of a step that was recorded, too
    waiting_ = waiting_ ? std::optional(0) : std::nullopt;
  }
  /// What is not trained is from here on what one of the workers has.
  void note_worker() { parameters_.changes->of_one_worker |= !kept_.empty(); }
  /// No update is to take them.
  void drop_gradients() { waiting_ = 0; }
  /// Whether the ranks have been compared, as they are before the first update.
  bool compared() const { return compared_; }
  void note_compared() { compared_ = true; }
  /// What the loss found (Layer::is_loss) in the last forward; in training with micro-batches, in
  /// those of the step so far. It is on all ranks, also those that take no part in the loss: where
  /// there are such, this is collective. Throws Error if the network does not end in a loss.
  View found(Stream& stream) const;
  /// With micro-batches, what those of the step found (PlaceOptions::micro_batches); else, and
  /// where the network does not end in a loss, absent.
  View found_by_step() const;
  /// What updates of the parameters are told.
  const Passed<UpdateValues>& update_values() const { return numbers_.update; }
  /// By what the gradient of the loss is multiplied, which updates change: LossScale, where kernels
  /// read it; absent without PlaceOptions::loss_scaling.
  View loss_scale() const;
  /// The same on the host, which waits for it; without loss scaling, as it is by default.
  LossScale loss_scale_now() const;
  /// From the next step on it is that; without loss scaling, of no effect.
  void set_loss_scale(const LossScale& scale);
  /// How many micro-batches of a step have run backward here (with workers: or forward, in
  /// inference); 0 when all have.
  int turn() const { return turn_; }

 private:
  void plan_recomputed();
  void plan_workspace();
  void allocate_activations();
  void prepare_constants();
  void tell(Context& context) const;
  void run_forward(Context& context);
  void run_backward(Context& context);
  void add_up_found(Context& context);
  void note_found(Context& context);
  View found_of(int worker) const;
  View shared_found(Stream& stream) const;
  void check_alike() const;
  // In network/impl/workers.hpp.
  void plan_kept();
  void allocate_kept();
  void move_kept(Stream& stream, bool out);
  void learn_kept(Stream& stream);
  void recompute(Context& context, const Step& step);
  void run_layer(Context& context, std::size_t i, std::span<const View> xs, const View& y,
                 LayerRun::Phase phase);

  Network network_;
  PlaceOptions options_;
  Fusion fusion_;
  Part rows_;
  std::vector<std::unique_ptr<Layer>> inserted_;  // whose steps stand between the network's
  std::vector<std::unique_ptr<Site>> sites_;
  // Before what waits, when it goes, for what is on its way: its memory, and the names of steps, by
  // which collectives are called.
  Tensor activations_;
  ActivationPlan arena_;
  std::vector<Step> steps_;
  Parameters parameters_;
  StepNumbers numbers_;
  std::unique_ptr<detail::Source> source_;  // of parameters that are another network's
  /// With workers: what is not trained, of each worker, parameter by parameter.
  struct Kept {
    const NamedParameter* of;
    View all;  ///< {workers, elements, 1, 1}
  };
  std::vector<Kept> kept_;
  Tensor kept_values_;
  std::vector<BoxMove> moves_;
  bool kept_is_new_ = true;  ///< the parameters' values are those of all workers
  Memory memory_;
  int turn_ = 0;
  std::optional<int> waiting_ = {};  ///< steps whose gradients no update has had, once there were
  bool ran_forward_ = false;         ///< by forward(), in training, and not backward since
  bool compared_ = false;
  bool allocated_ = false, ended_ = false;
  bool prepared_ = false;  ///< layers know the values of the parameters, in inference
};

namespace detail {

/// What is wrong where a rank with workers keeps its parameters otherwise than rank 0.
std::string lies_otherwise(int rank);

}  // namespace detail

}  // namespace lamina
