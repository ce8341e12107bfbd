// What convolution and linear share: forward chooses the layout of the weights, in which they and
// their gradient stay; passes that want another one reorder into a buffer of their own. Where they
// have to be plain all the same, they are reordered to and from forward's layout first.
#pragma once

#include "cpu/onednn_core.hpp"

#include <algorithm>
#include <cstdlib>
#include <memory>

namespace lamina::detail {

class OneDnnWeighted : public WeightedKernel {
 public:
  void take_plain_weights() final;
  void forward(Stream&, const View& x, const View& w, const View& b, const View& y) final;
  void input_grad(Stream&, const View& w, const View& dy, const View& dx) final;
  void weight_grad(Stream&, const View& x, const View& dy, const View& dw, const View& db) final;

 protected:
  explicit OneDnnWeighted(ContextPtr context, const char* what)
      : context_(std::move(context)), what_(what) {}

  /// The descriptors of oneDNN's three passes, as forward, backward_data and backward_weights have
  /// them; `bias` is empty without one.
  template <class Forward, class Data, class Weights, class F, class D, class W>
  void assemble(const F& forward, const D& data, const W& weights, const Desc& bias) {
    bias_ = bias.get_size() > 0;
    const Desc wanted = forward.weights_desc();
    forward_ = Op(context_, forward, Forward(forward),
                  {{DNNL_ARG_SRC, forward.src_desc()},
                   {DNNL_ARG_WEIGHTS, wanted},
                   {DNNL_ARG_BIAS, bias},
                   {DNNL_ARG_DST, forward.dst_desc()}});
    data_ = Op(context_, data, Data(data),
               {{DNNL_ARG_WEIGHTS, data.weights_desc()},
                {DNNL_ARG_DIFF_DST, data.diff_dst_desc()},
                {DNNL_ARG_DIFF_SRC, data.diff_src_desc()}});
    weights_ = Op(context_, weights, Weights(weights),
                  {{DNNL_ARG_SRC, weights.src_desc()},
                   {DNNL_ARG_DIFF_DST, weights.diff_dst_desc()},
                   {DNNL_ARG_DIFF_WEIGHTS, weights.diff_weights_desc()},
                   {DNNL_ARG_DIFF_BIAS, bias}});
    if (data.weights_desc() != wanted) {
      to_data_ = reorder_op(context_, wanted, data.weights_desc());
      other_ = Context::bytes_of(data.weights_desc().get_size());
    }
    if (weights.diff_weights_desc() != wanted) {
      from_weights_ = reorder_op(context_, weights.diff_weights_desc(), wanted);
      const std::size_t bytes = weights.diff_weights_desc().get_size();
      if (bytes > other_.bytes()) other_ = Context::bytes_of(bytes);
    }
    if (data.diff_src_desc() != forward.src_desc()) {
      to_image_ = reorder_op(context_, data.diff_src_desc(), forward.src_desc());
      // Hardly anybody wants the gradient of the images: memory that is never touched is never
      // taken, hence no Tensor, which would clear it.
      const std::size_t bytes = data.diff_src_desc().get_size();
      dx_workspace = bytes;
      image_.reset(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
      if (!image_) throw std::bad_alloc();
    }
    algorithm = join(forward.impl_info_str(), data.impl_info_str(), weights.impl_info_str());
    workspace = other_.bytes();
    scratch = std::max({forward_.scratch(), data_.scratch(), weights_.scratch()});
  }

  struct Free {
    void operator()(void* p) const { std::free(p); }
  };

  /// The weights in forward's layout.
  void* blocked(Stream&, Pass, const View& w);

  ContextPtr context_;
  const char* what_;
  bool bias_ = false;
  Op forward_, data_, weights_;
  Op to_data_, from_weights_;  // empty where the layouts agree
  Op from_plain_, to_plain_;   // empty unless weights are taken plain
  Op to_image_;                // for an input gradient in another layout than x
  std::unique_ptr<void, Free> image_;
  Tensor other_;    // weights, or their gradient, in another layout than forward's
  Tensor blocked_;  // in forward's, where they are taken plain
};

}  // namespace lamina::detail
