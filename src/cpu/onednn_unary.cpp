// Activations, pooling, local response normalisation, softmax and reorders.
#include "cpu/onednn_weighted.hpp"
#include "cpu/onednn_widened.hpp"
#include "cpu/onednn_winograd.hpp"

#include <lamina/base/threads.hpp>
#include <lamina/kernels/backends.hpp>

#include <algorithm>

namespace lamina::detail {
namespace {

// ReLU and leaky ReLU: y tells the sign of x, so x may be overwritten.
class Rectifier final : public UnaryKernel {
 public:
  Rectifier(float slope, const char* what, const Form& x) : slope_(slope), what_(what) {
    inputs = {x};
    output = x;
    algorithm = "lamina:simd";
    in_place = true;
    reads_x = false;
    reads_y = true;
  }

  void forward(Stream& stream, const View& x, const View& y) override {
    check_operand(x, inputs[0], what_), check_operand(y, output, what_);
    stream.run(Pass::forward, what_, [&] {
      visit(x.dtype, [&]<Stored T>(T) {
        leaky_relu(x.as<const T>(), slope_, y.as<T>(), x.bytes() / sizeof(T));
      });
    });
  }

  void input_grad(Stream& stream, const View&, const View& y, const View& dy,
                  const View& dx) override {
    check_operand(y, output, what_), check_operand(dy, output, what_);
    check_operand(dx, inputs[0], what_);
    stream.run(Pass::input_grad, what_, [&] {
      visit(y.dtype, [&]<Stored T>(T) {
        leaky_relu_grad(y.as<const T>(), dy.as<const T>(), slope_, dx.as<T>(),
                        y.bytes() / sizeof(T));
      });
    });
  }

 private:
  float slope_;
  const char* what_;
};

/// A primitive each way. `reads` says what backward takes beside dy.
class UnaryOps : public UnaryKernel {
 public:
  void forward(Stream& stream, const View& x, const View& y) final {
    check_operand(x, inputs[0], what_), check_operand(y, output, what_);
    stream.run(Pass::forward, what_, [&] { forward_({x.data, y.data, kept_.view().data}); });
  }

  void input_grad(Stream& stream, const View& x, const View& y, const View& dy,
                  const View& dx) final {
    if (reads_x) check_operand(x, inputs[0], what_);
    if (reads_y) check_operand(y, output, what_);
    check_operand(dy, output, what_), check_operand(dx, inputs[0], what_);
    void* operand = reads_x ? x.data : reads_y ? y.data : nullptr;
    const View from = wide_ ? room_[0] : dy, to = wide_ ? room_[1] : dx;
    stream.run(Pass::input_grad, what_, [&] {
      if (wide_) widen(dy, from);
      backward_({operand, from.data, to.data, kept_.view().data});
      if (wide_) round(to, dx);
    });
  }

  /// Where oneDNN has but loops for both passes; those for n-h-w-c are better than a reorder.
  bool loops() const { return loops_; }

 protected:
  explicit UnaryOps(const char* what) : what_(what) {}

  enum class Reads { x, y, none };

  /// `kept` is what forward leaves for backward (the places of the maxima, for example). Backward
  /// may be in f32 where forward is in bf16, if it reads nothing but dy and what is kept.
  template <class Forward, class Backward, class F, class B>
  void assemble(const RuntimePtr& runtime, const F& forward, const B& backward, Reads reads) {
    reads_x = reads == Reads::x;
    reads_y = reads == Reads::y;
    const Desc kept = forward.workspace_desc();
    kept_ = Runtime::bytes_of(kept.get_size());
    forward_ = Op(runtime, forward, Forward(forward),
                  {{DNNL_ARG_SRC, forward.src_desc()},
                   {DNNL_ARG_DST, forward.dst_desc()},
                   {DNNL_ARG_WORKSPACE, kept}});
    const Desc operand = reads_x ? forward.src_desc() : reads_y ? forward.dst_desc() : Desc();
    backward_ = Op(runtime, backward, Backward(backward),
                   {{reads_x ? DNNL_ARG_SRC : DNNL_ARG_DST, operand},
                    {DNNL_ARG_DIFF_DST, backward.diff_dst_desc()},
                    {DNNL_ARG_DIFF_SRC, backward.diff_src_desc()},
                    {DNNL_ARG_WORKSPACE, kept}});
    wide_ = data_type(backward.diff_dst_desc()) != data_type(forward.dst_desc());
    if (wide_) {
      Form dy = output, dx = inputs[0];
      dy.dtype = dx.dtype = DType::f32;
      room_ = Room(runtime, backward_.scratch(), {dy, dx});
    }
    const auto loops = [](const auto& pd) { return slow(pd) || is(pd, "simple_nchw"); };
    loops_ = loops(forward) && loops(backward);
    algorithm = forward.impl_info_str();
    if (algorithm != backward.impl_info_str()) algorithm += text('|', backward.impl_info_str());
    workspace = kept_.bytes();
    scratch = std::max({forward_.scratch(), backward_.scratch(), room_.end()});
  }

 private:
  const char* what_;
  Op forward_, backward_;
  Tensor kept_;
  bool loops_ = false;
  bool wide_ = false;
  Room room_;  // where backward is in f32
};

class Eltwise final : public UnaryOps {
 public:
  Eltwise(const RuntimePtr& runtime, dnnl::algorithm kind, const char* what, const Form& x)
      : UnaryOps(what) {
    const Desc d = to_desc(x);
    const auto forward = eltwise_desc(runtime->engine, runtime->attr, kind, d);
    check(bool(forward), what, ": oneDNN has no implementation for ", x);
    const auto backward = eltwise_grad_desc(runtime->engine, runtime->attr, forward, kind, d);
    check(bool(backward), what, ": oneDNN has no backward implementation for ", x);
    inputs = {x};
    output = x;
    in_place = true;
    assemble<dnnl::eltwise_forward, dnnl::eltwise_backward>(runtime, forward, backward, Reads::y);
  }
};

class Pool final : public UnaryOps {
 public:
  Pool(const RuntimePtr& runtime, const PoolGeometry& g, const Form& x)
      : UnaryOps(g.kind == PoolGeometry::Kind::max ? "max_pool" : "average_pool") {
    g.check(x.shape);
    const Shape y = g.output(x.shape);
    const auto kind = g.kind == PoolGeometry::Kind::max ? dnnl::algorithm::pooling_max
                      : g.count_padding ? dnnl::algorithm::pooling_avg_include_padding
                                        : dnnl::algorithm::pooling_avg_exclude_padding;
    // Rounding the number of positions up means more padding at the end.
    const auto after = [](std::int64_t positions, std::int64_t stride, std::int64_t window,
                          std::int64_t extent, std::int64_t before, std::int64_t pad) {
      return std::max(pad, (positions - 1) * stride + window - extent - before);
    };
    const Dims stride{g.stride.h, g.stride.w}, window{g.window.h, g.window.w};
    const Dims first{g.pad.top, g.pad.left};
    const Dims last{after(y.h, g.stride.h, g.window.h, x.shape.h, g.pad.top, g.pad.bottom),
                    after(y.w, g.stride.w, g.window.w, x.shape.w, g.pad.left, g.pad.right)};
    const Desc d = to_desc(x);
    const auto forward = pool_desc(runtime->engine, runtime->attr, kind, d,
                                   any(dims(y), type_of(x.dtype)), stride, window, first, last);
    check(bool(forward), "pool: oneDNN has no implementation for ", x);
    // Where windows overlap, oneDNN would round dx to bf16 each time that it adds to it.
    const bool sums = g.stride.h < g.window.h || g.stride.w < g.window.w;
    const auto with = [&](Type type) {
      const Desc dx = retyped(d, type), dy = retyped(forward.dst_desc(), type);
      const auto hint = type == data_type(d) ? forward
                                             : pool_desc(runtime->engine, runtime->attr, kind, dx,
                                                         dy, stride, window, first, last);
      return pool_grad_desc(runtime->engine, runtime->attr, hint, kind, dx, dy, stride, window,
                            first, last);
    };
    const auto backward = with(sums ? f32 : type_of(x.dtype));
    check(bool(backward), "pool: oneDNN has no backward implementation for ", x);
    inputs = {x};
    output = to_form(y, forward.dst_desc());
    assemble<dnnl::pooling_forward, dnnl::pooling_backward>(runtime, forward, backward,
                                                            Reads::none);
  }
};

class Lrn final : public UnaryOps {
 public:
  Lrn(const RuntimePtr& runtime, const LrnGeometry& g, const Form& x) : UnaryOps("lrn") {
    check_input(x, "lrn");
    g.check();
    const Desc d = to_desc(x);
    const auto forward = lrn_desc(runtime->engine, runtime->attr, d, g.size, float(g.alpha),
                                  float(g.beta), float(g.k));
    check(bool(forward), "lrn: oneDNN has no implementation for ", x);
    const auto backward = lrn_grad_desc(runtime->engine, runtime->attr, forward, d, g.size,
                                        float(g.alpha), float(g.beta), float(g.k));
    check(bool(backward), "lrn: oneDNN has no backward implementation for ", x);
    inputs = {x};
    output = x;
    assemble<dnnl::lrn_forward, dnnl::lrn_backward>(runtime, forward, backward, Reads::x);
  }
};

class Softmax final : public UnaryOps {
 public:
  Softmax(const RuntimePtr& runtime, const Form& x) : UnaryOps("softmax") {
    check_input(x, "softmax");
    const Desc d = plain(dims(x.shape), type_of(x.dtype));
    const auto forward = softmax_desc(runtime->engine, runtime->attr, d);
    check(bool(forward), "softmax: oneDNN has no implementation for ", x);
    const auto backward = softmax_grad_desc(runtime->engine, runtime->attr, forward, d);
    check(bool(backward), "softmax: oneDNN has no backward implementation for ", x);
    inputs = {{x.shape, x.dtype, {}}};
    output = inputs[0];
    in_place = true;
    assemble<SoftmaxForward, SoftmaxBackward>(runtime, forward, backward, Reads::y);
  }
};

/// The reference's loops, on plain images: each thread runs those of some images. Where oneDNN has
/// no more than loops either, its own take up to seven times as long.
class Loops final : public UnaryKernel {
 public:
  /// `make(backend, form)` gives the reference's kernel.
  template <class Make>
  Loops(const char* what, const Form& x, const Make& make) : what_(what) {
    const auto backend = reference_backend();
    const int count = int(std::clamp<std::int64_t>(x.shape.n, 1, threads()));
    for (int i = 0; i < count; ++i) {
      Form some{x.shape, x.dtype, {}};
      some.shape.n = x.shape.n * (i + 1) / count - x.shape.n * i / count;
      parts_.push_back(make(*backend, some));
      workspace += parts_.back()->workspace;
    }
    const UnaryKernel& one = *parts_[0];
    inputs = {{x.shape, x.dtype, {}}};
    output = one.output, output.shape.n = x.shape.n;
    algorithm = one.algorithm;
    in_place = one.in_place, reads_x = one.reads_x, reads_y = one.reads_y;
  }

  void forward(Stream& stream, const View& x, const View& y) override {
    check_operand(x, inputs[0], what_), check_operand(y, output, what_);
    stream.run(Pass::forward, what_, [&] {
      each_part([&](Stream& quiet, UnaryKernel& k, const auto& of) {
        k.forward(quiet, of(x, k.inputs[0]), of(y, k.output));
      });
    });
  }

  void input_grad(Stream& stream, const View& x, const View& y, const View& dy,
                  const View& dx) override {
    if (reads_x) check_operand(x, inputs[0], what_);
    if (reads_y) check_operand(y, output, what_);
    check_operand(dy, output, what_), check_operand(dx, inputs[0], what_);
    stream.run(Pass::input_grad, what_, [&] {
      each_part([&](Stream& quiet, UnaryKernel& k, const auto& of) {
        k.input_grad(quiet, reads_x ? of(x, k.inputs[0]) : View(),
                     reads_y ? of(y, k.output) : View(), of(dy, k.output), of(dx, k.inputs[0]));
      });
    });
  }

 private:
  void each_part(const auto& run) {
    const int count = int(parts_.size());
    const auto one = [&](int i) {
      Stream quiet;  // a recorder hears of all of them as one
      run(quiet, *parts_[std::size_t(i)], [&](const View& all, const Form& some) {
        const Shape& s = all.shape;
        const std::int64_t first = s.n * i / count * s.c * s.h * s.w;
        return all.at(std::size_t(first) * size_of(all.dtype), some);
      });
    };
    if (count == 1) return one(0);
#pragma omp parallel for schedule(static) if (inputs[0].bytes() > 4 * parallel_elements)
    for (int i = 0; i < count; ++i) one(i);
  }

  const char* what_;
  std::vector<std::unique_ptr<UnaryKernel>> parts_;
};

class Reorder final : public UnaryKernel {
 public:
  Reorder(const RuntimePtr& runtime, const Form& x, const Form& y) {
    check_input(x, "reorder"), check_input(y, "reorder");
    check(x.shape == y.shape, "reorder: expected the same shape, got ", x, " and ", y);
    const Desc from = to_desc(x, layout_dims(y)), to = to_desc(y, layout_dims(x));
    inputs = {x};
    output = y;
    reads_x = false;
    in_place = x == y;
    if (x.layout != y.layout) {
      forward_ = reorder_op(runtime, from, to);
      if (blocking(to).blocked) backward_ = reorder_op(runtime, to, from);  // else nobody can
    }
    algorithm = x.dtype == y.dtype ? text(x.layout.name(), "->", y.layout.name())
                                   : text(name_of(x), "->", name_of(y));
    scratch = std::max(forward_.scratch(), backward_.scratch());
  }
  /// Of parts of x and y, which `from` and `to` describe.
  Reorder(const RuntimePtr& runtime, const Form& x, const Desc& from, const Form& y, const Desc& to)
      : forward_(reorder_op(runtime, from, to)), backward_(reorder_op(runtime, to, from)) {
    inputs = {x};
    output = y;
    reads_x = false;
    algorithm = text(x.layout.name(), "->", y.layout.name());
    scratch = std::max(forward_.scratch(), backward_.scratch());
  }

  void forward(Stream& stream, const View& x, const View& y) override {
    check_operand(x, inputs[0], "reorder"), check_operand(y, output, "reorder");
    stream.run(Pass::forward, "reorder", [&] { run(forward_, x, y); });
  }

  void input_grad(Stream& stream, const View&, const View&, const View& dy,
                  const View& dx) override {
    check_operand(dy, output, "reorder"), check_operand(dx, inputs[0], "reorder");
    stream.run(Pass::input_grad, "reorder", [&] { run(backward_, dy, dx); });
  }

 private:
  static void run(Op& op, const View& from, const View& to) {
    if (op) return op({from.data, to.data});
    if (from.dtype == to.dtype) return copy(from.data, to.data, from.bytes());
    const std::size_t n = from.bytes() / size_of(from.dtype);
    if (from.dtype == DType::f32) return convert(from.as<const float>(), to.as<BF16>(), n);
    convert(from.as<const BF16>(), to.as<float>(), n);
  }
  static std::string name_of(const Form& form) {
    return text(lamina::name(form.dtype), ' ', form.layout.name());
  }

  Op forward_, backward_;
};

}  // namespace

std::unique_ptr<UnaryKernel> make_activation(RuntimePtr runtime, const Activation& a,
                                             const Form& x) {
  check_input(x, "activation");
  check(a.slope >= 0, "leaky_relu: expected a slope of at least 0, got ", a.slope);
  switch (a.kind) {
    case Activation::Kind::relu:
      return std::make_unique<Rectifier>(0.0f, "relu", x);
    case Activation::Kind::leaky_relu:
      return std::make_unique<Rectifier>(float(a.slope), "leaky_relu", x);
    case Activation::Kind::sigmoid: {
      // Padding, which would become 0.5, oneDNN has nothing for but loops, which make a NaN 0.
      const Form plain{x.shape, x.dtype, {}};
      return std::make_unique<Eltwise>(runtime, dnnl::algorithm::eltwise_logistic_use_dst_for_bwd,
                                       "sigmoid", x.bytes() > plain.bytes() ? plain : x);
    }
    case Activation::Kind::tanh:
      return std::make_unique<Eltwise>(runtime, dnnl::algorithm::eltwise_tanh_use_dst_for_bwd,
                                       "tanh", x);
  }
  throw Error("activation: unknown kind");
}

std::unique_ptr<UnaryKernel> make_pool(RuntimePtr runtime, const PoolGeometry& g, const Form& x) {
  check_input(x, "pool");
  if (auto own = make_max_pool(g, x)) return own;
  const bool max = g.kind == PoolGeometry::Kind::max;
  if (!max || x.dtype != DType::f32) {
    auto pool = std::make_unique<Pool>(runtime, g, x);
    if (!pool->loops()) return pool;
  }
  return std::make_unique<Loops>(
      max ? "max_pool" : "average_pool", x,
      [&](const Backend& b, const Form& some) { return b.pool(g, some); });
}
std::unique_ptr<UnaryKernel> make_lrn(RuntimePtr runtime, const LrnGeometry& g, const Form& x) {
  auto lrn = std::make_unique<Lrn>(runtime, g, x);
  if (!lrn->loops()) return lrn;
  return std::make_unique<Loops>(
      "lrn", x, [&](const Backend& b, const Form& some) { return b.lrn(g, some); });
}
std::unique_ptr<UnaryKernel> make_softmax(RuntimePtr runtime, const Form& x) {
  auto softmax = std::make_unique<Softmax>(runtime, x);
  if (!softmax->loops()) return softmax;
  return std::make_unique<Loops>(
      "softmax", x, [](const Backend& b, const Form& some) { return b.softmax(some); });
}
std::unique_ptr<UnaryKernel> make_reorder(RuntimePtr runtime, const Form& x, const Form& y) {
  if (auto prepare = make_prepare(runtime, x, y)) return prepare;
  return std::make_unique<Reorder>(runtime, x, y);
}
std::unique_ptr<UnaryKernel> make_reorder_rows(RuntimePtr runtime, const Form& x,
                                               std::int64_t first, const Form& y, std::int64_t to,
                                               std::int64_t count) {
  check_input(x, "reorder"), check_input(y, "reorder");
  const auto rows = [&](const Form& form, std::int64_t begin) {
    const Shape s = form.shape;
    return to_desc(form).submemory_desc({s.n, s.c, count, s.w}, {0, 0, begin, 0}, true);
  };
  const Desc from = rows(x, first), to_rows = rows(y, to);
  if (from.is_zero() || to_rows.is_zero()) return nullptr;
  return std::make_unique<Reorder>(runtime, x, from, y, to_rows);
}

}  // namespace lamina::detail
