// What computes element by element, and what only moves elements.
#include "kernels/elementwise.hpp"

#include "cuda/own_kernels.hpp"
#include "kernels/dropout.hpp"
#include "kernels/reorder.hpp"

namespace lamina::cuda {

namespace {

class Drop final : public OnGpu<DropoutKernel> {
 public:
  Drop(MemoryPointer memory, double rate, const Form& x, const Shape& whole, const Box& box)
      : OnGpu(std::move(memory)), dropout_{x.dtype, rate, whole, box} {
    output = nhwc(x);
    inputs = {output};
    algorithm = "own";
  }

  void apply(Stream& stream, Pass pass, const View& now, std::int32_t layer, const View& x,
             const View& y) override {
    put(stream, pass, "dropout", [&](cudaStream_t s) {
      return drop_out(s, dropout_, at<StepValues>(now, Passed<StepValues>::form(), "dropout now"),
                      layer, at(x, output, "dropout x"), at(y, output, "dropout y"));
    });
  }

 private:
  Dropout dropout_;
};

class Rearranged final : public OnGpu<UnaryKernel> {
 public:
  Rearranged(MemoryPointer memory, const Form& x, const Form& y) : OnGpu(std::move(memory)) {
    inputs = {x};
    output = y;
    algorithm = "own";
    reads_x = false;
  }

  void forward(Stream& stream, const View& x, const View& y) override {
    put(stream, Pass::forward, "reorder", [&](cudaStream_t s) {
      return rearrange(s, inputs[0], at(x, inputs[0], "reorder"), output, at(y, output, "reorder"));
    });
  }
  void input_grad(Stream& stream, const View&, const View&, const View& dy,
                  const View& dx) override {
    put(stream, Pass::input_grad, "reorder", [&](cudaStream_t s) {
      return rearrange(s, output, at(dy, output, "reorder"), inputs[0],
                       at(dx, inputs[0], "reorder"));
    });
  }
};

/// Gradients are functions of y alone, so that y may overwrite x.
class Activated final : public OnGpu<UnaryKernel> {
 public:
  Activated(MemoryPointer memory, const Activation& a, const Form& x)
      : OnGpu(std::move(memory)), activation_(a) {
    constexpr const char* names[] = {"relu", "leaky_relu", "sigmoid", "tanh"};
    what_ = names[int(a.kind)];
    inputs = {x};
    output = x;
    algorithm = "own";
    in_place = reads_y = true, reads_x = false;
  }

  void forward(Stream& stream, const View& x, const View& y) override {
    put(stream, Pass::forward, what_, [&](cudaStream_t s) {
      return activate(s, activation_, output.dtype, output.shape.size(), at(x, inputs[0], what_),
                      at(y, output, what_));
    });
  }
  void input_grad(Stream& stream, const View&, const View& y, const View& dy,
                  const View& dx) override {
    put(stream, Pass::input_grad, what_, [&](cudaStream_t s) {
      return activate_grad(s, activation_, output.dtype, output.shape.size(), at(y, output, what_),
                           at(dy, output, what_), at(dx, inputs[0], what_));
    });
  }

 private:
  Activation activation_;
  const char* what_;
};

class Sum final : public OnGpu<NaryKernel> {
 public:
  Sum(MemoryPointer memory, std::span<const Form> xs) : OnGpu(std::move(memory)) {
    inputs.assign(xs.size(), xs[0]);
    output = xs[0];
    algorithm = "own";
  }

  /// y may be the buffer of the first x alone: it is written when only that has been read.
  void forward(Stream& stream, std::span<const View> xs, const View& y) override {
    check(xs.size() == inputs.size(), "sum: expected ", inputs.size(), " inputs, got ", xs.size());
    put(stream, Pass::forward, "sum", [&](cudaStream_t s) {
      cudaError_t status = cudaSuccess;
      const void* so_far = at(xs[0], output, "sum x");
      if (xs.size() == 1) status = rearrange(s, output, so_far, output, at(y, output, "sum y"));
      for (std::size_t i = 1; i < xs.size() && status == cudaSuccess; ++i) {
        status = add(s, output.dtype, output.shape.size(), so_far, at(xs[i], output, "sum x"),
                     at(y, output, "sum y"));
        so_far = y.data;
      }
      return status;
    });
  }
  void input_grad(Stream& stream, const View& dy, std::span<const View> dxs) override {
    put(stream, Pass::input_grad, "sum", [&](cudaStream_t s) {
      cudaError_t status = cudaSuccess;
      for (const View& dx : dxs)
        if (dx && dx.data != dy.data && status == cudaSuccess)
          status = rearrange(s, output, at(dy, output, "sum dy"), output, at(dx, output, "sum dx"));
      return status;
    });
  }
};

class Concat final : public OnGpu<NaryKernel> {
 public:
  Concat(MemoryPointer memory, std::span<const Form> xs) : OnGpu(std::move(memory)) {
    Shape y = xs[0].shape;
    y.c = 0;
    for (const Form& x : xs) y.c += x.shape.c;
    output = nhwc(y, xs[0].dtype);
    // Where y is n-h-w-c, all of x are: with one channel that is the same as plain.
    for (const Form& x : xs) inputs.push_back(nhwc(x));
    rows_ = output.layout.plain() ? y.n : y.n * y.h * y.w;
    algorithm = "own";
  }

  void forward(Stream& stream, std::span<const View> xs, const View& y) override {
    put(stream, Pass::forward, "concat", [&](cudaStream_t s) {
      return each_part(xs, y, [&](void* part, std::int64_t width, void* in_y, std::int64_t row) {
        return copy_rows(s, output.dtype, rows_, width, part, width, in_y, row);
      });
    });
  }
  void input_grad(Stream& stream, const View& dy, std::span<const View> dxs) override {
    put(stream, Pass::input_grad, "concat", [&](cudaStream_t s) {
      return each_part(dxs, dy, [&](void* part, std::int64_t width, void* in_y, std::int64_t row) {
        return copy_rows(s, output.dtype, rows_, width, in_y, row, part, width);
      });
    });
  }

 private:
  /// Calls f(part, elements of a row of it, where that begins in y, elements of a row of y).
  template <class F>
  cudaError_t each_part(std::span<const View> parts, const View& y, const F& f) const {
    check(parts.size() == inputs.size(), "concat: expected ", inputs.size(), " operands, got ",
          parts.size());
    char* const whole = at<char>(y, output, "concat y");
    std::int64_t before = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const std::int64_t width = inputs[i].shape.size() / rows_;
      if (void* const part = any(parts[i], inputs[i], "concat")) {
        char* const first = whole + std::size_t(before) * size_of(output.dtype);
        const cudaError_t status = f(part, width, first, output.shape.size() / rows_);
        if (status != cudaSuccess) return status;
      }
      before += width;
    }
    return cudaSuccess;
  }

  std::int64_t rows_ = 0;
};

}  // namespace

cudaError_t rearrange(cudaStream_t stream, const Form& x_form, const void* x, const Form& y_form,
                      void* y) {
  const Shape s = x_form.shape;
  if (x_form.layout == y_form.layout)
    return reorder(stream, x_form.dtype, x, y_form.dtype, y, 1, 1, s.size());
  const std::int64_t c = s.c, positions = s.h * s.w;
  const bool to_plain = y_form.layout.plain();
  return reorder(stream, x_form.dtype, x, y_form.dtype, y, s.n, to_plain ? positions : c,
                 to_plain ? c : positions);
}

std::unique_ptr<DropoutKernel> make_dropout(const MemoryPointer& memory, double rate, const Form& x,
                                            const Shape& whole, const Box& box) {
  check(rate >= 0 && rate < 1, "dropout: expected a rate from 0 to less than 1, got ", rate);
  return std::make_unique<Drop>(memory, rate, x, whole, box);
}

std::unique_ptr<UnaryKernel> make_reorder(const MemoryPointer& memory, const Form& x,
                                          const Form& y) {
  check(x.shape == y.shape, "reorder: expected the same shape, got ", x, " and ", y);
  return std::make_unique<Rearranged>(memory, x, y);
}

std::unique_ptr<UnaryKernel> make_activation(const MemoryPointer& memory, const Activation& a,
                                             const Form& x) {
  check(a.slope >= 0, "leaky_relu: expected a slope of at least 0, got ", a.slope);
  return std::make_unique<Activated>(memory, a, x);
}

std::unique_ptr<NaryKernel> make_sum(const MemoryPointer& memory, std::span<const Form> xs) {
  check(!xs.empty(), "sum: expected at least one input");
  for (const Form& x : xs)
    check(x.shape == xs[0].shape && x.dtype == xs[0].dtype, "sum: expected inputs alike, got ",
          xs[0], " and ", x);
  return std::make_unique<Sum>(memory, xs);
}

std::unique_ptr<NaryKernel> make_concat(const MemoryPointer& memory, std::span<const Form> xs) {
  check(!xs.empty(), "concat: expected at least one input");
  for (const Form& x : xs) {
    Shape alike = x.shape;
    alike.c = xs[0].shape.c;
    check(alike == xs[0].shape && x.dtype == xs[0].dtype,
          "concat: expected inputs alike but for the channels, got ", xs[0], " and ", x);
  }
  return std::make_unique<Concat>(memory, xs);
}

}  // namespace lamina::cuda
