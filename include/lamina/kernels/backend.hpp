// Backend: what computes. It makes kernels; a kernel is made once, when a layer is placed, holds
// what is costly to make (primitives, chosen algorithms, workspace) and allocates nothing when it
// runs.
#pragma once

#include <lamina/cost/update_rule.hpp>
#include <lamina/kernels/geometry.hpp>
#include <lamina/kernels/samples.hpp>
#include <lamina/kernels/step_values.hpp>
#include <lamina/tensor/box.hpp>
#include <lamina/tensor/precision.hpp>
#include <lamina/tensor/stream.hpp>
#include <lamina/tensor/tensor.hpp>

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace lamina {

/// Throws Error unless the operand is there and has this form. Formats its message only when it
/// fails, so that kernels which allocate nothing may call it.
inline void check_operand(const View& operand, const Form& form, const char* who) {
  check(operand.data != nullptr, who, ": an operand is absent, expected ", form);
  check(operand.form() == form, who, ": expected an operand ", form, ", got ", operand.form());
}

/// A bit for each of so many elements, in whole words.
inline Form bits(std::int64_t elements) {
  return {{1, 1, 1, (elements + 31) / 32}, DType::i32, {}};
}

/// Throws Error unless there are elements, and they are floating point numbers.
void check_elements(const Form& x, const char* who);

/// What all kernels have in common. `inputs` are the forms in which the kernel wants its operands;
/// a caller whose data lie otherwise must reorder them first. Gradients have the form of what they
/// are the gradient of: dx that of x, dw that of w; but those of parameters are of the dtype
/// Precision::gradients.
class Kernel {
 public:
  virtual ~Kernel() = default;

  std::vector<Form> inputs;      ///< wanted forms of x (one per input)
  Form output;                   ///< form of y
  std::string algorithm;         ///< for example "brg:avx512_core", for logs and profiles
  std::string remark;            ///< why it is not the one that the library would have taken
  std::size_t workspace = 0;     ///< bytes that the kernel owns beside its operands
  std::size_t dx_workspace = 0;  ///< and takes only where input_grad runs
  std::size_t scratch = 0;  ///< bytes it uses while it runs, of a buffer that all kernels share
};

/// Convolution and linear: an operation with weights. `b` and `db` are absent without a bias.
///
/// An epilogue is forward's alone: dy is the gradient of what lies before it. Both backward passes
/// read dy, so that the activation's own kernel had better run before them, once.
class WeightedKernel : public Kernel {
 public:
  Form w, b;  ///< wanted forms of weights {k, c/groups, r, s} and bias {1, k, 1, 1}
  /// Whether y may lie where the epilogue's `added` lies.
  bool over_added = false;

  virtual void forward(Stream&, const View& x, const View& w, const View& b, const View& y,
                       const View& added = {}) = 0;
  virtual void input_grad(Stream&, const View& w, const View& dy, const View& dx) = 0;
  virtual void weight_grad(Stream&, const View& x, const View& dy, const View& dw,
                           const View& db) = 0;
};

/// y = f(x). `backward` may use x and y; which of the two it reads, the layer states to the
/// network. Every operand may be the same buffer as its counterpart (y = x, dx = dy) where
/// `in_place` is set.
class UnaryKernel : public Kernel {
 public:
  bool in_place = false;
  bool reads_x = true, reads_y = false;  ///< operands that input_grad needs

  virtual void forward(Stream&, const View& x, const View& y) = 0;
  virtual void input_grad(Stream&, const View& x, const View& y, const View& dy,
                          const View& dx) = 0;
};

/// y = f(x1, x2, ...): sum and concatenation. An absent dx is skipped.
class NaryKernel : public Kernel {
 public:
  virtual void forward(Stream&, std::span<const View> xs, const View& y) = 0;
  virtual void input_grad(Stream&, const View& dy, std::span<const View> dxs) = 0;
};

/// Batch normalisation in the steps between which a layer may communicate. With M samples-times-
/// positions per channel (over all ranks that share statistics), mean = sum(x)/M and
/// var = sum(x^2)/M - mean^2 (Ioffe and Szegedy, 2015); sums are kept in f64 so that the difference
/// is exact enough.
///
/// forward:  statistics -> [all-reduce sums] -> finish -> normalize
/// backward: gradients  -> [all-reduce sums] -> input_grad
/// inference: running   -> [all-reduce sums] -> from_running -> normalize
///
/// With an epilogue, dy is the gradient of what that makes. Where it has an activation, `normalize`
/// keeps of each element in `signs` whether that let it pass as it was, which backward reads
/// instead of y; and the gradient of the operand that it adds is `dadded`. Without an activation
/// that is dy itself.
class NormKernel : public Kernel {
 public:
  Form signs;  ///< where there is an activation: bits, in an order of the kernel's own
  bool adds_gradients = false;  ///< `gradients` takes dy in two parts

  /// sums f64 {1, 2c, 1, 1}: the c values sum(x), then the c values sum(x^2).
  virtual void statistics(Stream&, const View& x, const View& sums) = 0;
  /// From summed `sums` over `count` values per channel: `mean` and `inv_std` = 1/sqrt(var +
  /// epsilon) (f64 {1,c,1,1}); moves running_mean and running_var (unbiased; {1,c,1,1}, of
  /// Precision::statistics) by `momentum` towards the batch's.
  virtual void finish(Stream&, const View& sums, double count, double epsilon, double momentum,
                      const View& mean, const View& inv_std, const View& running_mean,
                      const View& running_var) = 0;
  /// sums f64 {1, 2c, 1, 1}: running_mean, then running_var.
  virtual void running(Stream&, const View& running_mean, const View& running_var,
                       const View& sums) = 0;
  /// mean and inv_std of inference from summed `sums` of `variants` running averages: their mean,
  /// rounded as it is in a file.
  virtual void from_running(Stream&, const View& sums, int variants, double epsilon,
                            const View& mean, const View& inv_std) = 0;
  /// y = (x - mean) * inv_std * w + b; w, b {1,c,1,1} of Precision::statistics, absent = 1 and 0.
  /// Absent signs are not kept: no backward pass follows.
  virtual void normalize(Stream&, const View& x, const View& mean, const View& inv_std,
                         const View& w, const View& b, const View& y, const View& added = {},
                         const View& signs = {}) = 0;
  /// Local sums f64 {1, 2c, 1, 1}: sum(dy), then sum(dy * xhat); these are also db and dw, which
  /// are written where present. So is dadded, which may lie where dy lies. Where `more` is present,
  /// the sum of the two, rounded, is meant by dy: just where adds_gradients is set, and with
  /// dadded.
  virtual void gradients(Stream&, const View& x, const View& mean, const View& inv_std,
                         const View& dy, const View& sums, const View& dw, const View& db,
                         const View& signs = {}, const View& dadded = {},
                         const View& more = {}) = 0;
  /// dx = w * inv_std * (dy - sum(dy)/M - xhat * sum(dy * xhat)/M), sums over all M = count values.
  /// Without signs, dy is what `gradients` made of it: dadded.
  virtual void input_grad(Stream&, const View& x, const View& mean, const View& inv_std,
                          const View& w, const View& dy, const View& sums, double count,
                          const View& dx, const View& signs = {}) = 0;
};

/// Zeroes elements with probability `rate` and scales the others by 1/(1-rate). The mask of an
/// element is a function of the seed, the step, the layer and its index in the whole tensor, across
/// all ranks and micro-batches (kernels/dropout_mask.hpp), so it depends on neither threads, ranks,
/// splits nor layout, and backward computes it anew. x == y and dy == dx are allowed.
class DropoutKernel : public Kernel {
 public:
  /// y = mask * x; `now`: StepValues.
  virtual void apply(Stream&, Pass, const View& now, std::int32_t layer, const View& x,
                     const View& y) = 0;
};

/// Softmax and cross-entropy over the channel axis of logits {n, c, h, w} (plain), in the steps
/// between which ranks that each have a part of the classes, or of the rows, may communicate. A row
/// is a pixel of a sample, r of them in all. Those with a label (i32 {n,1,h,w}, a number among all
/// classes) below zero do not count.
///
/// forward:  largest -> [all-reduce largest, max] -> sums -> [all-reduce sums] -> finish
///           -> [all-reduce totals] -> mean
class LossKernel : public Kernel {
 public:
  /// largest f64 {1,2r+1,1,1}: the largest logit of each row; that of its label: -infinity where
  /// the label is not among the classes of x; StepValues::stop, which is for `finish` to pass on.
  virtual void largest(Stream&, const View& x, const View& labels, const View& now,
                       const View& largest) = 0;
  /// p = exp(x - largest), of the form `output`; sums f64 {3,r,1,1}: of each row the sum of p, the
  /// sum of x, and how many classes precede the label.
  virtual void sums(Stream&, const View& x, const View& labels, const View& largest, const View& p,
                    const View& sums) = 0;
  /// p becomes the probabilities; totals f64 {1,5,1,1}: sum over the rows that count of the loss,
  /// of top-1 hits and of top-5 hits, how many these rows are, and the stop.
  virtual void finish(Stream&, const View& labels, const View& largest, const View& sums,
                      const View& p, const View& totals) = 0;
  /// The loss among the summed `totals` becomes the mean; rows f64 {1,1,1,1}: by what it was
  /// divided, which is 1 where no row counts.
  virtual void mean(Stream&, const View& totals, const View& rows) = 0;
  /// dx = (p - target) / rows, divided by `samples` instead where that is not 0; times what is in
  /// `scale`, f64 {1,1,1,1}, where that is present.
  virtual void input_grad(Stream&, const View& p, const View& labels, const View& rows,
                          double samples, const View& dx, const View& scale = {}) = 0;
};

/// Neighbouring elements that an update treats alike: of a parameter, or of several. All are alike,
/// but for the dtypes of dw and `rounded`; any layout (padding stays zero).
struct UpdatePart {
  View w, dw;
  std::vector<View> states = {};
  View rounded = {};  ///< where w, which are master weights, go rounded; absent where w are none
  double rate = 1;    ///< times that of the step
  double weight_decay = 0;  ///< beside that of the step
  /// Sums of squares of these parameters and of their gradients, f64 {1,1,1,1}: the rate is that of
  /// LARS.
  View value_square = {}, grad_square = {};
  double trust = 0;

  /// What is to be done here, in numbers.
  UpdateStep resolved(const UpdateStep& step) const;
};

/// Updates parts that were named when it was made, all of them by one call.
class UpdateKernel {
 public:
  virtual ~UpdateKernel() = default;
  virtual void run(Stream&, const UpdateStep&) = 0;
};

/// A tensor, and where the sum of the squares of its elements goes, f64 {1,1,1,1}.
struct SquaresPart {
  View x, sum;
};

/// Sums up squares, of all the tensors that were named when it was made by one call. Each sum is
/// added up in an order that depends on the number of elements alone.
class SquaresKernel {
 public:
  virtual ~SquaresKernel() = default;
  virtual void run(Stream&, Pass) = 0;
};

/// The elements of `box`, a block of some tensor: from where they lie in one larger block of it to
/// where they lie in another. Both blocks are plain, of one dtype.
struct BoxMove {
  View from;  ///< absent: zeros
  Box from_block;
  View to;
  Box to_block, box;
  bool add = false;  ///< to what is there
};

/// On the host, those of its elements, counted in n-c-h-w order.
void move_part(const BoxMove& move, Part elements);
/// One after the other, on the host.
void move_boxes(std::span<const BoxMove> moves);

/// What a loss found (Layer::is_loss) joins `totals`, what others found, or takes their place: a
/// mean over all rows, and sums. On the host.
inline void add_found(const View& found, bool first, const View& totals) {
  const double* from = found.as<double>();
  double* to = totals.as<double>();
  if (first) std::fill_n(to, 5, 0.0);
  const double rows = to[3] + from[3];
  to[0] = rows > 0 ? (to[0] * to[3] + from[0] * from[3]) / rows : 0;
  for (int i = 1; i < 5; ++i) to[i] += from[i];
}

/// After a step whose gradients have these sums of squares; `scale`: LossScale. On the host.
void adjust_loss_scale(const LossScaling& how, const View& squares, const View& scale);

/// The kernels that may take an epilogue.
enum class Fusible { conv, linear, batch_norm };

class CeilingLoops;
const CeilingLoops& processor_loops();

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string name() const = 0;         ///< "reference", "onednn"
  virtual std::string description() const = 0;  ///< with version and active instruction set
  /// Whether it has all kernels for it.
  virtual bool supports(const Precision&) const = 0;
  /// In which type convolutions and linear layers multiply elements of type t.
  virtual DType arithmetic(DType t) const { return wide(t); }
  /// Where all operands of its kernels lie. It must outlive the tensors there.
  virtual MemorySpace& memory() const { return host_memory(); }
  /// What tells the ceilings of what it computes with.
  virtual const CeilingLoops& ceilings() const { return processor_loops(); }
  /// Takes what its kernels share, now and not when the first of them runs.
  virtual void make_room() const {}

  /// Whether these kernels take this epilogue, and are the faster for it. The same on all ranks
  /// that have this back end.
  virtual bool fuses(Fusible, const Epilogue&) const { return false; }
  virtual std::unique_ptr<WeightedKernel> conv(const ConvGeometry&, const Form& x,
                                               const Epilogue& = {}) const = 0;
  /// The same for inference: it has forward alone, and may want weights in a layout that cannot be
  /// read back.
  virtual std::unique_ptr<WeightedKernel> conv_forward(const ConvGeometry& g, const Form& x,
                                                       const Epilogue& e = {}) const {
    return conv(g, x, e);
  }
  /// y[n,k] = b[k] + sum_c w[k,c] x[n,c]; x of any height and width counts as c*h*w features.
  virtual std::unique_ptr<WeightedKernel> linear(std::int64_t features, bool bias, const Form& x,
                                                 const Epilogue& = {}) const = 0;
  virtual std::unique_ptr<UnaryKernel> activation(const Activation&, const Form& x) const = 0;
  virtual std::unique_ptr<UnaryKernel> pool(const PoolGeometry&, const Form& x) const = 0;
  virtual std::unique_ptr<UnaryKernel> lrn(const LrnGeometry&, const Form& x) const = 0;
  /// Over the channel axis.
  virtual std::unique_ptr<UnaryKernel> softmax(const Form& x) const = 0;
  /// Same shape, other layout or dtype; input_grad goes the other way.
  virtual std::unique_ptr<UnaryKernel> reorder(const Form& x, const Form& y) const = 0;
  /// The same between `count` rows of x from row `first` on and those of y from row `to` on, of
  /// tensors that agree in all but their height; the other rows of y stay. Null where the back end
  /// has none, or not for these layouts.
  virtual std::unique_ptr<UnaryKernel> reorder_rows(const Form&, std::int64_t /*first*/,
                                                    const Form&, std::int64_t /*to*/,
                                                    std::int64_t /*count*/) const {
    return nullptr;
  }
  /// y may be the buffer of the first x where their forms agree.
  virtual std::unique_ptr<NaryKernel> sum(std::span<const Form> xs) const = 0;
  /// Along the channel axis.
  virtual std::unique_ptr<NaryKernel> concat(std::span<const Form> xs) const = 0;
  virtual std::unique_ptr<NormKernel> batch_norm(const Form& x, const Epilogue& = {}) const = 0;
  /// x is the block `box` of a tensor of shape `whole`.
  virtual std::unique_ptr<DropoutKernel> dropout(double rate, const Form& x, const Shape& whole,
                                                 const Box& box) const = 0;
  virtual std::unique_ptr<LossKernel> softmax_cross_entropy(const LossGeometry&,
                                                            const Form& x) const = 0;

  /// Copies between any two layouts of this back end, outside of steps (initial weights,
  /// checkpoints). Either of the two may lie on the host, plain.
  virtual void copy(const View& from, const View& to) const = 0;
  /// See lamina::put_pixels().
  virtual void put_pixels(Stream& stream, const Pixels& from, const View& to) const {
    lamina::put_pixels(stream, from, to);
  }
  /// One after the other, recorded as `what`.
  virtual void move(Stream& stream, Pass pass, const char* what,
                    std::span<const BoxMove> moves) const {
    stream.run(pass, what, [&] { move_boxes(moves); });
  }
  /// See lamina::add_found().
  virtual void add_found(Stream& stream, const View& found, bool first, const View& totals) const {
    stream.run(Pass::forward, "add found", [&] { lamina::add_found(found, first, totals); });
  }
  /// Throws Error for a rule of one's own, and for parts that are not of the rule.
  virtual std::unique_ptr<UpdateKernel> update(const UpdateRule&,
                                               std::vector<UpdatePart>) const = 0;
  virtual std::unique_ptr<SquaresKernel> squares(std::vector<SquaresPart>) const = 0;
  /// See lamina::adjust_loss_scale().
  virtual void adjust_loss_scale(Stream& stream, const LossScaling& how, const View& squares,
                                 const View& scale) const {
    stream.run(Pass::update, "adjust loss scale",
               [&] { lamina::adjust_loss_scale(how, squares, scale); });
  }
};

}  // namespace lamina
