// Convolution by oneDNN: which of its implementations computes each pass.
#include "cpu/onednn_compare.hpp"
#include "cpu/onednn_products.hpp"
#include "cpu/onednn_weighted.hpp"
#include "cpu/onednn_winograd.hpp"

#include <lamina/base/version.hpp>

#include <algorithm>
#include <optional>
#include <string_view>

namespace lamina::detail {
namespace {

using Algorithm = dnnl::algorithm;  // Kernel has a member `algorithm`
using Forward = dnnl::convolution_forward;
using Data = dnnl::convolution_backward_data;
using Weights = dnnl::convolution_backward_weights;

// Weights stay in the layout `kept`, unless another one leads to another implementation.
template <class Make>
auto choose(const Desc& kept, const Dims& dims, const Make& make) {
  auto free = make(any(dims, data_type(kept)));
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

/// Channels in blocks, of images and of weights.
struct Channels {
  using Tag = dnnl::memory::format_tag;
  std::int64_t block;
  Tag image, weights, weights_bf16;

  Desc weights_of(const Dims& w, Type type) const {
    return Desc(w, type, type == f32 ? weights : weights_bf16);
  }
  std::int64_t padded(std::int64_t c) const { return (c + block - 1) / block * block; }
};
constexpr Channels blocked_channels[] = {
    {16, Channels::Tag::nChw16c, Channels::Tag::OIhw16i16o, Channels::Tag::OIhw8i16o2i},
    {8, Channels::Tag::nChw8c, Channels::Tag::OIhw8i8o, Channels::Tag::OIhw8i8o}};

class Conv final : public OneDnnWeighted {
 public:
  Conv(RuntimePtr runtime, const ConvGeometry& g, const Form& x, const Epilogue& e,
       bool forward_only)
      : OneDnnWeighted(std::move(runtime), "conv", e),
        forward_only_(forward_only),
        g_(g),
        stride_{g.stride.h, g.stride.w},
        dilation_{g.dilation.h - 1, g.dilation.w - 1},
        before_{g.pad.top, g.pad.left},
        after_{g.pad.bottom, g.pad.right},
        type_(type_of(x.dtype)) {
    check_input(x, "conv");
    g.check(x.shape);
    y_ = g.output(x.shape);
    geometry_ = geometry_of(g, x);
    shape_ = g.weight(x.shape);
    w_ = dims(shape_);
    if (g.groups > 1) {
      w_[0] /= g.groups;
      w_.insert(w_.begin(), g.groups);
    }
    if (g.bias) {
      bias_desc_ = plain({g.channels}, type_);
      b = {{1, g.channels, 1, 1}, x.dtype, {}};
    }
    if (g.groups == 1 && x.shape.c > 3 && forced().empty() && wide(x.shape)) return;
    Passes p = passes(forward_pass(x), x.shape);
    if (slow(p)) replace_slow(p, x.shape);
    if (winograd(p, x.shape)) return;
    if (forward_only) p.forward = for_constant_weights(p.forward, x.shape);
    take(p, x.shape, p.forward.src_desc(), p.forward.weights_desc());
  }

 private:
  struct Passes {
    Forward::primitive_desc forward;
    Data::primitive_desc data;
    Weights::primitive_desc weights;
  };
  Passes passes(const Forward::primitive_desc& forward, const Shape& x) {
    if (forward_only_) return {forward, {}, {}};
    return {forward, data_pass(forward, x), weights_pass(forward)};
  }
  bool slow(const Passes& p) const {
    return detail::slow(p.forward) ||
           (!forward_only_ && (detail::slow(p.data) || detail::slow(p.weights)));
  }

  // `image` and `weights`: how x and w lie, in the channels that they have.
  void take(const Passes& p, const Shape& x, const Desc& image, const Desc& weights) {
    inputs = {to_form(x, image)};
    output = to_form(y_, p.forward.dst_desc());
    w = to_form(shape_, weights);
    std::string y = TileConv::name, dx = y;
    if (!take_forward(tile_conv(g_, x, p.forward, epilogue_), g_.bias)) {
      assemble_forward<Forward>(p.forward, fused(p.forward), bias_desc_);
      y = p.forward.impl_info_str();
    }
    if (forward_only_) {
      algorithm = y;
      return;
    }
    const Desc kept = p.forward.weights_desc();
    const bool alike = p.data.diff_src_desc() == p.forward.src_desc() &&
                       p.data.diff_dst_desc() == p.forward.dst_desc();
    if (!alike || !take_gradient(tile_conv(g_, x, p.data), kept, p.data.weights_desc())) {
      assemble_data<Data>(p.forward, p.data);
      dx = p.data.impl_info_str();
    }
    std::string dw = p.weights.impl_info_str();
    const auto own = own_dw(g_, x, p.forward, p.weights);
    if (own && take_products(own->kernel, own->made, own->kept)) {
      dw = own->kernel.how();
    } else {
      assemble_weights<Weights>(p.forward, p.weights, bias_desc_);
    }
    algorithm = join(y, dx, dw);
  }

  // `forward` with the epilogue, on the same operands; empty where that leads elsewhere, or takes
  // longer than the two one after the other: some kernels have too few registers then.
  Forward::primitive_desc fused(const Forward::primitive_desc& forward) const {
    if (!epilogue_) return {};
    const auto same = [&](const dnnl::primitive_desc_base& pd) {
      return pd.impl_info_str() == std::string(forward.impl_info_str());
    };
    const auto pd = forward_desc_where<Forward>(
        same, runtime_->engine, runtime_->with(epilogue_), dnnl::prop_kind::forward_training,
        Algorithm::convolution_direct, forward.src_desc(), forward.weights_desc(), bias_desc_,
        forward.dst_desc(), stride_, dilation_, before_, after_);
    if (!pd) return {};
    const Run plain = run_of(runtime_, forward, Forward(forward));
    const auto apart = [&](const Arguments& a) {
      plain(a);
      const View y(a.at(DNNL_ARG_DST).get_data_handle(), to_form(y_, forward.dst_desc()));
      Stream stream;
      run_epilogue(stream, epilogue_, y, y);
    };
    const std::string e = text(epilogue_.add ? " and sum" : "", ", slope ", epilogue_.slope());
    const double one = seconds(pd, e, run_of(runtime_, pd, Forward(pd)));
    // In a network y has left the caches when the second one comes.
    return one <= 1.05 * seconds(forward, text(", then", e), apart) ? pd
                                                                    : Forward::primitive_desc();
  }

  // Ours, where oneDNN has a direct convolution for AVX2 only.
  bool winograd(const Passes& direct, const Shape& x) {
    const Channels& c = blocked_channels[1];
    const auto& f = direct.forward;
    if (!is(f, "jit:avx2") || !Winograd::possible(g_) ||
        f.src_desc() != Desc(dims(x), f32, c.image) ||
        f.dst_desc() != Desc(dims(y_), f32, c.image) ||
        f.weights_desc() != Desc(w_, f32, c.weights)) {
      return false;
    }
    const Winograd kernel(g_, x);
    const bool each_time = takes(ours, Winograd::pays(g_, x));
    if (forced().empty() && each_time && !ours_agrees(kernel, direct)) return false;
    const Once* once = forward_only_ ? once_where_it_pays(f, x, each_time) : nullptr;
    if (!each_time && !once) return false;
    const Winograd taken = once ? Winograd(g_, x, once->tile) : kernel;
    inputs = {to_form(x, f.src_desc())};
    output = to_form(y_, f.dst_desc());
    take_winograd(taken, g_.bias, once, forward_only_);
    w = once ? prepared_form(shape_, taken) : to_form(shape_, f.weights_desc());
    algorithm = once ? once->name : ours;
    return true;
  }

  bool ours_agrees(const Winograd& kernel, const Passes& direct) {
    const auto& f = direct.forward;
    const auto& d = direct.data;
    const auto& w_pass = direct.weights;
    const auto same = [&](std::string_view result, Pass pass, const auto& pd, const auto& primitive,
                          const std::vector<Compared>& operands) {
      return agrees(result, ours, pd.impl_info_str(), [&] {
        return difference(runtime_, run_of(kernel, pass), run_of(runtime_, pd, primitive),
                          operands);
      });
    };
    if (!same("y", Pass::forward, f, Forward(f), operands(f, f))) return false;
    if (forward_only_) return true;
    return same("dx", Pass::input_grad, d, Data(d),
                {{DNNL_ARG_WEIGHTS, f.weights_desc(), d.weights_desc()},
                 {DNNL_ARG_DIFF_DST, f.dst_desc(), d.diff_dst_desc()},
                 {DNNL_ARG_DIFF_SRC, f.src_desc(), d.diff_src_desc(), true}}) &&
           same("dw", Pass::weight_grad, w_pass, Weights(w_pass),
                {{DNNL_ARG_SRC, f.src_desc(), w_pass.src_desc()},
                 {DNNL_ARG_DIFF_DST, f.dst_desc(), w_pass.diff_dst_desc()},
                 {DNNL_ARG_DIFF_WEIGHTS, f.weights_desc(), w_pass.diff_weights_desc(), true},
                 {DNNL_ARG_DIFF_BIAS, f.bias_desc(), w_pass.diff_bias_desc(), true}});
  }

  /// Ways of ours for weights that stay, which are transformed once.
  struct Once {
    std::string_view name;
    int tile;
  };
  static constexpr Once ways_once[] = {{"lamina:winograd_once", 4},
                                       {"lamina:winograd_2x2_once", 2}};

  // The fastest of them, if it saves 5 % of what it takes as oneDNN or each time; or else null.
  const Once* once_where_it_pays(const Forward::primitive_desc& f, const Shape& x, bool each_time) {
    if (!forced().empty()) {
      const auto way =
          std::ranges::find_if(ways_once, [&](const Once& o) { return takes(o.name, true); });
      return each_time || way == std::end(ways_once) ? nullptr : way;
    }
    const auto as = [](std::string_view way) { return text(", as ", way, ' ', version); };
    const Run direct = run_of(runtime_, f, Forward(f));
    double least = 0.95 * (each_time ? seconds(f, as(ours), run_of(Winograd(g_, x), Pass::forward))
                                     : seconds(f, "", direct));
    const Once* fastest = nullptr;
    for (const Once& way : ways_once) {
      takes(way.name, true);  // a test hears of it
      const Run run = run_of_prepared(Winograd(g_, x, way.tile));
      const bool agree = agrees("y", way.name, each_time ? ours : f.impl_info_str(),
                                [&] { return difference(runtime_, run, direct, operands(f, f)); });
      if (const double time = agree ? seconds(f, as(way.name), run) : least; time < least)
        fastest = &way, least = time;
    }
    return fastest;
  }

  // For channels that do not fill a block oneDNN has jitted kernels for some passes and its slow
  // reference for the others. Blocked images and weights are padded with zeros to whole blocks
  // anyway, so the kernels for as many channels compute the same on the same memory. True where
  // that was taken.
  bool wide(const Shape& x) {
    const Dims narrow = w_;
    for (const Channels& c : blocked_channels) {
      if (x.c % c.block == 0) continue;
      Shape wide_x = x;
      wide_x.c = w_[1] = c.padded(x.c);
      const auto forward = right<Forward>("y", Algorithm::convolution_auto, [&](Algorithm how) {
        return forward_desc_of(how, any(dims(wide_x), type_));
      });
      if (!detail::slow(forward) && forward.src_desc() == Desc(dims(wide_x), type_, c.image) &&
          forward.weights_desc() == c.weights_of(w_, type_)) {
        const Passes p = passes(forward, wide_x);
        if (!slow(p)) {
          take(p, x, Desc(dims(x), type_, c.image), c.weights_of(narrow, type_));
          return true;
        }
      }
      w_ = narrow;
    }
    return false;
  }

  // Matrix products take any window, but plain operands only: where forward has something better,
  // the gradients' are reordered first.
  void replace_slow(Passes& p, const Shape& x) const {
    const auto how = Algorithm::convolution_direct;
    const Desc image = plain(dims(x), type_), weights = plain(w_, type_);
    const Desc result = plain(dims(y_), type_);
    const auto forward = forward_desc<Forward>(
        runtime_->engine, runtime_->attr, dnnl::prop_kind::forward_training, how, image, weights,
        bias_desc_, result, stride_, dilation_, before_, after_);
    if (!forward) return;
    const bool all = detail::slow(p.forward) && !detail::slow(forward);
    if (all) p.forward = forward;
    if (forward_only_) return;
    const auto data = backward_desc<Data>(runtime_->engine, runtime_->attr, forward, how, image,
                                          weights, result, stride_, dilation_, before_, after_);
    const auto gradient = backward_desc<Weights>(
        runtime_->engine, runtime_->attr, forward, how, image, retyped(weights, f32),
        retyped(bias_desc_, f32), result, stride_, dilation_, before_, after_);
    if ((all || detail::slow(p.data)) && !detail::slow(data)) p.data = data;
    if ((all || detail::slow(p.weights)) && !detail::slow(gradient)) p.weights = gradient;
  }

  // ---- a pass, as oneDNN would take it, unless that is wrong

  // The layout that x has stays, unless another one leads to another implementation. Images of one
  // to three channels stay plain: Winograd would pad them to sixteen and take three times as long.
  // But not where AMX takes them n-h-w-c: reordered, it is done in an eighth of the time.
  Forward::primitive_desc forward_pass(const Form& x) {
    if (x.shape.c <= 3 && x.layout.plain()) {
      const auto how = Algorithm::convolution_direct;
      const auto direct = forward_desc_of(how, to_desc(x));
      const auto free = forward_desc_of(how, any(dims(x.shape), type_));
      if (direct && is(direct, "jit") && !(free && is(free, "amx"))) return direct;
    }
    return right<Forward>("y", Algorithm::convolution_auto, [&](Algorithm how) {
      const auto free = forward_desc_of(how, any(dims(x.shape), type_));
      check(bool(free), "conv: oneDNN has no implementation for ", x, " and these windows");
      if (to_layout(free.src_desc()) == x.layout) return free;
      const auto given = forward_desc_of(how, to_desc(x));
      const bool as_good = given && given.impl_info_str() == std::string(free.impl_info_str());
      return as_good ? given : free;
    });
  }

  // Weights that stay can be transformed for Winograd once: where that takes less time than
  // `usual`, on images that lie alike.
  Forward::primitive_desc for_constant_weights(const Forward::primitive_desc& usual,
                                               const Shape& x) {
    auto fastest = usual;
    const bool may_be =
        type_ == f32 && g_.groups == 1 && g_.kernel == Pair(3) && x.c > 3 && forced().empty();
    if (!may_be) return fastest;
    const Run as_usual = run_of(runtime_, usual, Forward(usual));
    double least = seconds(usual, "", as_usual);
    for (const char* tiles : {"wino_4x3", "wino_2x3"}) {
      const auto accept = [&](const auto& pd) { return is(pd, tiles); };
      const auto pd = forward_desc_where<Forward>(
          accept, runtime_->engine, runtime_->attr, dnnl::prop_kind::forward_inference,
          Algorithm::convolution_winograd, usual.src_desc(), any(w_, type_), bias_desc_,
          usual.dst_desc(), stride_, dilation_, before_, after_);
      if (!pd) continue;
      const char* how = " for constant weights";
      const Run run = run_of(runtime_, pd, Forward(pd));
      const bool agree = agrees(text("y", how), pd.impl_info_str(), usual.impl_info_str(), [&] {
        return difference(runtime_, run, as_usual, operands(pd, usual));
      });
      if (const double time = agree ? seconds(pd, how, run) : least; time < 0.95 * least)
        fastest = pd, least = time;
    }
    return fastest;
  }

  // Of forward as it is run, on random data, unless the verdicts know.
  double seconds(const Forward::primitive_desc& pd, std::string_view how, const Run& run) const {
    Verdicts& verdicts = *runtime_->choice.verdicts;
    const std::string what =
        text(library(), ": seconds of y by ", pd.impl_info_str(), how, " of ", geometry_);
    std::optional<double> known = verdicts.find(what);
    const Runtime::Trial tried(*runtime_);
    if (!known) known = verdicts.keep(what, time_of(runtime_, run, operands(pd, pd)));
    return *known;
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
      const auto blocked = with(any(dims(x), type_));
      return is(blocked, "ref") ? same : blocked;
    });
  }

  Weights::primitive_desc weights_pass(const Forward::primitive_desc& forward) {
    return right<Weights>("dw", as_forward(forward), [&](Algorithm how) {
      return choose(retyped(forward.weights_desc(), f32), w_,
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
    if (runtime_->choice.avoid_known && known_wrong(result, pd)) return direct;
    const bool agree = agrees(result, pd.impl_info_str(), direct.impl_info_str(), [&] {
      return difference(runtime_, run_of(runtime_, pd, Primitive(pd)),
                        run_of(runtime_, direct, Primitive(direct)), operands(pd, direct));
    });
    return agree ? pd : direct;
  }

  // Whether `result` as `by` computes it is that of `direct`: by the verdict, or else `compare()`.
  template <class Compare>
  bool agrees(std::string_view result, std::string_view by, std::string_view direct,
              const Compare& compare) {
    Verdicts& verdicts = *runtime_->choice.verdicts;
    const std::string what =
        text(library(), ": ", result, " by ", by, by.starts_with(ours) ? text(' ', version) : "",
             " of ", geometry_);
    std::optional<double> off = verdicts.find(what);
    if (const Runtime::Trial trial(*runtime_); !off) off = verdicts.keep(what, compare());
    if (*off < (type_ == f32 ? tolerance : rounding)) return true;
    append(remark, text(remark.empty() ? "" : "; ", result, " by ", by, " is off by ",
                        format("%.2g", *off), " for ", geometry_, ": taken from ", direct));
    return false;
  }

  // ---- oneDNN's descriptions: what a test forces, where there is such, or else its first choice

  const std::string& forced() const { return runtime_->choice.only; }

  template <class Make>
  auto first(Algorithm how, const Make& make) const {
    const Choice& choice = runtime_->choice;
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
          accept, runtime_->engine, runtime_->attr, dnnl::prop_kind::forward_training, how, x,
          any(w_, type_), bias_desc_, any(dims(y_), type_), stride_, dilation_, before_, after_);
    });
  }

  Data::primitive_desc data_desc(const Forward::primitive_desc& f, Algorithm asked, const Desc& x,
                                 const Desc& layout) const {
    return first(asked, [&](Algorithm how, const auto& accept) {
      return backward_desc_where<Data>(accept, runtime_->engine, runtime_->attr, f, how, x, layout,
                                       f.dst_desc(), stride_, dilation_, before_, after_);
    });
  }

  Weights::primitive_desc weights_desc(const Forward::primitive_desc& f, Algorithm asked,
                                       const Desc& layout) const {
    return first(asked, [&](Algorithm how, const auto& accept) {
      return backward_desc_where<Weights>(accept, runtime_->engine, runtime_->attr, f, how,
                                          f.src_desc(), layout, retyped(bias_desc_, f32),
                                          f.dst_desc(), stride_, dilation_, before_, after_);
    });
  }

  static constexpr std::string_view ours = "lamina:winograd";
  /// Of random data, relative to the largest value. Winograd in f32 is off by some 1e-5.
  static constexpr double tolerance = 1e-3;
  /// The same where results are rounded to bf16: by two ends of its last digit.
  static constexpr double rounding = 0x1p-7;

  const bool forward_only_;
  const ConvGeometry g_;
  std::string geometry_;
  Shape shape_, y_;
  Dims w_, stride_, dilation_, before_, after_;
  Type type_;  // of x, w, b and y; gradients of parameters are f32
  Desc bias_desc_;
};

}  // namespace

std::string geometry_of(const ConvGeometry& g, const Form& x) {
  return text(x.dtype == DType::f32 ? "" : "bf16 ", "x ", x.shape, ", ", g.channels,
              " channels, kernel ", g.kernel.h, 'x', g.kernel.w, ", stride ", g.stride.h, ',',
              g.stride.w, ", pad ", g.pad.top, ',', g.pad.left, ',', g.pad.bottom, ',', g.pad.right,
              ", dilation ", g.dilation.h, ',', g.dilation.w, ", groups ", g.groups,
              g.bias ? ", bias" : "");
}

std::unique_ptr<WeightedKernel> make_conv(RuntimePtr runtime, const ConvGeometry& g, const Form& x,
                                          const Epilogue& e, bool forward_only) {
  const MakeConv make = [&](const RuntimePtr& on, const ConvGeometry& of, const Form& image) {
    return std::make_unique<Conv>(on, of, image, e, forward_only);
  };
  if (auto padded = padded_conv(runtime, g, x, make)) return padded;
  if (auto thinned = thinned_conv(runtime, g, x, make)) return thinned;
  return make(runtime, g, x);
}

}  // namespace lamina::detail
