// Batch normalisation by kernels/batch_norm.
#include "cuda/own_kernels.hpp"
#include "kernels/batch_norm.hpp"

namespace lamina::cuda {

namespace {

class Norm final : public OnGpu<NormKernel> {
 public:
  Norm(std::shared_ptr<Memory> memory, const Form& x, const Epilogue& e)
      : OnGpu(std::move(memory)),
        c_(x.shape.c),
        parameter_(vector_of(c_, wide(x.dtype))),
        activates_(e.activation.has_value()) {
    const Shape s = x.shape;
    norm_ = {x.dtype, s.n * s.h * s.w, int(s.c), e.slope()};
    output = nhwc(x);
    inputs.assign(e.add ? 2 : 1, output);
    if (activates_) signs = bits(8 * std::int64_t(norm_signs(norm_)));
    algorithm = "own";
    adds_gradients = true;
    take_workspace(norm_workspace(norm_));
  }

  void statistics(Stream& stream, const View& x, const View& sums) override {
    put(stream, Pass::forward, "batch_norm_statistics", [&](cudaStream_t s) {
      return norm_statistics(s, norm_, at(x, output, "batch_norm x"), two(sums), room());
    });
  }
  void finish(Stream& stream, const View& sums, double count, double epsilon, double momentum,
              const View& mean, const View& inv_std, const View& running_mean,
              const View& running_var) override {
    put(stream, Pass::forward, "batch_norm_finish", [&](cudaStream_t s) {
      return norm_finish(s, norm_, two(sums), count, epsilon, momentum, one(mean), one(inv_std),
                         average(running_mean), average(running_var));
    });
  }
  void running(Stream& stream, const View& running_mean, const View& running_var,
               const View& sums) override {
    put(stream, Pass::forward, "batch_norm_running", [&](cudaStream_t s) {
      return norm_running(s, norm_, average(running_mean), average(running_var), two(sums));
    });
  }
  void from_running(Stream& stream, const View& sums, int variants, double epsilon,
                    const View& mean, const View& inv_std) override {
    put(stream, Pass::forward, "batch_norm_finish", [&](cudaStream_t s) {
      return norm_from_running(s, norm_, two(sums), variants, epsilon, one(mean), one(inv_std));
    });
  }
  void normalize(Stream& stream, const View& x, const View& mean, const View& inv_std,
                 const View& w, const View& b, const View& y, const View& added,
                 const View& passed) override {
    check(bool(added) == (inputs.size() > 1), "batch_norm: expected an operand to add just where ",
          "the epilogue has one");
    put(stream, Pass::forward, "batch_norm", [&](cudaStream_t s) {
      return norm_normalize(s, norm_, at(x, output, "batch_norm x"), one(mean), one(inv_std),
                            any(w, parameter_, "batch_norm w"), any(b, parameter_, "batch_norm b"),
                            any(added, output, "batch_norm added"), at(y, output, "batch_norm y"),
                            any(passed, signs, "batch_norm signs"));
    });
  }
  void gradients(Stream& stream, const View& x, const View& mean, const View& inv_std,
                 const View& dy, const View& sums, const View& dw, const View& db,
                 const View& passed, const View& dadded, const View& more) override {
    check(passed || !activates_, "batch_norm: expected signs, which tell what the activation did");
    check(dadded || !more,
          "batch_norm: dy in two parts: expected dadded, which is where they meet");
    Form gradient = parameter_;
    if (const View& any = dw ? dw : db) gradient.dtype = any.dtype;
    put(stream, Pass::weight_grad, "batch_norm", [&](cudaStream_t s) {
      return norm_gradients(
          s, norm_, at(x, output, "batch_norm x"), one(mean), one(inv_std),
          at(dy, output, "batch_norm dy"), any(passed, signs, "batch_norm signs"), two(sums),
          gradient.dtype, any(dw, gradient, "batch_norm dw"), any(db, gradient, "batch_norm db"),
          any(dadded, output, "batch_norm dadded"), room(), any(more, output, "batch_norm dy"));
    });
  }
  void input_grad(Stream& stream, const View& x, const View& mean, const View& inv_std,
                  const View& w, const View& dy, const View& sums, double count, const View& dx,
                  const View& passed) override {
    put(stream, Pass::input_grad, "batch_norm", [&](cudaStream_t s) {
      return norm_input_grad(s, norm_, at(x, output, "batch_norm x"), one(mean), one(inv_std),
                             any(w, parameter_, "batch_norm w"), at(dy, output, "batch_norm dy"),
                             any(passed, signs, "batch_norm signs"), two(sums), count,
                             at(dx, output, "batch_norm dx"));
    });
  }

 private:
  double* one(const View& v) const { return at<double>(v, vector_of(c_), "batch_norm statistics"); }
  double* two(const View& v) const { return at<double>(v, vector_of(2 * c_), "batch_norm sums"); }
  void* average(const View& v) const { return at(v, parameter_, "batch_norm running average"); }

  std::int64_t c_;
  Form parameter_;
  bool activates_;
  BatchNorm norm_;
};

}  // namespace

std::unique_ptr<NormKernel> make_norm(const MemoryPointer& memory, const Form& x,
                                      const Epilogue& e) {
  return std::make_unique<Norm>(memory, x, e);
}

}  // namespace lamina::cuda
