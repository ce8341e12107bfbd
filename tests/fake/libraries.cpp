// A stand-in for cuDNN: the reference's kernels, put into the stream. Each finds its
// operands n-h-w-c, as those of cuDNN do, and leaves its results so; but weights are plain,
// since tests change them where they lie.
#include "cuda/libraries.hpp"

#include "cuda/nhwc.hpp"

#include <lamina/kernels/reference.hpp>

#include <array>
#include <cstring>
#include <vector>

namespace lamina::cuda {

namespace {

/// Element by element from one layout to the other.
void rearrange_on_host(const Shape& s, bool to_plain, std::size_t size, const char* from,
                       char* to) {
  const std::int64_t positions = s.h * s.w;
  for (std::int64_t n = 0; n < s.n; ++n)
    for (std::int64_t c = 0; c < s.c; ++c)
      for (std::int64_t p = 0; p < positions; ++p) {
        const auto plain = std::size_t((n * s.c + c) * positions + p) * size;
        const auto nhwc = std::size_t((n * positions + p) * s.c + c) * size;
        std::memcpy(to + (to_plain ? plain : nhwc), from + (to_plain ? nhwc : plain), size);
      }
}

/// A plain copy of an operand while a kernel runs.
class Plain {
 public:
  explicit Plain(const View& device) : device_(device) {
    if (!device) return;
    form_ = {device.shape, device.dtype, {}};
    bytes_.resize(form_.bytes() / 8 + 1);
    if (device.layout.plain())
      std::memcpy(bytes_.data(), device.data, form_.bytes());
    else
      rearrange_on_host(form_.shape, true, size_of(form_.dtype),
                        static_cast<const char*>(device.data), chars());
  }
  View view() { return device_ ? View(bytes_.data(), form_) : View(); }
  void write_back() {
    if (!device_) return;
    if (device_.layout.plain())
      std::memcpy(device_.data, bytes_.data(), form_.bytes());
    else
      rearrange_on_host(form_.shape, false, size_of(form_.dtype), chars(),
                        static_cast<char*>(device_.data));
  }

 private:
  char* chars() { return reinterpret_cast<char*>(bytes_.data()); }

  View device_;
  Form form_;
  std::vector<double> bytes_;
};

/// Around a kernel of the reference.
class Weighted final : public WeightedKernel {
 public:
  Weighted(std::shared_ptr<Memory> memory, std::unique_ptr<WeightedKernel> kernel)
      : WeightedKernel(*kernel), memory_(std::move(memory)), kernel_(std::move(kernel)) {
    for (Form& x : inputs) x = nhwc(x);
    output = nhwc(output);
  }

  void forward(Stream& stream, const View& x, const View& weight, const View& bias, const View& y,
               const View& added) override {
    put(stream, Pass::forward, std::array{x, weight, bias, added, y}, 1,
        [](WeightedKernel& k, Stream& s, const std::array<View, 5>& v) {
          k.forward(s, v[0], v[1], v[2], v[4], v[3]);
        });
  }
  void input_grad(Stream& stream, const View& weight, const View& dy, const View& dx) override {
    put(stream, Pass::input_grad, std::array{weight, dy, dx}, 1,
        [](WeightedKernel& k, Stream& s, const std::array<View, 3>& v) {
          k.input_grad(s, v[0], v[1], v[2]);
        });
  }
  void weight_grad(Stream& stream, const View& x, const View& dy, const View& dw,
                   const View& db) override {
    put(stream, Pass::weight_grad, std::array{x, dy, dw, db}, 2,
        [](WeightedKernel& k, Stream& s, const std::array<View, 4>& v) {
          k.weight_grad(s, v[0], v[1], v[2], v[3]);
        });
  }

 private:
  /// Puts in f(kernel, stream, plain operands), of which the last `results` are written.
  template <std::size_t Count, class F>
  void put(Stream& stream, Pass pass, std::array<View, Count> operands, std::size_t results,
           const F& f) {
    for (const View& v : operands) memory_->at(v);  // that it lies there
    stream.run(pass, algorithm.c_str(), [&] {
      ok(memory_->queue_of(stream).stream()->put([operands, results, f, kernel = kernel_] {
        std::vector<Plain> plain(operands.begin(), operands.end());
        std::array<View, Count> views;
        for (std::size_t i = 0; i < Count; ++i) views[i] = plain[i].view();
        Stream at_once;
        f(*kernel, at_once, views);
        for (std::size_t i = Count - results; i < Count; ++i) plain[i].write_back();
      }),
         "put a kernel into a stream");
    });
  }

  std::shared_ptr<Memory> memory_;
  std::shared_ptr<WeightedKernel> kernel_;
};

const Reference reference;

Form plain(const Form& x) { return {x.shape, x.dtype, {}}; }

class OnReference final : public Libraries {
 public:
  explicit OnReference(std::shared_ptr<Memory> memory) : memory_(std::move(memory)) {}

  std::string names() const override { return "the reference's kernels"; }
  bool fuses(Fusible kernel, const Epilogue& e) const override {
    return reference.fuses(kernel, e);
  }
  std::unique_ptr<WeightedKernel> conv(const ConvGeometry& g, const Form& x,
                                       const Epilogue& e) const override {
    return std::make_unique<Weighted>(memory_, reference.conv(g, plain(x), e));
  }
  std::unique_ptr<WeightedKernel> linear(std::int64_t features, bool bias, const Form& x,
                                         const Epilogue& e) const override {
    return std::make_unique<Weighted>(memory_, reference.linear(features, bias, plain(x), e));
  }

 private:
  std::shared_ptr<Memory> memory_;
};

}  // namespace

std::unique_ptr<Libraries> make_libraries(std::shared_ptr<Memory> memory, Choice) {
  return std::make_unique<OnReference>(std::move(memory));
}

}  // namespace lamina::cuda
