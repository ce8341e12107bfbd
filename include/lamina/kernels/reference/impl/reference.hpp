// The kernels of the reference back end.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/kernels/detail/in_turn.hpp>
#include <lamina/kernels/reference.hpp>
#include <lamina/kernels/reference/channels.hpp>
#include <lamina/kernels/reference/elementwise.hpp>
#include <lamina/kernels/reference/loss.hpp>
#include <lamina/kernels/reference/norm.hpp>
#include <lamina/kernels/reference/pool.hpp>
#include <lamina/kernels/reference/update.hpp>
#include <lamina/kernels/reference/weighted.hpp>

namespace lamina {

namespace detail {

/// Type<T> for numbers of x's type.
template <class Made, template <class> class Type, class... Args>
std::unique_ptr<Made> make_reference(const Form& x, Args&&... args) {
  return visit(x.dtype, [&]<Floating T>(T) -> std::unique_ptr<Made> {
    return std::make_unique<Type<T>>(args...);
  });
}

/// `make` makes the kernel for f32 or f64.
template <class Make>
std::unique_ptr<WeightedKernel> make_reference_weighted(const Form& x, MemorySpace& memory,
                                                        const Make& make) {
  const Form in{x.shape, wide(x.dtype), {}};
  auto kernel = visit(in.dtype, [&]<std::floating_point T>(T) -> std::unique_ptr<WeightedKernel> {
    return make.template operator()<T>(in);
  });
  if (in.dtype == x.dtype) return kernel;
  return std::make_unique<ReferenceNarrow>(std::move(kernel), x.dtype, memory);
}

}  // namespace detail

LAMINA_INLINE std::string Reference::description() const {
  return text("Eigen ", EIGEN_WORLD_VERSION, '.', EIGEN_MAJOR_VERSION, '.', EIGEN_MINOR_VERSION,
              ", ", Eigen::SimdInstructionSetsInUse(), ", one thread");
}

LAMINA_INLINE bool Reference::supports(const Precision& p) const {
  const bool usual_gradients = p.gradients == p.compute || p.gradients == wide(p.compute);
  return is_floating(p.compute) && p.weights == p.compute && usual_gradients &&
         p.statistics == wide(p.compute) && is_floating(p.states) &&
         size_of(p.states) >= size_of(p.statistics);
}

LAMINA_INLINE std::unique_ptr<WeightedKernel> Reference::conv(const ConvGeometry& g, const Form& x,
                                                              const Epilogue& e) const {
  detail::check_form(x, "conv");
  g.check(x.shape);
  return detail::make_reference_weighted(x, *memory_, [&]<std::floating_point T>(const Form& in) {
    return std::make_unique<detail::ReferenceConv<T>>(g, in, e, *memory_);
  });
}

LAMINA_INLINE std::unique_ptr<WeightedKernel> Reference::linear(std::int64_t features, bool bias,
                                                                const Form& x,
                                                                const Epilogue& e) const {
  detail::check_form(x, "linear");
  check(features > 0, "linear: expected at least one feature, got ", features);
  return detail::make_reference_weighted(x, *memory_, [&]<std::floating_point T>(const Form& in) {
    return std::make_unique<detail::ReferenceLinear<T>>(features, bias, in, e);
  });
}

LAMINA_INLINE std::unique_ptr<UnaryKernel> Reference::activation(const Activation& a,
                                                                 const Form& x) const {
  detail::check_form(x, "activation");
  check(a.slope >= 0, "leaky_relu: expected a slope of at least 0, got ", a.slope);
  return detail::make_reference<UnaryKernel, detail::ReferenceActivation>(x, a, x);
}

LAMINA_INLINE std::unique_ptr<UnaryKernel> Reference::pool(const PoolGeometry& g,
                                                           const Form& x) const {
  detail::check_form(x, "pool");
  g.check(x.shape);
  return detail::make_reference<UnaryKernel, detail::ReferencePool>(x, g, x, *memory_);
}

LAMINA_INLINE std::unique_ptr<UnaryKernel> Reference::lrn(const LrnGeometry& g,
                                                          const Form& x) const {
  detail::check_form(x, "lrn");
  g.check();
  return detail::make_reference<UnaryKernel, detail::ReferenceLrn>(x, g, x);
}

LAMINA_INLINE std::unique_ptr<UnaryKernel> Reference::softmax(const Form& x) const {
  detail::check_form(x, "softmax");
  return detail::make_reference<UnaryKernel, detail::ReferenceSoftmax>(x, x);
}

LAMINA_INLINE std::unique_ptr<UnaryKernel> Reference::reorder(const Form& x, const Form& y) const {
  detail::check_form(x, "reorder");
  detail::check_form(y, "reorder");
  check(x.shape == y.shape, "reorder: expected the same shape, got ", x, " and ", y);
  return std::make_unique<detail::ReferenceReorder>(x, y);
}

LAMINA_INLINE std::unique_ptr<UnaryKernel> Reference::reorder_rows(const Form& x,
                                                                   std::int64_t first,
                                                                   const Form& y, std::int64_t to,
                                                                   std::int64_t count) const {
  detail::check_form(x, "reorder"), detail::check_form(y, "reorder");
  return std::make_unique<detail::ReferenceRows>(x, first, y, to, count);
}

LAMINA_INLINE std::unique_ptr<NaryKernel> Reference::sum(std::span<const Form> xs) const {
  check(!xs.empty(), "sum: expected at least one input");
  for (const Form& x : xs) {
    detail::check_form(x, "sum");
    check(x == xs[0], "sum: expected inputs alike, got ", xs[0], " and ", x);
  }
  return detail::make_reference<NaryKernel, detail::ReferenceSum>(xs[0], xs);
}

LAMINA_INLINE std::unique_ptr<NaryKernel> Reference::concat(std::span<const Form> xs) const {
  check(!xs.empty(), "concat: expected at least one input");
  for (const Form& x : xs) {
    detail::check_form(x, "concat");
    Form alike = x;
    alike.shape.c = xs[0].shape.c;
    check(alike == xs[0], "concat: expected inputs alike but for the channels, got ", xs[0],
          " and ", x);
  }
  return detail::make_reference<NaryKernel, detail::ReferenceConcat>(xs[0], xs);
}

LAMINA_INLINE std::unique_ptr<NormKernel> Reference::batch_norm(const Form& x,
                                                                const Epilogue& e) const {
  detail::check_form(x, "batch_norm");
  return detail::make_reference<NormKernel, detail::ReferenceNorm>(x, x, e);
}

LAMINA_INLINE std::unique_ptr<DropoutKernel> Reference::dropout(double rate, const Form& x,
                                                                const Shape& whole,
                                                                const Box& box) const {
  detail::check_form(x, "dropout");
  check(rate >= 0 && rate < 1, "dropout: expected a rate from 0 to less than 1, got ", rate);
  return detail::make_reference<DropoutKernel, detail::ReferenceDropout>(x, rate, x, whole, box);
}

LAMINA_INLINE std::unique_ptr<LossKernel> Reference::softmax_cross_entropy(const LossGeometry& g,
                                                                           const Form& x) const {
  detail::check_form(x, "softmax_cross_entropy");
  check(g.label_smoothing >= 0 && g.label_smoothing <= 1,
        "softmax_cross_entropy: expected label smoothing from 0 to 1, got ", g.label_smoothing);
  return detail::make_reference<LossKernel, detail::ReferenceLoss>(x, g, x);
}

LAMINA_INLINE void Reference::copy(const View& from, const View& to) const {
  check(from && to && from.layout.plain() && to.layout.plain() && from.shape == to.shape,
        "copy: expected two plain views of the same shape, got ", from.form(), " and ", to.form());
  if (from.dtype != to.dtype)
    detail::convert(from, to);
  else if (from.data != to.data)
    std::memcpy(to.data, from.data, to.bytes());
}

LAMINA_INLINE std::unique_ptr<UpdateKernel> Reference::update(const UpdateRule& rule,
                                                              std::vector<UpdatePart> parts) const {
  detail::check_parts(rule, parts);
  for (const UpdatePart& p : parts) detail::check_form(p.w, "update");
  return std::make_unique<detail::UpdateInTurn>(
      this, std::move(parts), [rule](Stream&, const UpdateStep& at, const UpdatePart& p) {
        detail::reference_update(rule, at, p.w, p.dw, p.states);
      });
}

LAMINA_INLINE std::unique_ptr<SquaresKernel> Reference::squares(
    std::vector<SquaresPart> parts) const {
  for (const SquaresPart& p : parts) detail::check_form(p.x, "squares");
  return std::make_unique<detail::SquaresInTurn>(std::move(parts), detail::reference_squared_norm);
}

}  // namespace lamina
