// What convolution and linear share: forward chooses the layout of the weights, in which they and
// their gradient stay; passes that want another one reorder in the common scratchpad.
#pragma once

#include "cpu/dw_products.hpp"
#include "cpu/onednn_core.hpp"
#include "cpu/tile_conv.hpp"
#include "cpu/winograd.hpp"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

namespace lamina::detail {

inline bool is(const dnnl::primitive_desc_base& pd, const char* kind) {
  return std::string_view(pd.impl_info_str()).find(kind) != std::string_view::npos;
}

/// Where oneDNN has only its reference, tens to hundreds of times slower than its other kernels.
inline bool slow(const dnnl::primitive_desc_base& pd) { return !pd || is(pd, "ref"); }

/// The form of a gradient of w or b: in f32.
inline Form gradient(Form form) {
  form.dtype = wide(form.dtype);
  return form;
}

/// Where no primitive does it: on y, which holds the result.
void run_epilogue(Stream&, const Epilogue&, const View& y, const View& added);

class OneDnnWeighted : public WeightedKernel {
 public:
  void forward(Stream&, const View& x, const View& w, const View& b, const View& y,
               const View& added) final;
  void input_grad(Stream&, const View& w, const View& dy, const View& dx) final;
  void weight_grad(Stream&, const View& x, const View& dy, const View& dw, const View& db) final;

 protected:
  OneDnnWeighted(RuntimePtr runtime, const char* what, const Epilogue& e)
      : runtime_(std::move(runtime)), what_(what), epilogue_(e) {}

  /// The descriptors of oneDNN's passes, as forward, backward_data and backward_weights have them;
  /// `bias` is empty without one. First forward: `fused` is that with the epilogue, empty where it
  /// has none or cannot have it. Then dx, and then dw, unless that is not oneDNN's.
  template <class Forward, class F>
  void assemble_forward(const F& forward, const F& fused, const Desc& bias) {
    describe_forward(bias.get_size() > 0, bool(fused));
    const F& pd = fused ? fused : forward;
    const Op op(runtime_, pd, Forward(pd),
                {{DNNL_ARG_SRC, pd.src_desc()},
                 {DNNL_ARG_WEIGHTS, pd.weights_desc()},
                 {DNNL_ARG_BIAS, bias},
                 {DNNL_ARG_DST, pd.dst_desc()}});
    forward_ = op, scratch = op.scratch();
  }
  template <class Data, class F, class D>
  void assemble_data(const F& forward, const D& data) {
    const Op data_op(runtime_, data, Data(data),
                     {{DNNL_ARG_WEIGHTS, data.weights_desc()},
                      {DNNL_ARG_DIFF_DST, data.diff_dst_desc()},
                      {DNNL_ARG_DIFF_SRC, data.diff_src_desc()}});
    data_ = data_op;
    data_w_ = stage(forward.weights_desc(), data.weights_desc());
    data_dy_ = stage(forward.dst_desc(), data.diff_dst_desc());
    arrange(data_op.scratch(), {&data_w_, &data_dy_});
    if (data.diff_src_desc() != forward.src_desc()) {
      to_image_ = reorder_op(runtime_, data.diff_src_desc(), forward.src_desc());
      // Hardly anybody wants the gradient of the images: memory that is never touched is never
      // taken, hence no Tensor, which would clear it.
      const std::size_t bytes = data.diff_src_desc().get_size();
      dx_workspace = bytes;
      image_.reset(std::aligned_alloc(64, aligned(bytes)));
      if (!image_) throw std::bad_alloc();
    }
  }
  template <class Weights, class F, class W>
  void assemble_weights(const F& forward, const W& weights, const Desc& bias) {
    const Op op(runtime_, weights, Weights(weights),
                {{DNNL_ARG_SRC, weights.src_desc()},
                 {DNNL_ARG_DIFF_DST, weights.diff_dst_desc()},
                 {DNNL_ARG_DIFF_WEIGHTS, weights.diff_weights_desc()},
                 {DNNL_ARG_DIFF_BIAS, retyped(bias, f32)}});
    weights_ = op;
    weights_x_ = stage(forward.src_desc(), weights.src_desc());
    weights_dy_ = stage(forward.dst_desc(), weights.diff_dst_desc());
    const Desc dw = weights.diff_weights_desc(), wanted = retyped(forward.weights_desc(), f32);
    if (dw != wanted) weights_dw_ = {reorder_op(runtime_, dw, wanted), dw.get_size()};
    arrange(op.scratch(), {&weights_x_, &weights_dy_, &weights_dw_});
  }

  /// Takes our own for y, with its epilogue, or for dx, where it pays.
  bool take_forward(const std::optional<TileConv>&, bool bias);
  bool take_gradient(const std::optional<TileConv>&, const Desc& kept, const Desc& weights);
  /// Takes our own for dw where it pays; `kept` is how dw is to lie, empty if as it makes it.
  bool take_products(const DwProducts&, const Desc& made = {}, const Desc& kept = {});
  /// Takes ours for all passes, with its epilogue; `once`: of weights that were transformed once.
  void take_winograd(const Winograd&, bool bias, bool once, bool forward_only);
  /// Whether to take one of our own, which is offered by its name: where it pays, but tests force
  /// it, or another one.
  bool takes(std::string_view ours, bool pays) const;

  /// Of whatever computes y: whether with a bias, and with the epilogue, if there is one.
  void describe_forward(bool bias, bool fused);

  struct Free {
    void operator()(void* p) const { std::free(p); }
  };

  /// What a pass takes or gives otherwise than forward has it: a copy in the common scratchpad.
  struct Staged {
    Op reorder = {};  // empty where the layouts agree
    std::size_t bytes = 0, at = 0;
  };
  /// What is taken, from forward's layout.
  Staged stage(const Desc& from, const Desc& to) const;
  /// One behind the other, and all behind what the pass and the reorders take for themselves.
  void arrange(std::size_t own, std::initializer_list<Staged*>);
  void* room(const Staged& s) const { return runtime_->scratch().as<char>() + s.at; }
  void* staged(Stream&, Pass, Staged&, const char* span, void* data);

  RuntimePtr runtime_;
  const char* what_;
  Epilogue epilogue_;
  bool behind_ = false;  // the epilogue is not forward_'s
  bool bias_ = false;
  /// From buffers in the order {x, w, b, y}, {w, dy, dx} and {x, dy, dw, db}.
  using Work = std::function<void(std::initializer_list<void*>)>;
  Work forward_, data_, weights_;
  Staged data_w_, data_dy_, weights_x_, weights_dy_, weights_dw_;
  Op to_image_;  // for an input gradient in another layout than x
  std::unique_ptr<void, Free> image_;
};

}  // namespace lamina::detail
