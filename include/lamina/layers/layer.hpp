// Layer: the interface of everything that a network is made of, as a description. PlacedLayer: what
// runs of it where it is placed, with its parameters, its kernels and its collectives. The placed
// network owns the buffers between layers.
#pragma once

#include <lamina/cost/blocks.hpp>
#include <lamina/cost/cost.hpp>
#include <lamina/layers/parameter.hpp>
#include <lamina/layers/site.hpp>

#include <concepts>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lamina {

/// What a step tells every layer.
struct Context {
  Stream& stream;
  bool training = true;
  std::uint64_t seed = 0;
  std::int64_t step = 0;   ///< of training, counted over all epochs
  View targets = {};       ///< of this rank's part of the loss: see Layer::targets()
  double stop = 0;         ///< this rank asks to end the training: the loss tells all
  std::int32_t layer = 0;  ///< index of the layer that runs, for random numbers
  // The network sets these: a batch may run in parts (PlaceOptions::micro_batches).
  int micro_batch = 0;    ///< which of them this is,
  int micro_batches = 1;  ///< of how many
  View now = {};          ///< StepValues, for kernels: seed, step, micro_batch and stop
  View loss_scale = {};   ///< f64 {1,1,1,1}, for kernels: a loss multiplies dx by it; absent = 1
  View more = {};         ///< of dy, where a placement adds gradients and it comes in two parts
  bool again = false;     ///< forward runs once more, for backward: what a layer keeps beside x and
                          ///< y is there already, and running averages stay
};

/// By what each of a rank's channels is multiplied, and what is added then.
struct ChannelScale {
  std::vector<double> scale, shift;
};

/// What runs of a layer on a rank. A layer can be placed any number of times; each of these is on
/// its own.
class PlacedLayer {
 public:
  virtual ~PlacedLayer() = default;

  virtual void forward(Context& context, std::span<const View> xs, const View& y) = 0;
  /// Writes every dx that is present, writes the parameters' gradients and starts their reduction.
  /// x and y are valid only where the placement said that they are read.
  virtual void backward(Context& context, std::span<const View> xs, const View& y, const View& dy,
                        std::span<const View> dxs) = 0;

  /// This rank's blocks of them. Where some are trained, the layer's cost counts them.
  virtual std::vector<Parameter*> parameters() { return {}; }
  /// Of a layer whose epilogue is to scale: what its parameters say now.
  virtual ChannelScale channel_scale(const Backend&) const { return {}; }
  /// In inference: parameters have new values. With what Epilogue::scale says, if it has one.
  virtual void prepare(const Backend&, const ChannelScale&) {}
  /// Whether backward writes the gradient of this parameter although it is frozen: there is memory
  /// for it then, which nobody reads. Otherwise its `grad` is absent.
  virtual bool writes_frozen(const Parameter&) const { return true; }
};

/// What placing a layer made, and what it decided.
struct Placement {
  std::unique_ptr<PlacedLayer> layer;
  Form output;
  std::vector<Form> inputs;  ///< wanted; where one differs in layout, the network inserts a reorder
  bool reads_x = true;       ///< backward reads x, so it is kept
  bool reads_y = false;      ///< backward reads y
  bool in_place = false;     ///< y may lie where x lies, and dx where dy lies
  bool passes_gradient = false;  ///< every dx equals dy: the network aliases them (Add)
  bool writes_added = false;    ///< dx of what an epilogue adds, which may lie where dy lies; it is
                                ///< dy itself otherwise
  bool adds_gradients = false;  ///< the gradient of what it absorbs may come in two parts
  bool over_added = false;      ///< in inference, y may lie where what an epilogue adds lies
  bool alias = false;           ///< y is x under another shape, dx is dy: nothing runs (Flatten)
  std::string algorithm;        ///< of the kernels
  std::string remark;           ///< theirs (Kernel::remark)
  std::size_t workspace = 0;    ///< bytes that the layer owns beside parameters
  std::size_t dx_workspace = 0;  ///< and takes only where its dx is wanted
  std::size_t messages = 0;      ///< of `workspace`: where what travels between ranks waits
  std::size_t scratch = 0;       ///< bytes of the back end's shared buffer that it uses
};

/// The placement of a layer with one kernel, the placed layer apart.
inline Placement placement_of(const Kernel& kernel) {
  Placement p;
  p.output = kernel.output, p.inputs = kernel.inputs;
  p.algorithm = kernel.algorithm, p.remark = kernel.remark, p.workspace = kernel.workspace;
  p.dx_workspace = kernel.dx_workspace, p.scratch = kernel.scratch;
  return p;
}

inline constexpr Axis all_but_input = Axis::batch | Axis::channel | Axis::height | Axis::width;

/// A layer as a description: its options, and what follows from them. Nothing of it changes when it
/// is placed.
///
/// Shapes and errors: `output` and `place` throw Error saying what does not fit; the network puts
/// the layer's name in front. Everything that can be checked without buffers is checked in
/// `output`.
class Layer {
 public:
  virtual ~Layer() = default;

  virtual std::string_view type() const = 0;
  /// Options worth a line in listings: "64 3x3 s2 p1".
  virtual std::string describe() const { return {}; }
  /// All options, to their last digit: what ranks must agree on beside shapes and parameters.
  virtual std::string options() const { return describe(); }

  /// Whether y is a loss, {1,5,1,1} in f64: {mean loss, hits, hits among five, rows, Context::stop}
  /// over the rows of the global batch that count, the same on all ranks that take part; of
  /// Context::stop the sum over all ranks or, of those that share rows, the largest. A row has a
  /// target of its own: a sample, or a pixel of one. dx is the gradient of the mean; but where a
  /// batch runs in micro-batches, that of the sum over the rows, divided by all samples of the
  /// batch (Context::micro_batches times those of x).
  virtual bool is_loss() const { return false; }
  /// Whether a loss multiplies dx by Context::loss_scale, as training in f16 wants it.
  virtual bool scales_gradient() const { return false; }
  /// Of a loss: the targets of a whole batch with inputs of these shapes, plain, one for each
  /// sample along n. By default a class of each sample. Of those that are i32, what is below zero
  /// does not count; of those that are f32, what is not a number: loaders fill up batches so.
  virtual Form targets(std::span<const Shape> xs) const {
    return {{xs[0].n, 1, 1, 1}, DType::i32, {}};
  }
  /// The block of them that each rank takes; by default those of its samples.
  virtual Blocks target_blocks(std::span<const Shape> xs, const Split& split, int ranks) const {
    return Blocks::of(targets(xs).shape, split, Axis::batch, ranks);
  }
  /// Whether y is made of sums of products of x and weights, so that its FLOP are counted in pairs:
  /// a multiplication and an addition.
  virtual bool multiplies() const { return false; }

  /// Shape of y for inputs of these shapes.
  virtual Shape output(std::span<const Shape> xs) const = 0;

  /// The axes along which this layer can be split.
  virtual Axis splits() const { return Axis::batch; }
  /// How many channels there are to be cut: those of y, unless that has none left.
  virtual std::int64_t cut_channels(std::span<const Shape> xs) const { return output(xs).c; }
  /// In a few words, why `axis` cannot be cut at all, or not into more parts; empty where the
  /// number of parts and the shapes say it all.
  virtual std::string_view limit(Axis axis, std::span<const Shape>) const {
    return axis == Axis::input ? "that cuts the sums of Conv2D and Linear" : "";
  }
  /// Throws Error saying why where this split of these shapes is impossible, although its axes are
  /// among splits() and no axis has more parts than extent; or impossible to train.
  virtual void check_split(std::span<const Shape>, const Split&, bool /*training*/) const {}
  /// The block of x number i that each of `ranks` ranks takes under a split, halo apart. By default
  /// as y is cut: samples, channels, rows and columns.
  virtual Blocks input_blocks(std::size_t i, std::span<const Shape> xs, const Split& split,
                              int ranks) const {
    return Blocks::of(xs[i], split, all_but_input, ranks);
  }
  /// The block of y that each rank makes.
  virtual Blocks output_blocks(std::span<const Shape> xs, const Split& split, int ranks) const {
    return Blocks::of(output(xs), split, all_but_input, ranks);
  }
  /// Where windows reach over the cuts (layers/halo.hpp): the axes along which ranks give each
  /// other what is there of x,
  virtual Axis halo_axes() const { return Axis::none; }
  /// and the block of x that each of split.ways() ranks then reads.
  virtual Blocks halo_blocks(std::span<const Shape> xs, const Split& split) const {
    return input_blocks(0, xs, split, split.ways());
  }
  /// Work and messages of one training step; xs are whole shapes, across all ranks.
  virtual Cost cost(std::span<const Shape> xs, const Split& split, DType t) const = 0;
  /// Makes the kernels for this rank's block and describes the parameters. Called in forward order,
  /// after `output` of all layers; not on ranks that take no part (Site::active).
  virtual Placement place(std::span<const Spec> xs, const Site& site) const = 0;

  // Fusion (network/fusion.hpp): a layer that is absorbed, and one that absorbs.

  /// With what epilogue the kernel that makes x does this layer's work; none where it cannot.
  virtual std::optional<Epilogue> as_epilogue() const { return std::nullopt; }
  /// Whether this layer's kernel can have such an epilogue there, and under this split: not where
  /// ranks add up their y.
  virtual bool fuses(const Backend&, const Epilogue&, const Split&) const { return false; }
  /// Whether its dy is then that of the epilogue. Otherwise an activation that is absorbed goes on
  /// computing its own gradient.
  virtual bool fuses_backward() const { return false; }
  /// What an epilogue adds to its cost, where a rank's part of y has this shape.
  virtual Cost epilogue_cost(const Epilogue& e, const Shape& y, DType t) const {
    const double n = double(y.size()), added = e.add ? n : 0;
    return {.forward = {added + (e.activation ? n : 0), added * double(size_of(t))}};
  }
  /// place() with an epilogue; what that adds is the last of xs, and y's block of it.
  virtual Placement place_with(const Epilogue& e, std::span<const Spec> xs,
                               const Site& site) const {
    check(!e, "its kernel takes no epilogue");
    return place(xs, site);
  }
};

/// What a network can add: a class derived from Layer, with the Options that it is made from.
template <class L>
concept LayerType = std::derived_from<L, Layer> && requires {
  typename L::Options;
};

/// The one input of a layer that takes exactly one.
inline const Shape& only(std::span<const Shape> xs) {
  check(xs.size() == 1, "expected one input, got ", xs.size());
  return xs[0];
}

}  // namespace lamina
