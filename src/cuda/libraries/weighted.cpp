// Convolutions and linear layers, by cuDNN and cuBLAS.
#include "cuda/libraries.hpp"
#include "cuda/libraries/candidates.hpp"
#include "cuda/on_gpu.hpp"
#include "kernels/bias.hpp"

#include <lamina/base/text.hpp>

#include <algorithm>
#include <array>
#include <utility>

namespace lamina::cuda {

namespace {

/// The passes of a layer with weights.
struct Passes {
  LibraryKernel forward, input_grad, weight_grad;

  Passes(const LibrariesOnGpu& on, const Convolution& c)
      : forward(on, c.text(Pass::forward),
                std::array{x(c), w(c), b(c), c.epilogue.add ? y(c) : 0, y(c)},
                forward_candidates(c)),
        input_grad(on, c.text(Pass::input_grad), std::array{w(c), y(c), x(c)},
                   input_grad_candidates(c)),
        weight_grad(on, c.text(Pass::weight_grad), std::array{x(c), y(c), narrow_dw(c), wide_dw(c)},
                    weight_grad_candidates(c)) {}

 private:
  static std::size_t bytes(const Shape& shape, DType t) { return Form{shape, t, {}}.bytes(); }
  static std::size_t x(const Convolution& c) { return bytes(c.x, c.dtype); }
  static std::size_t w(const Convolution& c) { return bytes(c.w(), c.dtype); }
  static std::size_t y(const Convolution& c) { return bytes(c.y(), c.dtype); }
  /// Of both operands the one that there usually is: gradients are wide.
  static std::size_t narrow_dw(const Convolution& c) { return c.dtype == wide(c.dtype) ? w(c) : 0; }
  static std::size_t wide_dw(const Convolution& c) {
    return narrow_dw(c) ? 0 : bytes(c.w(), wide(c.dtype));
  }
  static std::size_t b(const Convolution& c) {
    return c.geometry.bias ? std::size_t(c.geometry.channels) * size_of(c.dtype) : 0;
  }
};

/// `x` and `w` are as the layer has them, which for a linear one is not what cuDNN is to see.
class Weighted final : public OnGpu<WeightedKernel> {
 public:
  Weighted(const LibrariesOnGpu& on, const char* who, const Convolution& c, const Form& x,
           const Shape& weight)
      : OnGpu(on.memory), who_(who), c_(c), passes_(on, c) {
    inputs = {nhwc(x)};
    output = nhwc(c.y(), c.dtype);
    if (c.epilogue.add) inputs.push_back(output);
    w = nhwc(weight, c.dtype);
    if (c.geometry.bias) b = vector_of(c.geometry.channels, c.dtype);
    const std::string &y = passes_.forward.name(), &dx = passes_.input_grad.name(),
                      &dw = passes_.weight_grad.name();
    algorithm = y == dx && dx == dw ? y : text(y, '|', dx, '|', dw);
    if (c.geometry.bias) sums_ = bias_workspace(c.dtype, rows(), channels());
    scratch = std::max({passes_.forward.scratch(), passes_.input_grad.scratch(),
                        passes_.weight_grad.scratch(), sums_});
  }

  void forward(Stream& stream, const View& x, const View& weight, const View& bias, const View& y,
               const View& added) override {
    void* const more = c_.epilogue.add ? at(added, output, who_) : nullptr;
    void* const b_at = c_.geometry.bias ? at(bias, b, who_) : nullptr;
    run(stream, Pass::forward, passes_.forward,
        {at(x, inputs[0], who_), at(weight, w, who_), b_at, more, at(y, output, who_)});
  }
  void input_grad(Stream& stream, const View& weight, const View& dy, const View& dx) override {
    run(stream, Pass::input_grad, passes_.input_grad,
        {at(weight, w, who_), at(dy, output, who_), at(dx, inputs[0], who_)});
  }
  void weight_grad(Stream& stream, const View& x, const View& dy, const View& dw,
                   const View& db) override {
    void* const to = at(dw, gradient_of(w, dw), who_);
    const bool narrow = dw.dtype == c_.dtype;
    run(stream, Pass::weight_grad, passes_.weight_grad,
        {at(x, inputs[0], who_), at(dy, output, who_), narrow ? to : nullptr,
         narrow ? nullptr : to});
    if (!c_.geometry.bias) return;
    memory().put(stream, Pass::weight_grad, who_, [&](Queue& q) {
      return bias_grad(q.stream(), c_.dtype, rows(), channels(), at(dy, output, who_), db.dtype,
                       at(db, gradient_of(b, db), who_), q.scratch(sums_));
    });
  }

 private:
  static Form gradient_of(Form form, const View& gradient) {
    check(gradient.dtype == form.dtype || gradient.dtype == wide(form.dtype),
          "a gradient: expected ", form, " or wider, got ", gradient.form());
    form.dtype = gradient.dtype;
    return form;
  }
  std::int64_t rows() const { return output.shape.n * output.shape.h * output.shape.w; }
  int channels() const { return int(output.shape.c); }
  void run(Stream& stream, Pass pass, LibraryKernel& kernel,
           std::initializer_list<void*> operands) {
    memory().put(stream, pass, who_, [&](Queue& q) {
      kernel.run(q, operands);
      return cudaSuccess;
    });
  }

  const char* who_;
  Convolution c_;
  Passes passes_;
  std::size_t sums_ = 0;  ///< bytes that the bias's gradient wants
};

class Nvidia final : public Libraries {
 public:
  Nvidia(const std::shared_ptr<Memory>& memory, Choice choice)
      : on_{memory,
            Gpu(memory->device()),
            make_cublas_handle(),
            choice.demands,
            text(all_names(), ", ", memory->properties().name, choice.demands),
            choice.verdicts ? choice.verdicts : std::make_shared<Verdicts>()} {}

  std::string names() const override { return all_names(); }
  bool fuses(Fusible, const Epilogue& e) const override { return e.rectifies(); }
  std::unique_ptr<WeightedKernel> conv(const ConvGeometry& g, const Form& x,
                                       const Epilogue& e) const override {
    return std::make_unique<Weighted>(on_, "conv", Convolution{g, x.shape, x.dtype, e}, x,
                                      g.weight(x.shape));
  }
  std::unique_ptr<WeightedKernel> linear(std::int64_t features, bool bias, const Form& x,
                                         const Epilogue& e) const override {
    return std::make_unique<Weighted>(on_, "linear", as_convolution(features, bias, x, e), x,
                                      Shape{features, x.shape.c, x.shape.h, x.shape.w});
  }

 private:
  static std::string all_names() {
    return cublas() ? text(cudnn_name(), ", ", cublas_name()) : cudnn_name();
  }

  LibrariesOnGpu on_;
};

}  // namespace

std::unique_ptr<Libraries> make_libraries(std::shared_ptr<Memory> memory, Choice choice) {
  return std::make_unique<Nvidia>(memory, std::move(choice));
}

}  // namespace lamina::cuda
