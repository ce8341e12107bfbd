// The back end of NVIDIA's GPUs.
#include "cuda/libraries.hpp"
#include "cuda/own_kernels.hpp"
#include "kernels/boxes.hpp"
#include "kernels/loss.hpp"
#include "kernels/pixels.hpp"
#include "kernels/update.hpp"

#include <lamina/kernels/backends.hpp>
#include <lamina/kernels/gpu_name.hpp>

#include <bit>
#include <cstdlib>
#include <cstring>

namespace lamina {

namespace cuda {

namespace {

cudaError_t put_moves(Queue& queue, const Memory& memory, std::span<const BoxMove> moves) {
  for (const BoxMove& m : moves) {
    const BoxCopy copy{
        m.to.dtype, memory.at(m.from), m.from_block, memory.at(m.to), m.to_block, m.box, m.add};
    if (const cudaError_t status = copy_box(queue.stream(), copy); status != cudaSuccess)
      return status;
  }
  return cudaSuccess;
}

class Cuda final : public Backend {
 public:
  Cuda(int device, Choice choice)
      : demands_(choice.demands),
        memory_(std::make_shared<Memory>(device)),
        ceilings_(make_ceilings(memory_, demands_.tf32)),
        libraries_(make_libraries(memory_, std::move(choice))) {}

  std::string name() const override { return GpuName{.demands = demands_}.text(); }
  std::string description() const override {
    return text(libraries_->names(), ", ", memory_->properties().name,
                demands_.tf32 ? ", f32 multiplied as TF32" : "");
  }
  /// What the reference does.
  bool supports(const Precision& p) const override { return planning_backend()->supports(p); }
  DType arithmetic(DType t) const override { return t; }
  MemorySpace& memory() const override { return *memory_; }
  const CeilingLoops& ceilings() const override { return *ceilings_; }

  bool fuses(Fusible kernel, const Epilogue& e) const override {
    return kernel == Fusible::batch_norm ? e.rectifies() : libraries_->fuses(kernel, e);
  }
  std::unique_ptr<WeightedKernel> conv(const ConvGeometry& g, const Form& x,
                                       const Epilogue& e) const override {
    return libraries_->conv(g, x, e);
  }
  std::unique_ptr<WeightedKernel> linear(std::int64_t features, bool bias, const Form& x,
                                         const Epilogue& e) const override {
    return libraries_->linear(features, bias, x, e);
  }
  std::unique_ptr<UnaryKernel> activation(const Activation& a, const Form& x) const override {
    return make_activation(memory_, a, x);
  }
  std::unique_ptr<UnaryKernel> pool(const PoolGeometry& g, const Form& x) const override {
    return make_pool(memory_, g, x);
  }
  std::unique_ptr<UnaryKernel> lrn(const LrnGeometry& g, const Form& x) const override {
    return make_lrn(memory_, g, x);
  }
  std::unique_ptr<UnaryKernel> softmax(const Form& x) const override {
    return make_softmax(memory_, x);
  }
  std::unique_ptr<UnaryKernel> reorder(const Form& x, const Form& y) const override {
    return make_reorder(memory_, x, y);
  }
  std::unique_ptr<NaryKernel> sum(std::span<const Form> xs) const override {
    return make_sum(memory_, xs);
  }
  std::unique_ptr<NaryKernel> concat(std::span<const Form> xs) const override {
    return make_concat(memory_, xs);
  }
  std::unique_ptr<NormKernel> batch_norm(const Form& x, const Epilogue& e) const override {
    return make_norm(memory_, x, e);
  }
  std::unique_ptr<DropoutKernel> dropout(double rate, const Form& x, const Shape& whole,
                                         const Box& box) const override {
    return make_dropout(memory_, rate, x, whole, box);
  }
  std::unique_ptr<LossKernel> softmax_cross_entropy(const LossGeometry& g,
                                                    const Form& x) const override {
    return make_loss(memory_, g, x);
  }

  void copy(const View& from, const View& to) const override;
  void put_pixels(Stream& stream, const Pixels& from, const View& to) const override;
  void move(Stream& stream, Pass pass, const char* what,
            std::span<const BoxMove> moves) const override {
    memory_->put(stream, pass, what, [&](Queue& q) { return put_moves(q, *memory_, moves); });
  }
  void add_found(Stream& stream, const View& found, bool first, const View& totals) const override {
    memory_->put(stream, Pass::forward, "add found", [&](Queue& q) {
      return loss_add_found(q.stream(), memory_->at<const double>(found), first,
                            memory_->at<double>(totals));
    });
  }
  std::unique_ptr<UpdateKernel> update(const UpdateRule& rule,
                                       std::vector<UpdatePart> parts) const override {
    return make_update(memory_, rule, parts);
  }
  std::unique_ptr<SquaresKernel> squares(std::vector<SquaresPart> parts) const override {
    return make_squares(memory_, parts);
  }
  void adjust_loss_scale(Stream& stream, const LossScaling& how, const View& squares,
                         const View& scale) const override {
    memory_->put(stream, Pass::update, "adjust loss scale", [&](Queue& q) {
      return cuda::adjust_loss_scale(q.stream(), how, memory_->at<const double>(squares),
                                     int(squares.shape.size()), memory_->at<LossScale>(scale));
    });
  }

 private:
  Demands demands_;
  std::shared_ptr<Memory> memory_;
  std::unique_ptr<CeilingLoops> ceilings_;
  std::unique_ptr<Libraries> libraries_;
};

/// Bytes travel.
void Cuda::put_pixels(Stream& stream, const Pixels& from, const View& to) const {
  const auto fill = [&from](void* part, std::size_t first, std::size_t bytes) {
    std::memcpy(part, from.bytes + first, bytes);
  };
  check(bool(from), "put_pixels: expected images as bytes, got none");
  const Shape& s = to.shape;
  if (s.size() == 0) return;
  memory_->put_beside(stream, std::size_t(s.size()), fill, [&](const void* room, cudaStream_t c) {
    return convert_pixels(c, to.dtype, s.n * s.c, s.h * s.w, s.c,
                          std::bit_cast<PixelValues>(*from.values),
                          static_cast<const std::uint8_t*>(room), memory_->at(to));
  });
}

/// What lies on the host passes through the GPU's memory as it is.
void Cuda::copy(const View& from, const View& to) const {
  check(from && to && from.shape == to.shape, "copy: expected two views of one shape, got ",
        from.form(), " and ", to.form());
  memory_->settle();
  if (from.form() == to.form()) {
    if (from.data != to.data) memory_->copy(from.data, to.data, to.bytes());
    return;
  }
  Tensor before, after;  // on the GPU
  const View here = from.space ? from : (before = Tensor(from.form(), *memory_)).view();
  const View there = to.space ? to : (after = Tensor(to.form(), *memory_)).view();
  if (!from.space) memory_->copy(from.data, here.data, from.bytes());
  memory_->run("copy", [&](cudaStream_t s) {
    return rearrange(s, here.form(), memory_->at(here), there.form(), memory_->at(there));
  });
  if (!to.space) memory_->copy(there.data, to.data, to.bytes());
}

/// Why there are no GPUs.
std::string why_not(cudaError_t status) {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (status == cudaErrorNoDevice && visible)
    return lamina::text("there is none of those in CUDA_VISIBLE_DEVICES='", visible, '\'');
  if (status != cudaErrorInsufficientDriver) return cudaGetErrorString(status);
  int driver = 0, runtime = 0;  // 13020: CUDA 13.2
  cudaDriverGetVersion(&driver), cudaRuntimeGetVersion(&runtime);
  if (driver == 0) return "there is no NVIDIA driver";
  return lamina::text("the driver is for CUDA ", driver / 1000, '.', driver % 1000 / 10,
                      ", expected ", runtime / 1000, ".0 or newer");
}

}  // namespace

}  // namespace cuda

bool has_cuda() { return true; }

int cuda_devices() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::shared_ptr<const Backend> cuda_backend(int device, Choice choice) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  check(status == cudaSuccess, "no GPU can be used: ", cuda::why_not(status));
  check(device >= 0 && device < count, "GPU ", device, ": expected one from 0 to ", count - 1);
  return std::make_shared<const cuda::Cuda>(device, std::move(choice));
}

}  // namespace lamina
