#include "cpu/onednn_winograd.hpp"

namespace lamina::detail {
namespace {

class PreparedWeights final : public LayoutKind {
 public:
  explicit PreparedWeights(const Winograd& kernel) : kernel_(kernel) {}

  const Winograd& kernel() const { return kernel_; }
  std::string name() const override { return "winograd"; }
  std::int64_t elements() const override { return kernel_.prepared_size(); }
  /// Of two forms the shapes are compared, too: with these the sizes tell the tiles.
  bool equals(const LayoutKind& other) const override {
    const auto* that = dynamic_cast<const PreparedWeights*>(&other);
    return that && that->elements() == elements();
  }
  std::uint64_t fingerprint() const override { return 0; }

 private:
  Winograd kernel_;
};

class Prepare final : public UnaryKernel {
 public:
  Prepare(const RuntimePtr& runtime, const Winograd& kernel, const Form& x, const Form& y)
      : kernel_(kernel) {
    check(x.shape == y.shape, "reorder: expected the same shape, got ", x, " and ", y);
    const Desc blocks(dims(x.shape), f32, dnnl::memory::format_tag::OIhw8i8o);
    between_ = {x.shape, DType::f32, to_layout(blocks)};
    to_blocks_ = make_reorder(runtime, x, between_);
    inputs = {x};
    output = y;
    reads_x = false;
    algorithm = text(x.layout.name(), "->", y.layout.name());
    scratch = to_blocks_->scratch;
  }

  void forward(Stream& stream, const View& x, const View& y) override {
    check_operand(x, inputs[0], "reorder"), check_operand(y, output, "reorder");
    stream.run(Pass::forward, "reorder", [&] {
      const Tensor blocks(between_);
      Stream quiet;
      to_blocks_->forward(quiet, x, blocks);
      kernel_.prepare(blocks.as<float>(), y.as<float>());
    });
  }
  void input_grad(Stream&, const View&, const View&, const View&, const View&) override {
    throw Error("reorder: weights that were transformed for Winograd have no gradient");
  }

 private:
  Winograd kernel_;
  Form between_;
  std::unique_ptr<UnaryKernel> to_blocks_;
};

/// Null where there is none.
float* at(const Arguments& arguments, int id) {
  const auto it = arguments.find(id);
  return it == arguments.end() ? nullptr : static_cast<float*>(it->second.get_data_handle());
}

/// Of a kernel that is only tried: the back end's is as large as those need that are taken.
class Scratch {
 public:
  explicit Scratch(std::size_t bytes) : bytes_(bytes) {}
  float* operator()() {
    if (!memory_.view()) memory_ = Runtime::bytes_of(bytes_);
    return memory_.as<float>();
  }

 private:
  std::size_t bytes_;
  Tensor memory_;
};

}  // namespace

Form prepared_form(const Shape& shape, const Winograd& kernel) {
  return {shape, DType::f32, Layout(std::make_shared<const PreparedWeights>(kernel))};
}

std::unique_ptr<UnaryKernel> make_prepare(const RuntimePtr& runtime, const Form& x, const Form& y) {
  const auto* prepared = dynamic_cast<const PreparedWeights*>(y.layout.kind());
  if (!prepared) return nullptr;
  return std::make_unique<Prepare>(runtime, prepared->kernel(), x, y);
}

Run run_of(const Winograd& kernel, Pass pass) {
  return [=, scratch = std::make_shared<Scratch>(kernel.scratch())](const Arguments& a) {
    float* memory = (*scratch)();
    const float *x = at(a, DNNL_ARG_SRC), *w = at(a, DNNL_ARG_WEIGHTS);
    if (pass == Pass::forward)
      kernel.forward(x, w, {at(a, DNNL_ARG_BIAS)}, at(a, DNNL_ARG_DST), memory);
    else if (pass == Pass::input_grad)
      kernel.input_grad(w, at(a, DNNL_ARG_DIFF_DST), at(a, DNNL_ARG_DIFF_SRC), memory);
    else
      kernel.weight_grad(x, at(a, DNNL_ARG_DIFF_DST), at(a, DNNL_ARG_DIFF_WEIGHTS),
                         at(a, DNNL_ARG_DIFF_BIAS), memory);
  };
}

Run run_of_prepared(const Winograd& kernel) {
  const auto prepared = std::make_shared<std::vector<float>>();
  const auto scratch = std::make_shared<Scratch>(kernel.prepared_scratch());
  return [=](const Arguments& a) {
    if (prepared->empty()) {
      prepared->resize(std::size_t(kernel.prepared_size()));
      kernel.prepare(at(a, DNNL_ARG_WEIGHTS), prepared->data());
    }
    kernel.forward_prepared(at(a, DNNL_ARG_SRC), prepared->data(), {at(a, DNNL_ARG_BIAS)},
                            at(a, DNNL_ARG_DST), (*scratch)());
  };
}

}  // namespace lamina::detail
