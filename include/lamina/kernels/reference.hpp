// Reference: the back end that others are compared with. Plain n-c-h-w, all floating point numbers,
// one thread, Eigen for the matrix products and loops for the rest. Slow, complete and
// deterministic. With bf16 and f16 it computes in f32 and rounds once, when it writes.
#pragma once

#include <lamina/kernels/detail/in_turn.hpp>
#include <lamina/kernels/reference/channels.hpp>
#include <lamina/kernels/reference/elementwise.hpp>
#include <lamina/kernels/reference/loss.hpp>
#include <lamina/kernels/reference/norm.hpp>
#include <lamina/kernels/reference/pool.hpp>
#include <lamina/kernels/reference/update.hpp>
#include <lamina/kernels/reference/weighted.hpp>

namespace lamina {

class Reference : public Backend {
 public:
  /// Kernels have their workspace in `memory`. They run on the host: in that of another device, or
  /// of none, they can be made and asked what they take, but not run.
  explicit Reference(MemorySpace& memory = host_memory()) : memory_(&memory) {}

  std::string name() const override { return "reference"; }
  std::string description() const override {
    return text("Eigen ", EIGEN_WORLD_VERSION, '.', EIGEN_MAJOR_VERSION, '.', EIGEN_MINOR_VERSION,
                ", ", Eigen::SimdInstructionSetsInUse(), ", one thread");
  }
  bool supports(const Precision& p) const override {
    const bool usual_gradients = p.gradients == p.compute || p.gradients == wide(p.compute);
    return is_floating(p.compute) && p.weights == p.compute && usual_gradients &&
           p.statistics == wide(p.compute) && is_floating(p.states) &&
           size_of(p.states) >= size_of(p.statistics);
  }
  MemorySpace& memory() const override { return *memory_; }

  bool fuses(Fusible, const Epilogue& e) const override { return e.rectifies(); }

  std::unique_ptr<WeightedKernel> conv(const ConvGeometry& g, const Form& x,
                                       const Epilogue& e) const override {
    detail::check_form(x, "conv");
    g.check(x.shape);
    return weighted(x, [&]<std::floating_point T>(const Form& in) {
      return std::make_unique<detail::ReferenceConv<T>>(g, in, e, *memory_);
    });
  }

  std::unique_ptr<WeightedKernel> linear(std::int64_t features, bool bias, const Form& x,
                                         const Epilogue& e) const override {
    detail::check_form(x, "linear");
    check(features > 0, "linear: expected at least one feature, got ", features);
    return weighted(x, [&]<std::floating_point T>(const Form& in) {
      return std::make_unique<detail::ReferenceLinear<T>>(features, bias, in, e);
    });
  }

  /// The slope of leaky_relu must not be negative: its gradient is found from y.
  std::unique_ptr<UnaryKernel> activation(const Activation& a, const Form& x) const override {
    detail::check_form(x, "activation");
    check(a.slope >= 0, "leaky_relu: expected a slope of at least 0, got ", a.slope);
    return make<UnaryKernel, detail::ReferenceActivation>(x, a, x);
  }

  std::unique_ptr<UnaryKernel> pool(const PoolGeometry& g, const Form& x) const override {
    detail::check_form(x, "pool");
    g.check(x.shape);
    return make<UnaryKernel, detail::ReferencePool>(x, g, x, *memory_);
  }

  std::unique_ptr<UnaryKernel> lrn(const LrnGeometry& g, const Form& x) const override {
    detail::check_form(x, "lrn");
    g.check();
    return make<UnaryKernel, detail::ReferenceLrn>(x, g, x);
  }

  std::unique_ptr<UnaryKernel> softmax(const Form& x) const override {
    detail::check_form(x, "softmax");
    return make<UnaryKernel, detail::ReferenceSoftmax>(x, x);
  }

  std::unique_ptr<UnaryKernel> reorder(const Form& x, const Form& y) const override {
    detail::check_form(x, "reorder");
    detail::check_form(y, "reorder");
    check(x.shape == y.shape, "reorder: expected the same shape, got ", x, " and ", y);
    return std::make_unique<detail::ReferenceReorder>(x, y);
  }

  std::unique_ptr<UnaryKernel> reorder_rows(const Form& x, std::int64_t first, const Form& y,
                                            std::int64_t to, std::int64_t count) const override {
    detail::check_form(x, "reorder"), detail::check_form(y, "reorder");
    return std::make_unique<detail::ReferenceRows>(x, first, y, to, count);
  }

  std::unique_ptr<NaryKernel> sum(std::span<const Form> xs) const override {
    check(!xs.empty(), "sum: expected at least one input");
    for (const Form& x : xs) {
      detail::check_form(x, "sum");
      check(x == xs[0], "sum: expected inputs alike, got ", xs[0], " and ", x);
    }
    return make<NaryKernel, detail::ReferenceSum>(xs[0], xs);
  }

  std::unique_ptr<NaryKernel> concat(std::span<const Form> xs) const override {
    check(!xs.empty(), "concat: expected at least one input");
    for (const Form& x : xs) {
      detail::check_form(x, "concat");
      Form alike = x;
      alike.shape.c = xs[0].shape.c;
      check(alike == xs[0], "concat: expected inputs alike but for the channels, got ", xs[0],
            " and ", x);
    }
    return make<NaryKernel, detail::ReferenceConcat>(xs[0], xs);
  }

  std::unique_ptr<NormKernel> batch_norm(const Form& x, const Epilogue& e) const override {
    detail::check_form(x, "batch_norm");
    return make<NormKernel, detail::ReferenceNorm>(x, x, e);
  }

  std::unique_ptr<DropoutKernel> dropout(double rate, const Form& x, const Shape& whole,
                                         const Box& box) const override {
    detail::check_form(x, "dropout");
    check(rate >= 0 && rate < 1, "dropout: expected a rate from 0 to less than 1, got ", rate);
    return make<DropoutKernel, detail::ReferenceDropout>(x, rate, x, whole, box);
  }

  std::unique_ptr<LossKernel> softmax_cross_entropy(const LossGeometry& g,
                                                    const Form& x) const override {
    detail::check_form(x, "softmax_cross_entropy");
    check(g.label_smoothing >= 0 && g.label_smoothing <= 1,
          "softmax_cross_entropy: expected label smoothing from 0 to 1, got ", g.label_smoothing);
    return make<LossKernel, detail::ReferenceLoss>(x, g, x);
  }

  /// Between plain views of the same shape; converts between floating point numbers.
  void copy(const View& from, const View& to) const override {
    check(from && to && from.layout.plain() && to.layout.plain() && from.shape == to.shape,
          "copy: expected two plain views of the same shape, got ", from.form(), " and ",
          to.form());
    if (from.dtype != to.dtype)
      detail::convert(from, to);
    else if (from.data != to.data)
      std::memcpy(to.data, from.data, to.bytes());
  }

  std::unique_ptr<UpdateKernel> update(const UpdateRule& rule,
                                       std::vector<UpdatePart> parts) const override {
    detail::check_parts(rule, parts);
    for (const UpdatePart& p : parts) detail::check_form(p.w, "update");
    return std::make_unique<detail::UpdateInTurn>(
        this, std::move(parts), [rule](Stream&, const UpdateStep& at, const UpdatePart& p) {
          detail::reference_update(rule, at, p.w, p.dw, p.states);
        });
  }
  std::unique_ptr<SquaresKernel> squares(std::vector<SquaresPart> parts) const override {
    for (const SquaresPart& p : parts) detail::check_form(p.x, "squares");
    return std::make_unique<detail::SquaresInTurn>(std::move(parts),
                                                   detail::reference_squared_norm);
  }

 private:
  template <class Made, template <class> class Type, class... Args>
  static std::unique_ptr<Made> make(const Form& x, Args&&... args) {
    return visit(x.dtype, [&]<Floating T>(T) -> std::unique_ptr<Made> {
      return std::make_unique<Type<T>>(args...);
    });
  }

  /// `make` makes the kernel for f32 or f64.
  template <class Make>
  std::unique_ptr<WeightedKernel> weighted(const Form& x, const Make& make) const {
    const Form in{x.shape, wide(x.dtype), {}};
    auto kernel = visit(in.dtype, [&]<std::floating_point T>(T) -> std::unique_ptr<WeightedKernel> {
      return make.template operator()<T>(in);
    });
    if (in.dtype == x.dtype) return kernel;
    return std::make_unique<detail::ReferenceNarrow>(std::move(kernel), x.dtype, *memory_);
  }

  MemorySpace* memory_;
};

}  // namespace lamina
