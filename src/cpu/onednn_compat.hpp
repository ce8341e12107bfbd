// oneDNN 2 and 3 behind one face: 2 makes a primitive descriptor from an operation descriptor, 3
// from the arguments themselves; 2 shows the fields of a memory descriptor, 3 has functions.
#pragma once

#include <oneapi/dnnl/dnnl.hpp>

#include <string>
#include <vector>

namespace lamina::detail {

using Desc = dnnl::memory::desc;
using Dims = dnnl::memory::dims;

/// How the elements of a descriptor lie: outer strides per dimension, and inner blocks, outermost
/// first, each of a dimension `inner_dims[i]`. Not `blocked`: known to oneDNN alone, but for
/// `dims`.
struct Blocking {
  bool blocked = false;
  Dims dims, padded, strides, inner_blocks, inner_dims;
  std::int64_t offset = 0;
};

/// The same layout for elements of another type.
Desc retyped(const Desc& d, dnnl::memory::data_type type);

/// Goes on from oneDNN's first choice until `accept` takes one; else empty.
template <class PrimitiveDesc, class Accept>
PrimitiveDesc first_accepted(PrimitiveDesc pd, const Accept& accept) {
  while (pd && !accept(pd))
    if (!pd.next_impl()) return {};
  return pd;
}

#if DNNL_VERSION_MAJOR >= 3

inline Blocking blocking(const Desc& d) {
  if (d.get_format_kind() != dnnl::memory::format_kind::blocked)
    return {
        .dims = d.get_dims(), .padded = {}, .strides = {}, .inner_blocks = {}, .inner_dims = {}};
  return {true,
          d.get_dims(),
          d.get_padded_dims(),
          d.get_strides(),
          d.get_inner_blks(),
          d.get_inner_idxs(),
          d.get_submemory_offset()};
}

inline dnnl::memory::data_type data_type(const Desc& d) { return d.get_data_type(); }

inline void append_relu(dnnl::post_ops& ops, float slope) {
  ops.append_eltwise(dnnl::algorithm::eltwise_relu, slope, 0);
}

/// By its tag: oneDNN 3 has no other way to blocks.
inline Desc retyped(const Desc& d, dnnl::memory::data_type type) {
  if (d.is_zero() || d.get_data_type() == type) return d;
  const Blocking b = blocking(d);
  if (b.blocked && b.inner_blocks.empty()) return Desc(b.dims, type, b.strides);
  for (int t = dnnl_format_tag_any + 1; t < dnnl_format_tag_last; ++t) {
    const auto tag = static_cast<dnnl::memory::format_tag>(t);
    // Empty where there is no such layout: it cannot even be asked whether it is zero then.
    const Desc same(d.get_dims(), d.get_data_type(), tag, true);
    if (same.get(true) && same == d) return Desc(d.get_dims(), type, tag);
  }
  throw dnnl::error(dnnl_unimplemented, "a layout has no name");
}

/// oneDNN's first description that `accept` takes; empty where there is none.
template <class Primitive, class Accept, class... Args>
auto forward_desc_where(const Accept& accept, const dnnl::engine& engine,
                        const dnnl::primitive_attr& attr, Args&&... args) {
  return first_accepted(typename Primitive::primitive_desc(engine, args..., attr, true), accept);
}
template <class Primitive, class Accept, class Hint, class... Args>
auto backward_desc_where(const Accept& accept, const dnnl::engine& engine,
                         const dnnl::primitive_attr& attr, const Hint& hint, Args&&... args) {
  return first_accepted(typename Primitive::primitive_desc(engine, args..., hint, attr, true),
                        accept);
}

#else

inline Blocking blocking(const Desc& d) {
  const auto n = d.data.ndims;
  const Dims dims(d.data.dims, d.data.dims + n);
  if (d.data.format_kind != dnnl_blocked)
    return {.dims = dims, .padded = {}, .strides = {}, .inner_blocks = {}, .inner_dims = {}};
  const auto& b = d.data.format_desc.blocking;
  return {true,
          dims,
          Dims(d.data.padded_dims, d.data.padded_dims + n),
          Dims(b.strides, b.strides + n),
          Dims(b.inner_blks, b.inner_blks + b.inner_nblks),
          Dims(b.inner_idxs, b.inner_idxs + b.inner_nblks),
          d.data.offset0};
}

inline dnnl::memory::data_type data_type(const Desc& d) {
  return static_cast<dnnl::memory::data_type>(d.data.data_type);
}

inline void append_relu(dnnl::post_ops& ops, float slope) {
  ops.append_eltwise(1, dnnl::algorithm::eltwise_relu, slope, 0);
}

inline Desc retyped(const Desc& d, dnnl::memory::data_type type) {
  Desc other = d;
  if (!d.is_zero()) other.data.data_type = dnnl::memory::convert_to_c(type);
  return other;
}

/// oneDNN's first description that `accept` takes; empty where there is none.
template <class Primitive, class Accept, class... Args>
auto forward_desc_where(const Accept& accept, const dnnl::engine& engine,
                        const dnnl::primitive_attr& attr, Args&&... args) {
  const typename Primitive::desc operation(args...);  // to which going on to the next one refers
  return first_accepted(typename Primitive::primitive_desc(operation, attr, engine, true), accept);
}
template <class Primitive, class Accept, class Hint, class... Args>
auto backward_desc_where(const Accept& accept, const dnnl::engine& engine,
                         const dnnl::primitive_attr& attr, const Hint& hint, Args&&... args) {
  const typename Primitive::desc operation(args...);
  return first_accepted(typename Primitive::primitive_desc(operation, attr, engine, hint, true),
                        accept);
}

#endif

/// oneDNN's first choice; empty where it has no implementation.
template <class Primitive, class... Args>
auto forward_desc(const dnnl::engine& engine, const dnnl::primitive_attr& attr, Args&&... args) {
  const auto all = [](const auto&) { return true; };
  return forward_desc_where<Primitive>(all, engine, attr, args...);
}
template <class Primitive, class Hint, class... Args>
auto backward_desc(const dnnl::engine& engine, const dnnl::primitive_attr& attr, const Hint& hint,
                   Args&&... args) {
  const auto all = [](const auto&) { return true; };
  return backward_desc_where<Primitive>(all, engine, attr, hint, args...);
}

#if DNNL_VERSION_MAJOR >= 3

inline auto eltwise_desc(const dnnl::engine& engine, const dnnl::primitive_attr& attr,
                         dnnl::algorithm kind, const Desc& x) {
  return forward_desc<dnnl::eltwise_forward>(engine, attr, dnnl::prop_kind::forward_training, kind,
                                             x, x, 0.0f, 0.0f);
}
inline auto eltwise_grad_desc(const dnnl::engine& engine, const dnnl::primitive_attr& attr,
                              const dnnl::eltwise_forward::primitive_desc& hint,
                              dnnl::algorithm kind, const Desc& x) {
  return backward_desc<dnnl::eltwise_backward>(engine, attr, hint, kind, x, x, x, 0.0f, 0.0f);
}

inline auto pool_desc(const dnnl::engine& engine, const dnnl::primitive_attr& attr,
                      dnnl::algorithm kind, const Desc& x, const Desc& y, const Dims& stride,
                      const Dims& window, const Dims& before, const Dims& after) {
  return forward_desc<dnnl::pooling_forward>(engine, attr, dnnl::prop_kind::forward_training, kind,
                                             x, y, stride, window, Dims{0, 0}, before, after);
}
inline auto pool_grad_desc(const dnnl::engine& engine, const dnnl::primitive_attr& attr,
                           const dnnl::pooling_forward::primitive_desc& hint, dnnl::algorithm kind,
                           const Desc& x, const Desc& y, const Dims& stride, const Dims& window,
                           const Dims& before, const Dims& after) {
  return backward_desc<dnnl::pooling_backward>(engine, attr, hint, kind, x, y, stride, window,
                                               Dims{0, 0}, before, after);
}

inline auto lrn_desc(const dnnl::engine& engine, const dnnl::primitive_attr& attr, const Desc& x,
                     std::int64_t size, float alpha, float beta, float k) {
  return forward_desc<dnnl::lrn_forward>(engine, attr, dnnl::prop_kind::forward_training,
                                         dnnl::algorithm::lrn_across_channels, x, x, size, alpha,
                                         beta, k);
}
inline auto lrn_grad_desc(const dnnl::engine& engine, const dnnl::primitive_attr& attr,
                          const dnnl::lrn_forward::primitive_desc& hint, const Desc& x,
                          std::int64_t size, float alpha, float beta, float k) {
  return backward_desc<dnnl::lrn_backward>(engine, attr, hint, dnnl::algorithm::lrn_across_channels,
                                           x, x, x, size, alpha, beta, k);
}

using SoftmaxForward = dnnl::softmax_forward;
using SoftmaxBackward = dnnl::softmax_backward;

inline auto softmax_desc(const dnnl::engine& engine, const dnnl::primitive_attr& attr,
                         const Desc& x) {
  return forward_desc<SoftmaxForward>(engine, attr, dnnl::prop_kind::forward_training,
                                      dnnl::algorithm::softmax_accurate, x, x, 1);
}
inline auto softmax_grad_desc(const dnnl::engine& engine, const dnnl::primitive_attr& attr,
                              const SoftmaxForward::primitive_desc& hint, const Desc& x) {
  return backward_desc<SoftmaxBackward>(engine, attr, hint, dnnl::algorithm::softmax_accurate, x, x,
                                        x, 1);
}

#else

inline auto eltwise_desc(const dnnl::engine& engine, const dnnl::primitive_attr& attr,
                         dnnl::algorithm kind, const Desc& x) {
  return forward_desc<dnnl::eltwise_forward>(engine, attr, dnnl::prop_kind::forward_training, kind,
                                             x, 0.0f, 0.0f);
}
inline auto eltwise_grad_desc(const dnnl::engine& engine, const dnnl::primitive_attr& attr,
                              const dnnl::eltwise_forward::primitive_desc& hint,
                              dnnl::algorithm kind, const Desc& x) {
  return backward_desc<dnnl::eltwise_backward>(engine, attr, hint, kind, x, x, 0.0f, 0.0f);
}

inline auto pool_desc(const dnnl::engine& engine, const dnnl::primitive_attr& attr,
                      dnnl::algorithm kind, const Desc& x, const Desc& y, const Dims& stride,
                      const Dims& window, const Dims& before, const Dims& after) {
  return forward_desc<dnnl::pooling_forward>(engine, attr, dnnl::prop_kind::forward_training, kind,
                                             x, y, stride, window, before, after);
}
inline auto pool_grad_desc(const dnnl::engine& engine, const dnnl::primitive_attr& attr,
                           const dnnl::pooling_forward::primitive_desc& hint, dnnl::algorithm kind,
                           const Desc& x, const Desc& y, const Dims& stride, const Dims& window,
                           const Dims& before, const Dims& after) {
  return backward_desc<dnnl::pooling_backward>(engine, attr, hint, kind, x, y, stride, window,
                                               before, after);
}

inline auto lrn_desc(const dnnl::engine& engine, const dnnl::primitive_attr& attr, const Desc& x,
                     std::int64_t size, float alpha, float beta, float k) {
  return forward_desc<dnnl::lrn_forward>(engine, attr, dnnl::prop_kind::forward_training,
                                         dnnl::algorithm::lrn_across_channels, x, size, alpha, beta,
                                         k);
}
inline auto lrn_grad_desc(const dnnl::engine& engine, const dnnl::primitive_attr& attr,
                          const dnnl::lrn_forward::primitive_desc& hint, const Desc& x,
                          std::int64_t size, float alpha, float beta, float k) {
  return backward_desc<dnnl::lrn_backward>(engine, attr, hint, dnnl::algorithm::lrn_across_channels,
                                           x, x, size, alpha, beta, k);
}

using SoftmaxForward = dnnl::softmax_forward;
using SoftmaxBackward = dnnl::softmax_backward;

inline auto softmax_desc(const dnnl::engine& engine, const dnnl::primitive_attr& attr,
                         const Desc& x) {
  return forward_desc<SoftmaxForward>(engine, attr, dnnl::prop_kind::forward_training, x, 1);
}
inline auto softmax_grad_desc(const dnnl::engine& engine, const dnnl::primitive_attr& attr,
                              const SoftmaxForward::primitive_desc& hint, const Desc& x) {
  return backward_desc<SoftmaxBackward>(engine, attr, hint, x, x, 1);
}

#endif

}  // namespace lamina::detail
