// Sum and concatenation, by loops of our own: both are copies at the speed of memory.
#include "cpu/onednn_core.hpp"

#include <algorithm>

namespace lamina::detail {
namespace {

class Sum final : public NaryKernel {
 public:
  explicit Sum(std::span<const Form> xs) {
    check(!xs.empty(), "sum: expected at least one input");
    // A layout of oneDNN's that one of the inputs has is that of y.
    const auto blocked =
        std::find_if(xs.begin(), xs.end(), [](const Form& x) { return !x.layout.plain(); });
    output = blocked == xs.end() ? xs[0] : *blocked;
    for (const Form& x : xs) {
      check_input(x, "sum");
      check(x.shape == output.shape && x.dtype == output.dtype,
            "sum: expected inputs of the same shape and dtype, got ", output, " and ", x);
    }
    inputs.assign(xs.size(), output);
    algorithm = "lamina:simd";
  }

  void forward(Stream& stream, std::span<const View> xs, const View& y) override {
    check(xs.size() == inputs.size(), "sum: expected ", inputs.size(), " inputs, got ", xs.size());
    for (const View& x : xs) check_operand(x, output, "sum x");
    check_operand(y, output, "sum y");
    stream.run(Pass::forward, "sum", [&] {
      if (xs.size() == 1) return copy(xs[0].data, y.data, y.bytes());
      visit(y.dtype, [&]<Stored T>(T) { add(xs, y.as<T>(), y.bytes() / sizeof(T)); });
    });
  }

  void input_grad(Stream& stream, const View& dy, std::span<const View> dxs) override {
    check(dxs.size() == inputs.size(), "sum: expected ", inputs.size(), " gradients, got ",
          dxs.size());
    check_operand(dy, output, "sum dy");
    stream.run(Pass::input_grad, "sum", [&] {
      for (const View& dx : dxs) {
        if (!dx) continue;
        check_operand(dx, output, "sum dx");
        copy(dy.data, dx.data, dy.bytes());
      }
    });
  }
};

// A sample of an input is one run of a sample of y in nchw, and in nChw<b>c too where all inputs
// have whole blocks.
class Concat final : public NaryKernel {
 public:
  explicit Concat(std::span<const Form> xs) {
    check(!xs.empty(), "concat: expected at least one input");
    const int block = channel_block(xs[0]);
    bool keep = block > 0;
    Shape y = xs[0].shape;
    y.c = 0;
    for (const Form& x : xs) {
      check_input(x, "concat");
      y.c += x.shape.c;
      Shape alike = x.shape;
      alike.c = xs[0].shape.c;
      check(alike == xs[0].shape && x.dtype == xs[0].dtype,
            "concat: expected inputs alike but for the channels, got ", xs[0], " and ", x);
      keep = keep && channel_block(x) == block && x.shape.c % block == 0;
    }
    inputs.assign(xs.begin(), xs.end());
    if (!keep) {
      for (Form& x : inputs) x.layout = {};
    }
    output = {y, xs[0].dtype, {}};
    if (keep && block > 1) {
      const auto tag = block == 16  ? dnnl::memory::format_tag::nChw16c
                       : block == 8 ? dnnl::memory::format_tag::nChw8c
                                    : dnnl::memory::format_tag::nChw4c;
      output.layout = to_layout(Desc(dims(y), f32, tag));
    }
    algorithm = "lamina:copy";
  }

  void forward(Stream& stream, std::span<const View> xs, const View& y) override {
    check_operand(y, output, "concat y");
    stream.run(Pass::forward, "concat", [&] {
      each_part(xs, [&](const View& x, std::int64_t from, std::int64_t to, std::size_t n) {
        copy(at(x, from), at(y, to), n);
      });
    });
  }

  void input_grad(Stream& stream, const View& dy, std::span<const View> dxs) override {
    check_operand(dy, output, "concat dy");
    stream.run(Pass::input_grad, "concat", [&] {
      each_part(dxs, [&](const View& dx, std::int64_t to, std::int64_t from, std::size_t n) {
        copy(at(dy, from), at(dx, to), n);
      });
    });
  }

 private:
  static char* at(const View& v, std::int64_t element) {
    return v.as<char>() + std::size_t(element) * size_of(v.dtype);
  }

  // Calls f(input, offset in it, offset in y, bytes) for every sample of the inputs that are
  // there.
  template <class F>
  void each_part(std::span<const View> parts, const F& f) const {
    check(parts.size() == inputs.size(), "concat: expected ", inputs.size(), " operands, got ",
          parts.size());
    std::int64_t before = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const std::int64_t size = inputs[i].shape.sample();
      if (parts[i]) {
        check_operand(parts[i], inputs[i], "concat");
        for (std::int64_t n = 0; n < output.shape.n; ++n) {
          f(parts[i], n * size, n * output.shape.sample() + before,
            std::size_t(size) * size_of(output.dtype));
        }
      }
      before += size;
    }
  }
};

}  // namespace

std::unique_ptr<NaryKernel> make_sum(std::span<const Form> xs) { return std::make_unique<Sum>(xs); }
std::unique_ptr<NaryKernel> make_concat(std::span<const Form> xs) {
  return std::make_unique<Concat>(xs);
}

}  // namespace lamina::detail
