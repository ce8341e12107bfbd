// Convolution by oneDNN.
#include "cpu/onednn_compare.hpp"
#include "cpu/onednn_weighted.hpp"

#include <algorithm>
#include <optional>
#include <string_view>

namespace lamina::detail {

void OneDnnWeighted::take_plain_weights() {
  if (w.layout.plain()) return;
  blocked_ = Tensor(w);
  const Desc theirs = to_desc(w), ours = plain(layout_dims(w));
  from_plain_ = reorder_op(context_, ours, theirs), to_plain_ = reorder_op(context_, theirs, ours);
  w.layout = {};
  workspace += blocked_.bytes();
}

void* OneDnnWeighted::blocked(Stream& stream, Pass pass, const View& w_) {
  if (!from_plain_) return w_.data;
  void* weights = blocked_.view().data;
  stream.run(pass, "reorder w", [&] { from_plain_({w_.data, weights}); });
  return weights;
}

void OneDnnWeighted::forward(Stream& stream, const View& x, const View& w_, const View& b_,
                             const View& y) {
  check_operand(x, inputs[0], what_), check_operand(w_, w, what_), check_operand(y, output, what_);
  if (bias_) check_operand(b_, b, what_);
  void* weights = blocked(stream, Pass::forward, w_);
  stream.run(Pass::forward, what_, [&] { forward_({x.data, weights, b_.data, y.data}); });
}

void OneDnnWeighted::input_grad(Stream& stream, const View& w_, const View& dy, const View& dx) {
  check_operand(w_, w, what_), check_operand(dy, output, what_);
  check_operand(dx, inputs[0], what_);
  void* weights = blocked(stream, Pass::input_grad, w_);
  if (to_data_) {
    void* other = other_.view().data;
    stream.run(Pass::input_grad, "reorder w", [&] { to_data_({weights, other}); });
    weights = other;
  }
  void* gradient = to_image_ ? image_.get() : dx.data;
  stream.run(Pass::input_grad, what_, [&] { data_({weights, dy.data, gradient}); });
  if (to_image_) {
    stream.run(Pass::input_grad, "reorder dx", [&] { to_image_({gradient, dx.data}); });
  }
}

void OneDnnWeighted::weight_grad(Stream& stream, const View& x, const View& dy, const View& dw,
                                 const View& db) {
  check_operand(x, inputs[0], what_), check_operand(dy, output, what_);
  check_operand(dw, w, what_);
  if (bias_) check_operand(db, b, what_);
  void* blocked = to_plain_ ? blocked_.view().data : dw.data;
  void* gradient = from_weights_ ? other_.view().data : blocked;
  stream.run(Pass::weight_grad, what_, [&] { weights_({x.data, dy.data, gradient, db.data}); });
  if (from_weights_) {
    stream.run(Pass::weight_grad, "reorder dw", [&] { from_weights_({gradient, blocked}); });
  }
  if (to_plain_) {
    stream.run(Pass::weight_grad, "reorder dw", [&] { to_plain_({blocked, dw.data}); });
  }
}

namespace {

using Algorithm = dnnl::algorithm;  // Kernel has a member `algorithm`
using Forward = dnnl::convolution_forward;
using Data = dnnl::convolution_backward_data;
using Weights = dnnl::convolution_backward_weights;

bool is(const dnnl::primitive_desc_base& pd, const char* kind) {
  return std::string_view(pd.impl_info_str()).find(kind) != std::string_view::npos;
}

// Weights stay in the layout `kept`, unless another one leads to another implementation.
template <class Make>
auto choose(const Desc& kept, const Dims& dims, const Make& make) {
  auto free = make(any(dims));
  check(bool(free), "conv: oneDNN has no backward implementation for these windows");
  auto given = make(kept);
  const bool as_good = given && given.impl_info_str() == std::string(free.impl_info_str());
  return as_good ? given : free;
}

// Where forward is faster by Winograd, so is backward, though oneDNN's choice is not always that.
Algorithm as_forward(const Forward::primitive_desc& f) {
  return is(f, "wino") ? Algorithm::convolution_winograd : Algorithm::convolution_auto;
}

std::vector<Compared> operands(const Forward::primitive_desc& a, const Forward::primitive_desc& b) {
  return {{DNNL_ARG_SRC, a.src_desc(), b.src_desc()},
          {DNNL_ARG_WEIGHTS, a.weights_desc(), b.weights_desc()},
          {DNNL_ARG_BIAS, a.bias_desc(), b.bias_desc()},
          {DNNL_ARG_DST, a.dst_desc(), b.dst_desc(), true}};
}
std::vector<Compared> operands(const Data::primitive_desc& a, const Data::primitive_desc& b) {
  return {{DNNL_ARG_WEIGHTS, a.weights_desc(), b.weights_desc()},
          {DNNL_ARG_DIFF_DST, a.diff_dst_desc(), b.diff_dst_desc()},
          {DNNL_ARG_DIFF_SRC, a.diff_src_desc(), b.diff_src_desc(), true}};
}
std::vector<Compared> operands(const Weights::primitive_desc& a, const Weights::primitive_desc& b) {
  return {{DNNL_ARG_SRC, a.src_desc(), b.src_desc()},
          {DNNL_ARG_DIFF_DST, a.diff_dst_desc(), b.diff_dst_desc()},
          {DNNL_ARG_DIFF_WEIGHTS, a.diff_weights_desc(), b.diff_weights_desc(), true},
          {DNNL_ARG_DIFF_BIAS, a.diff_bias_desc(), b.diff_bias_desc(), true}};
}

class Conv final : public OneDnnWeighted {
 public:
  Conv(ContextPtr context, const ConvGeometry& g, const Form& x)
      : OneDnnWeighted(std::move(context), "conv"),
        stride_{g.stride.h, g.stride.w},
        dilation_{g.dilation.h - 1, g.dilation.w - 1},
        before_{g.pad.top, g.pad.left},
        after_{g.pad.bottom, g.pad.right} {
    check_input(x, "conv");
    check(g.channels > 0 && g.groups > 0 && g.channels % g.groups == 0 && x.shape.c % g.groups == 0,
          "conv: ", g.groups, " groups do not divide ", x.shape.c, " input and ", g.channels,
          " output channels");
    check_window("conv", g.kernel, g.stride, g.pad, g.dilation);
    y_ = g.output(x.shape);
    geometry_ = text("x ", x.shape, ", ", g.channels, " channels, kernel ", g.kernel.h, 'x',
                     g.kernel.w, ", stride ", g.stride.h, ',', g.stride.w, ", pad ", g.pad.top, ',',
                     g.pad.left, ',', g.pad.bottom, ',', g.pad.right, ", dilation ", g.dilation.h,
                     ',', g.dilation.w, ", groups ", g.groups, g.bias ? ", bias" : "");
    check_output("conv", x.shape, y_);
    const Shape shape = g.weight(x.shape);
    w_ = dims(shape);
    if (g.groups > 1) {
      w_[0] /= g.groups;
      w_.insert(w_.begin(), g.groups);
    }
    if (g.bias) bias_desc_ = plain({g.channels});

    if (wide(g, x)) return;
    const auto forward = forward_pass(x);
    const auto data = data_pass(forward, x.shape);
    const auto weights = weights_pass(forward);
    inputs = {to_form(x.shape, forward.src_desc())};
    output = to_form(y_, forward.dst_desc());
    w = to_form(shape, forward.weights_desc());
    if (g.bias) b = {{1, g.channels, 1, 1}, DType::f32, {}};
    assemble<Forward, Data, Weights>(forward, data, weights, bias_desc_);
  }

 private:
  // Between 4 and 15 channels oneDNN has jitted kernels for some passes and its slow reference for
  // the others. Blocked images and weights are padded with zeros to 16 anyway, so the kernels for
  // 16 channels compute the same on the same memory. True where that was taken.
  bool wide(const ConvGeometry& g, const Form& x) {
    constexpr std::int64_t block = 16;
    if (g.groups > 1 || x.shape.c <= 3 || x.shape.c % block == 0) return false;
    const Dims narrow = w_;
    Form wide_x{x.shape, DType::f32, {}};
    wide_x.shape.c = w_[1] = (x.shape.c + block - 1) / block * block;
    const auto forward = right<Forward>("y", Algorithm::convolution_auto, [&](Algorithm how) {
      return forward_desc_of(how, any(dims(wide_x.shape)));
    });
    if (!forward || is(forward, "ref") || !forced().empty()) return w_ = narrow, false;
    const auto data = data_pass(forward, wide_x.shape);
    const auto weights = weights_pass(forward);
    using Tag = dnnl::memory::format_tag;
    for (const Tag tag : {Tag::OIhw16i16o, Tag::OIhw8i8o}) {
      if (is(data, "ref") || is(weights, "ref") || Desc(w_, f32, tag) != forward.weights_desc()) {
        continue;
      }
      const Tag image = tag == Tag::OIhw16i16o ? Tag::nChw16c : Tag::nChw8c;
      if (Desc(dims(wide_x.shape), f32, image) != forward.src_desc()) continue;
      inputs = {to_form(x.shape, Desc(dims(x.shape), f32, image))};
      w = to_form(g.weight(x.shape), Desc(narrow, f32, tag));
      if (w.bytes() != forward.weights_desc().get_size()) continue;
      output = to_form(y_, forward.dst_desc());
      if (g.bias) b = {{1, g.channels, 1, 1}, DType::f32, {}};
      assemble<Forward, Data, Weights>(forward, data, weights, bias_desc_);
      return true;
    }
    return w_ = narrow, false;
  }

  // ---- a pass, as oneDNN would take it, unless that is wrong

  // The layout that x has stays, unless another one leads to another implementation. Images of one
  // to three channels stay plain: Winograd would pad them to sixteen and take three times as long.
  Forward::primitive_desc forward_pass(const Form& x) {
    if (x.shape.c <= 3 && x.layout.plain()) {
      const auto direct = forward_desc_of(Algorithm::convolution_direct, to_desc(x));
      if (direct && is(direct, "jit:")) return direct;
    }
    return right<Forward>("y", Algorithm::convolution_auto, [&](Algorithm how) {
      const auto free = forward_desc_of(how, any(dims(x.shape)));
      check(bool(free), "conv: oneDNN has no implementation for ", x, " and these windows");
      if (to_layout(free.src_desc()) == x.layout) return free;
      const auto given = forward_desc_of(how, to_desc(x));
      const bool as_good = given && given.impl_info_str() == std::string(free.impl_info_str());
      return as_good ? given : free;
    });
  }

  Data::primitive_desc data_pass(const Forward::primitive_desc& forward, const Shape& x) {
    return right<Data>("dx", as_forward(forward), [&](Algorithm how) {
      const auto with = [&](const Desc& image) {
        return choose(forward.weights_desc(), w_,
                      [&](const Desc& layout) { return data_desc(forward, how, image, layout); });
      };
      const auto same = with(forward.src_desc());
      // There is no fast kernel for the gradient of an image in a few plain channels.
      if (!is(same, "ref") && (forced().empty() || is(same, forced().c_str()))) return same;
      const auto blocked = with(any(dims(x)));
      return is(blocked, "ref") ? same : blocked;
    });
  }

  Weights::primitive_desc weights_pass(const Forward::primitive_desc& forward) {
    return right<Weights>("dw", as_forward(forward), [&](Algorithm how) {
      return choose(forward.weights_desc(), w_,
                    [&](const Desc& layout) { return weights_desc(forward, how, layout); });
    });
  }

  // oneDNN 2.6's Winograd gives a wrong dx where there is more padding above than below, or less.
  bool known_wrong(std::string_view result, const dnnl::primitive_desc_base& pd) const {
    return result == "dx" && is(pd, "wino") && before_[0] != after_[0];
  }

  // What `make(how)` describes, unless its `result` is known or found to be wrong: the direct one
  // then.
  template <class Primitive, class Make>
  typename Primitive::primitive_desc right(std::string_view result, Algorithm how,
                                           const Make& make) {
    auto pd = make(how);
    if (!pd || !forced().empty()) return pd;
    const auto direct = make(Algorithm::convolution_direct);
    if (!direct || direct.impl_info_str() == std::string(pd.impl_info_str())) return pd;
    if (context_->choice.avoid_known && known_wrong(result, pd)) return direct;
    const std::string what =
        text(library(), ": ", result, " by ", pd.impl_info_str(), " of ", geometry_);
    std::optional<double> off = context_->choice.verdicts->find(what);
    if (!off) {
      off =
          difference(context_, pd, Primitive(pd), direct, Primitive(direct), operands(pd, direct));
      context_->choice.verdicts->keep(what, *off);
    }
    if (*off < tolerance) return pd;
    remark +=
        text(remark.empty() ? "" : "; ", result, " by ", pd.impl_info_str(), " is off by ",
             format("%.2g", *off), " for ", geometry_, ": taken from ", direct.impl_info_str());
    return direct;
  }

  // ---- oneDNN's descriptions: what a test forces, where there is such, or else its first choice

  const std::string& forced() const { return context_->choice.only; }

  template <class Make>
  auto first(Algorithm how, const Make& make) const {
    const Choice& choice = context_->choice;
    if (choice.offered || !forced().empty())
      for (const Algorithm any : {Algorithm::convolution_auto, Algorithm::convolution_winograd}) {
        const auto found = make(any, [&](const dnnl::primitive_desc_base& pd) {
          if (choice.offered) choice.offered->insert(pd.impl_info_str());
          return !forced().empty() && is(pd, forced().c_str());
        });
        if (found) return found;
      }
    const auto all = [](const auto&) { return true; };
    const auto pd = make(how, all);
    return pd ? pd : make(Algorithm::convolution_auto, all);
  }

  Forward::primitive_desc forward_desc_of(Algorithm asked, const Desc& x) const {
    return first(asked, [&](Algorithm how, const auto& accept) {
      return forward_desc_where<Forward>(
          accept, context_->engine, context_->attr, dnnl::prop_kind::forward_training, how, x,
          any(w_), bias_desc_, any(dims(y_)), stride_, dilation_, before_, after_);
    });
  }

  Data::primitive_desc data_desc(const Forward::primitive_desc& f, Algorithm asked, const Desc& x,
                                 const Desc& layout) const {
    return first(asked, [&](Algorithm how, const auto& accept) {
      return backward_desc_where<Data>(accept, context_->engine, context_->attr, f, how, x, layout,
                                       f.dst_desc(), stride_, dilation_, before_, after_);
    });
  }

  Weights::primitive_desc weights_desc(const Forward::primitive_desc& f, Algorithm asked,
                                       const Desc& layout) const {
    return first(asked, [&](Algorithm how, const auto& accept) {
      return backward_desc_where<Weights>(accept, context_->engine, context_->attr, f, how,
                                          f.src_desc(), layout, bias_desc_, f.dst_desc(), stride_,
                                          dilation_, before_, after_);
    });
  }

  /// Of random data, relative to the largest value. Winograd in f32 is off by 1e-5 at most.
  static constexpr double tolerance = 1e-3;

  std::string geometry_;  // of all that an implementation can depend on
  Shape y_;
  Dims w_, stride_, dilation_, before_, after_;
  Desc bias_desc_;
};

}  // namespace

std::unique_ptr<WeightedKernel> make_conv(ContextPtr context, const ConvGeometry& g,
                                          const Form& x) {
  return std::make_unique<Conv>(std::move(context), g, x);
}

}  // namespace lamina::detail
