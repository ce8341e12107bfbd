// What looks at windows of positions or of channels, and softmax, by kernels/pool and
// kernels/channels.
#include "cuda/own_kernels.hpp"
#include "kernels/channels.hpp"
#include "kernels/pool.hpp"

namespace lamina::cuda {

namespace {

class Pooled final : public OnGpu<UnaryKernel> {
 public:
  Pooled(MemoryPointer memory, const PoolGeometry& g, const Form& x)
      : OnGpu(std::move(memory)), pool_{x.dtype, g, x.shape} {
    const bool max = g.kind == PoolGeometry::Kind::max;
    what_ = max ? "max_pool" : "avg_pool";
    inputs = {nhwc(x)};
    output = nhwc(g.output(x.shape), x.dtype);
    algorithm = "own";
    reads_x = max;
    take_workspace(pool_workspace(pool_));
  }

  void forward(Stream& stream, const View& x, const View& y) override {
    put(stream, Pass::forward, what_, [&](cudaStream_t s) {
      return pool(s, pool_, at(x, inputs[0], what_), at(y, output, what_));
    });
  }
  void input_grad(Stream& stream, const View& x, const View&, const View& dy,
                  const View& dx) override {
    put(stream, Pass::input_grad, what_, [&](cudaStream_t s) {
      return pool_grad(s, pool_, reads_x ? at(x, inputs[0], what_) : nullptr, at(dy, output, what_),
                       at(dx, inputs[0], what_), room());
    });
  }

 private:
  Pool pool_;
  const char* what_;
};

class Normalised final : public OnGpu<UnaryKernel> {
 public:
  Normalised(MemoryPointer memory, const LrnGeometry& g, const Form& x)
      : OnGpu(std::move(memory)),
        lrn_{x.dtype, x.shape.n * x.shape.h * x.shape.w, int(x.shape.c), g} {
    output = nhwc(x);
    inputs = {output};
    algorithm = "own";
  }

  void forward(Stream& stream, const View& x, const View& y) override {
    put(stream, Pass::forward, "lrn", [&](cudaStream_t s) {
      return lrn(s, lrn_, at(x, output, "lrn x"), at(y, output, "lrn y"));
    });
  }
  void input_grad(Stream& stream, const View& x, const View&, const View& dy,
                  const View& dx) override {
    put(stream, Pass::input_grad, "lrn", [&](cudaStream_t s) {
      return lrn_grad(s, lrn_, at(x, output, "lrn x"), at(dy, output, "lrn dy"),
                      at(dx, output, "lrn dx"));
    });
  }

 private:
  Lrn lrn_;
};

class Softmax final : public OnGpu<UnaryKernel> {
 public:
  Softmax(MemoryPointer memory, const Form& x)
      : OnGpu(std::move(memory)), rows_(x.shape.n * x.shape.h * x.shape.w) {
    output = nhwc(x);
    inputs = {output};
    algorithm = "own";
    in_place = reads_y = true, reads_x = false;
  }

  void forward(Stream& stream, const View& x, const View& y) override {
    put(stream, Pass::forward, "softmax", [&](cudaStream_t s) {
      return softmax(s, output.dtype, rows_, int(output.shape.c), at(x, output, "softmax x"),
                     at(y, output, "softmax y"));
    });
  }
  void input_grad(Stream& stream, const View&, const View& y, const View& dy,
                  const View& dx) override {
    put(stream, Pass::input_grad, "softmax", [&](cudaStream_t s) {
      return softmax_grad(s, output.dtype, rows_, int(output.shape.c), at(y, output, "softmax y"),
                          at(dy, output, "softmax dy"), at(dx, output, "softmax dx"));
    });
  }

 private:
  std::int64_t rows_;
};

}  // namespace

std::unique_ptr<UnaryKernel> make_pool(const MemoryPointer& memory, const PoolGeometry& g,
                                       const Form& x) {
  check_elements(x, "pool");
  g.check(x.shape);
  return std::make_unique<Pooled>(memory, g, x);
}

std::unique_ptr<UnaryKernel> make_lrn(const MemoryPointer& memory, const LrnGeometry& g,
                                      const Form& x) {
  check_elements(x, "lrn");
  g.check();
  check(std::min(g.size / 2, x.shape.c - 1) <= most_neighbours, "lrn: expected a size of at most ",
        2 * most_neighbours + 1, " on a GPU, got ", g.size);
  return std::make_unique<Normalised>(memory, g, x);
}

std::unique_ptr<UnaryKernel> make_softmax(const MemoryPointer& memory, const Form& x) {
  check_elements(x, "softmax");
  return std::make_unique<Softmax>(memory, x);
}

}  // namespace lamina::cuda
