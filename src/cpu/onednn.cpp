// The oneDNN back end: f32 and bf16 on the CPU.
#include "cpu/onednn_core.hpp"

#include <lamina/base/threads.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/kernels/detail/in_turn.hpp>

#include <cstring>

namespace lamina {
namespace {

using namespace detail;

/// What oneDNN throws, as our own error.
template <class Make>
auto naming(const char* who, const Form& x, const Make& make) {
  try {
    return make();
  } catch (const dnnl::error& e) {
    throw Error(text(who, ": oneDNN says '", e.what(), "' for an input ", x));
  }
}

class OneDnn final : public Backend {
 public:
  explicit OneDnn(Choice choice) : runtime_(std::make_shared<Runtime>(std::move(choice))) {}

  std::string name() const override { return "onednn"; }

  std::string description() const override { return library(); }

  bool supports(const Precision& p) const override {
    return p == Precision(DType::f32) || p == Precision(DType::bf16);
  }

  DType arithmetic(DType t) const override {
    return t == DType::bf16 && multiplies_bf16() ? t : wide(t);
  }

  void make_room() const override { runtime_->make_room(); }

  bool fuses(Fusible, const Epilogue& e) const override { return e.rectifies(); }

  std::unique_ptr<WeightedKernel> conv(const ConvGeometry& g, const Form& x,
                                       const Epilogue& e) const override {
    return conv(g, x, e, false);
  }
  std::unique_ptr<WeightedKernel> conv_forward(const ConvGeometry& g, const Form& x,
                                               const Epilogue& e) const override {
    return conv(g, x, e, true);
  }
  std::unique_ptr<WeightedKernel> linear(std::int64_t features, bool bias, const Form& x,
                                         const Epilogue& e) const override {
    return weighted("linear", x, e, false,
                    [&](const RuntimePtr& runtime, const Form& as, const Epilogue& its) {
                      return make_linear(runtime, features, bias, as, its);
                    });
  }
  std::unique_ptr<UnaryKernel> activation(const Activation& a, const Form& x) const override {
    return unary("activation", x, true,
                 [&](const Form& as) { return make_activation(runtime(), a, as); });
  }
  std::unique_ptr<UnaryKernel> pool(const PoolGeometry& g, const Form& x) const override {
    // Where a byte does not number a window's elements, oneDNN keeps wrong places of maxima of bf16
    // with AVX-512.
    const bool native = g.kind != PoolGeometry::Kind::max || g.window.h * g.window.w < 256;
    return unary("pool", x, native, [&](const Form& as) { return make_pool(runtime(), g, as); });
  }
  std::unique_ptr<UnaryKernel> lrn(const LrnGeometry& g, const Form& x) const override {
    // Where channels lie side by side, oneDNN rounds what it keeps for backward to bf16.
    const bool native = x.order() != AxisOrder{0, 2, 3, 1};
    return unary("lrn", x, native, [&](const Form& as) { return make_lrn(runtime(), g, as); });
  }
  std::unique_ptr<UnaryKernel> softmax(const Form& x) const override {
    return unary("softmax", x, false, [&](const Form& as) { return make_softmax(runtime(), as); });
  }
  std::unique_ptr<UnaryKernel> reorder(const Form& x, const Form& y) const override {
    return naming("reorder", x, [&] { return make_reorder(runtime(), x, y); });
  }
  std::unique_ptr<UnaryKernel> reorder_rows(const Form& x, std::int64_t first, const Form& y,
                                            std::int64_t to, std::int64_t count) const override {
    return make_reorder_rows(runtime(), x, first, y, to, count);
  }
  std::unique_ptr<NaryKernel> sum(std::span<const Form> xs) const override { return make_sum(xs); }
  std::unique_ptr<NaryKernel> concat(std::span<const Form> xs) const override {
    return make_concat(xs);
  }

  std::unique_ptr<NormKernel> batch_norm(const Form& x, const Epilogue& e) const override {
    check_input(x, "batch_norm");
    const int block = channel_block(x);
    const bool beside = x.order() == AxisOrder{0, 2, 3, 1} && x.shape.c % 16 == 0;
    if (block > 0 || beside) return std::make_unique<BlockedNorm>(x, block, e);
    return std::make_unique<BlockedNorm>(Form{x.shape, x.dtype, {}}, 1, e);
  }
  std::unique_ptr<DropoutKernel> dropout(double rate, const Form& x, const Shape& whole,
                                         const Box& box) const override {
    return make_dropout(rate, x, whole, box);
  }
  std::unique_ptr<LossKernel> softmax_cross_entropy(const LossGeometry& g,
                                                    const Form& x) const override {
    check_input(x, "softmax_cross_entropy");
    return reference_->softmax_cross_entropy(g, {x.shape, x.dtype, {}});
  }

  void copy(const View& from, const View& to) const override;
  void move(Stream& stream, Pass pass, const char* what,
            std::span<const BoxMove> moves) const override {
    stream.run(pass, what, [&] {
      for (const BoxMove& m : moves)
        in_pieces(std::size_t(m.box.size()), [&](std::size_t begin, std::size_t end) {
          move_part(m, {std::int64_t(begin), std::int64_t(end - begin)});
        });
    });
  }

  std::unique_ptr<UpdateKernel> update(const UpdateRule& rule,
                                       std::vector<UpdatePart> parts) const override {
    detail::check_parts(rule, parts);
    for (const UpdatePart& p : parts) {
      check(p.w.dtype == DType::f32, "update: expected weights in f32, got ", p.w.form());
      check_operand(p.dw, p.w, "update dw");
      check(!p.rounded || p.rounded.dtype == DType::bf16, "update: expected weights rounded to ",
            "bf16, got ", p.rounded.form());
    }
    return std::make_unique<detail::UpdateInTurn>(
        nullptr, std::move(parts), [rule](Stream&, const UpdateStep& at, const UpdatePart& p) {
          float* states[2] = {};
          for (std::size_t i = 0; i < p.states.size(); ++i) states[i] = p.states[i].as<float>();
          detail::update(rule, at, p.w.as<float>(), p.dw.as<float>(), states,
                         p.rounded ? p.rounded.as<BF16>() : nullptr, p.w.bytes() / sizeof(float));
        });
  }
  std::unique_ptr<SquaresKernel> squares(std::vector<SquaresPart> parts) const override {
    for (const SquaresPart& p : parts) check_input(p.x, "squares");
    return std::make_unique<detail::SquaresInTurn>(std::move(parts), [](const View& x) {
      return visit(x.dtype, [&]<Stored T>(T) {
        return detail::squared_norm(x.as<const T>(), x.bytes() / sizeof(T));
      });
    });
  }

 private:
  std::unique_ptr<WeightedKernel> conv(const ConvGeometry& g, const Form& x, const Epilogue& e,
                                       bool forward_only) const {
    const auto make = [&](const RuntimePtr& runtime, const Form& as, const Epilogue& its) {
      return make_conv(runtime, g, as, its, forward_only);
    };
    auto kernel = weighted("conv", x, e, forward_only, make);
    const bool by_winograd = g.kernel == Pair(3) && g.stride == Pair(1) && g.groups == 1;
    if (!runtime_->choice.mixed || arithmetic(x.dtype) != DType::bf16 || !by_winograd)
      return kernel;  // nothing else is faster in f32
    const auto in_f32 = [&](const RuntimePtr& runtime) {
      return widened(runtime, "conv", x, e, forward_only, make);
    };
    const std::string remark =
        why_f32(*runtime(), geometry_of(g, x), *kernel, forward_only, in_f32);
    if (remark.empty()) return kernel;
    kernel = in_f32(runtime());
    append(kernel->remark, text(kernel->remark.empty() ? "" : "; ", remark));
    return kernel;
  }

  /// What make(runtime, form, epilogue) gives for f32, between copies. What an epilogue adds is of
  /// bf16, so it does that behind them.
  template <class Make>
  static std::unique_ptr<WeightedKernel> widened(const RuntimePtr& runtime, const char* who,
                                                 const Form& x, const Epilogue& e,
                                                 bool forward_only, const Make& make) {
    const Epilogue none, &before = e.add ? none : e, &behind = e.add ? e : none;
    auto kernel = naming(who, x, [&] {
      return make(runtime, {x.shape, DType::f32, x.layout}, before);
    });
    return make_widened(runtime, std::move(kernel), behind, forward_only);
  }

  template <class Make>
  std::unique_ptr<WeightedKernel> weighted(const char* who, const Form& x, const Epilogue& e,
                                           bool forward_only, const Make& make) const {
    return made(
        x, multiplies_bf16(), [&] { return naming(who, x, [&] { return make(runtime(), x, e); }); },
        [&] { return widened(runtime(), who, x, e, forward_only, make); });
  }

  template <class Make>
  std::unique_ptr<UnaryKernel> unary(const char* who, const Form& x, bool native,
                                     const Make& make) const {
    const auto make_for = [&](const Form& as) { return naming(who, x, [&] { return make(as); }); };
    return made(
        x, native, [&] { return make_for(x); },
        [&] {
          return make_widened(runtime(), make_for({x.shape, DType::f32, x.layout}));
        });
  }

  /// make(); but for bf16 in_f32() where that is not `native`, and where oneDNN has no kernel for
  /// it but its slow reference.
  template <class Make, class InF32>
  static std::invoke_result_t<Make> made(const Form& x, bool native, const Make& make,
                                         const InF32& in_f32) {
    if (x.dtype != DType::bf16) return make();
    if (native) try {
        auto kernel = make();
        if (("|" + kernel->algorithm).find("|ref") == std::string::npos) return kernel;
      } catch (const Error&) {  // f32 says it again if it is not of bf16
      }
    return in_f32();
  }

  /// What kernels are made with, in this thread.
  const RuntimePtr& runtime() const {
    settle_team();
    return runtime_;
  }

  RuntimePtr runtime_;
  std::shared_ptr<const Backend> reference_ = reference_backend();  // its loops serve the loss
};

// f64, and what else oneDNN does not know, comes in and goes out plainly, as other back ends and
// checkpoints have it.
void OneDnn::copy(const View& from, const View& to) const {
  check(from && to && from.shape == to.shape, "copy: expected two views of the same shape, got ",
        from.form(), " and ", to.form());
  const std::int64_t n = from.shape.size();
  const auto ours = [](const View& v) { return v.dtype == DType::f32 || v.dtype == DType::bf16; };
  if (from.dtype == to.dtype && from.layout == to.layout) {
    if (from.data != to.data) std::memcpy(to.data, from.data, to.bytes());
  } else if (ours(from) && ours(to)) {
    Stream stream;
    make_reorder(runtime(), from.form(), to.form())->forward(stream, from, to);
  } else if (from.dtype == DType::f64 && from.layout.plain() && ours(to)) {
    const Tensor rounded(from.shape, DType::f32);
    for (std::int64_t i = 0; i < n; ++i) rounded.as<float>()[i] = float(from.as<double>()[i]);
    copy(rounded, to);
  } else if (ours(from) && to.dtype == DType::f64 && to.layout.plain()) {
    const Tensor flat(from.shape, DType::f32);
    copy(from, flat);
    for (std::int64_t i = 0; i < n; ++i) to.as<double>()[i] = flat.as<float>()[i];
  } else {
    throw Error(text("copy: cannot convert ", from.form(), " to ", to.form()));
  }
}

}  // namespace

std::string detail::library() {
  const dnnl_version_t* v = dnnl_version();
  const int threads = lamina::threads();
  return text("oneDNN ", v->major, '.', v->minor, '.', v->patch, ", ", settled_instruction_set(),
              ", OpenMP, ", threads, threads == 1 ? " thread" : " threads");
}

std::shared_ptr<const Backend> onednn_backend(Choice choice) {
  return std::make_shared<const OneDnn>(std::move(choice));
}

bool has_onednn() { return true; }

}  // namespace lamina
