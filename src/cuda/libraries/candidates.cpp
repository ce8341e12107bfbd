#include "cuda/libraries/candidates.hpp"

#include "cuda/libraries/cublas_product.hpp"
#include "cuda/own_kernels.hpp"
#include "kernels/epilogue.hpp"
#include "kernels/space_to_depth.hpp"

#include <lamina/base/text.hpp>

#include <utility>

namespace lamina::cuda {

std::string Convolution::text(Pass pass) const {
  const ConvGeometry& g = geometry;
  return lamina::text("conv ", name(pass), ' ', Form{x, dtype, {}}, " to ", g.channels, ' ',
                      g.kernel, " stride ", g.stride, " pad ", g.pad, " dilation ", g.dilation,
                      " groups ", g.groups, g.bias ? " bias" : "", epilogue.add ? " add" : "",
                      epilogue.activation ? lamina::text(" slope ", epilogue.slope()) : "");
}

Convolution as_convolution(std::int64_t features, bool bias, const Form& x, const Epilogue& e) {
  ConvGeometry g;
  g.channels = features, g.bias = bias;
  return {g, {x.shape.n, x.shape.sample(), 1, 1}, x.dtype, e};
}

namespace {

/// Another convolution that has the same y: what cuDNN is to see, and how x and w become its own.
struct Recast {
  Convolution c;
  SpaceToDepth x, w = {};
};

/// The padding as part of x. It has the same w.
Recast padded(const Convolution& of) {
  Recast to{of, {.dtype = of.dtype, .x = of.x}};
  const Pad pad = std::exchange(to.c.geometry.pad, 0);
  to.c.x.h += pad.top + pad.bottom, to.c.x.w += pad.left + pad.right;
  to.x.y = to.c.x, to.x.top = pad.top, to.x.left = pad.left;
  return to;
}

/// Whether there are so few channels that they are no vectors of 16 bytes, which cuDNN wants of
/// types that tensor cores multiply.
bool few_channels(const Convolution& c) {
  const ConvGeometry& g = c.geometry;
  return c.x.c <= 4 && c.x.c * std::int64_t(size_of(c.dtype)) % 16 != 0 && g.groups == 1 &&
         g.dilation == 1 && g.kernel != 1;
}

/// Blocks as large as the stride, padding and all, as channels: the stride is then 1. The weights
/// are 0 where a block goes beyond the kernel, so that an infinite x there makes y undefined.
Recast in_blocks(const Convolution& of) {
  const ConvGeometry& g = of.geometry;
  const Shape &x = of.x, w = of.w(), y = of.y();
  const auto up = [](std::int64_t n, std::int64_t d) { return (n + d - 1) / d; };
  const Pair block = g.stride, kernel{up(g.kernel.h, block.h), up(g.kernel.w, block.w)};
  const std::int64_t vector = 16 / std::int64_t(size_of(of.dtype));
  const std::int64_t channels = up(x.c * block.h * block.w, vector) * vector;
  const Shape in{x.n, channels, y.h + kernel.h - 1, y.w + kernel.w - 1};
  const Shape weight{w.n, channels, kernel.h, kernel.w};
  return {{{.channels = g.channels, .kernel = kernel, .bias = g.bias}, in, of.dtype, of.epilogue},
          {of.dtype, x, in, block, g.pad.top, g.pad.left},
          {of.dtype, w, weight, block}};
}

std::size_t bytes_of_y(const SpaceToDepth& s) { return Form{s.y, s.dtype, {}}.bytes(); }

Candidate by(CudnnGraph graph, Wiring wiring) {
  graph.finish();
  return {std::make_unique<CudnnGraph>(std::move(graph)), std::move(wiring)};
}

/// What the epilogue adds, in a pass of our own.
Wiring::Work behind_forward(const Convolution& c) {
  const Shape y = c.y();
  const Finish rest{c.dtype, y.n * y.h * y.w, int(y.c), c.epilogue.slope()};
  if (!c.geometry.bias && !c.epilogue) return {};
  return [rest](cudaStream_t s, Addresses a) { return finish(s, rest, a[2], a[3], a[4]); };
}

/// The convolution alone.
Candidate plain_forward(const Convolution& c) {
  CudnnGraph g(c.dtype);
  const int x = g.operand(c.x, c.dtype), w = g.operand(c.w(), c.dtype);
  g.convolve(Pass::forward, c.geometry, x, w, g.operand(c.y(), c.dtype));
  return by(std::move(g), {{0, 1, 4}, behind_forward(c)});
}

/// With the bias and ReLU in it.
Wiring fused_wiring(const Convolution& c) {
  Wiring fused{{0, 1}};
  if (c.geometry.bias) fused.operands.push_back(2);
  fused.operands.push_back(4);
  if (c.epilogue.activation) fused.rectified = c.dtype;
  return fused;
}

Candidate fused_forward(const Convolution& c) {
  const bool activates = c.epilogue.activation.has_value();
  CudnnGraph g(c.dtype);
  const int x = g.operand(c.x, c.dtype), w = g.operand(c.w(), c.dtype);
  const int b = c.geometry.bias ? g.operand({1, c.geometry.channels, 1, 1}, c.dtype) : -1;
  const int y = g.operand(c.y(), c.dtype);
  int last = g.inner(c.y());
  g.convolve(Pass::forward, c.geometry, x, w, last);
  if (c.geometry.bias) {
    const int biased = activates ? g.inner(c.y()) : y;
    g.add(last, b, biased);
    last = biased;
  }
  if (activates) g.rectify(last, y);
  return by(std::move(g), fused_wiring(c));
}

/// Whether the epilogue can be in the graph. cuDNN 9.19 has what also adds an operand, or leaves
/// some below zero, compiled at run time only; cuBLAS does not have it.
bool fuses(const Convolution& c) {
  const bool rectifies = c.epilogue.activation && c.epilogue.slope() == 0;
  return !c.epilogue.add && (rectifies || (c.geometry.bias && !c.epilogue.activation));
}

std::vector<Candidate> fused_and_plain_forward(const Convolution& c) {
  std::vector<Candidate> all;
  if (fuses(c)) all.push_back(fused_forward(c));
  all.push_back(plain_forward(c));
  return all;
}

/// Whether it is the product of a matrix of positions by channels, and the weights.
bool multiplies(const Convolution& c) {
  const ConvGeometry& g = c.geometry;
  return g.kernel == 1 && g.stride == 1 && g.pad == 0 && g.groups == 1;
}

Matrices matrices(const Convolution& c, Pass pass) {
  const std::int64_t rows = c.x.n * c.x.h * c.x.w, in = c.x.c, out = c.geometry.channels;
  if (pass == Pass::input_grad) return {rows, out, in, false, false, c.dtype, c.dtype};
  // cuBLAS writes dw as it sums it up.
  if (pass == Pass::weight_grad) return {out, rows, in, true, false, c.dtype, wide(c.dtype)};
  return {rows, in, out, false, true, c.dtype, c.dtype};
}

Candidate fused_product(const Convolution& c) {
  Matrices m = matrices(c, Pass::forward);
  m.bias = c.geometry.bias, m.rectify = c.epilogue.activation.has_value();
  return {std::make_unique<CublasProduct>(m), fused_wiring(c)};
}

Candidate plain_product(const Convolution& c) {
  return {std::make_unique<CublasProduct>(matrices(c, Pass::forward)),
          {{0, 1, 4}, behind_forward(c)}};
}

}  // namespace

std::vector<Candidate> forward_candidates(const Convolution& c) {
  std::vector<Candidate> all = fused_and_plain_forward(c);
  if (multiplies(c)) {
    if (fuses(c)) all.push_back(fused_product(c));
    all.push_back(plain_product(c));
  }
  if (!few_channels(c)) return all;
  const Recast to = in_blocks(c);
  for (Candidate& of : fused_and_plain_forward(to.c)) {
    of.wiring.operands[0] = 5, of.wiring.operands[1] = 6;
    of.wiring.areas = {bytes_of_y(to.x), bytes_of_y(to.w)};
    of.wiring.first = [x = to.x, w = to.w](cudaStream_t s, Addresses a) {
      const cudaError_t status = space_to_depth(s, x, a[0], a[5]);
      return status == cudaSuccess ? space_to_depth(s, w, a[1], a[6]) : status;
    };
    of.wiring.named = "blocks+";
    all.push_back(std::move(of));
  }
  return all;
}

std::vector<Candidate> input_grad_candidates(const Convolution& c) {
  CudnnGraph g(c.dtype);
  const int w = g.operand(c.w(), c.dtype), dy = g.operand(c.y(), c.dtype);
  g.convolve(Pass::input_grad, c.geometry, g.operand(c.x, c.dtype), w, dy);
  std::vector<Candidate> all;
  all.push_back(by(std::move(g), {{0, 1, 2}}));
  if (multiplies(c))
    all.push_back({std::make_unique<CublasProduct>(matrices(c, Pass::input_grad)), {{1, 0, 2}}});
  return all;
}

namespace {

/// Whether cuDNN computes dw right: cuDNN 9.19 on an H200 does not where padding is not the same on
/// opposite sides.
bool takes_padding(const Pad& pad) { return pad.top == pad.bottom && pad.left == pad.right; }

CudnnGraph weight_grad_graph(const Convolution& c) {
  CudnnGraph g(c.dtype);
  const int x = g.operand(c.x, c.dtype), dy = g.operand(c.y(), c.dtype);
  g.convolve(Pass::weight_grad, c.geometry, x, g.operand(c.w(), c.dtype), dy);
  return g;
}

Wiring weight_grad_wiring(const Convolution& c) {
  Wiring wiring{{0, 1, 2}};
  if (c.dtype == wide(c.dtype)) return wiring;
  // cuDNN sums up f32, but writes dw in the type of x.
  const Form narrow{c.w(), c.dtype, {}}, to{c.w(), wide(c.dtype), {}};
  wiring.areas = {narrow.bytes()};
  wiring.then = [narrow, to](cudaStream_t s, Addresses a) {
    return a[3] ? rearrange(s, narrow, a[4], to, a[3]) : cudaSuccess;
  };
  return wiring;
}

Candidate padded_weight_grad(const Convolution& c) {
  const Recast to = padded(c);
  Wiring wiring = weight_grad_wiring(to.c);
  const std::size_t x = 4 + wiring.areas.size();
  wiring.operands[0] = int(x);
  wiring.areas.push_back(bytes_of_y(to.x));
  wiring.first = [from = to.x, x](cudaStream_t s, Addresses a) {
    return space_to_depth(s, from, a[0], a[x]);
  };
  wiring.named = "padded+";
  return by(weight_grad_graph(to.c), std::move(wiring));
}

Candidate weight_grad_in_blocks(const Convolution& c) {
  const Recast to = in_blocks(c);
  Wiring wiring{{4, 1, 5}};
  wiring.areas = {bytes_of_y(to.x), bytes_of_y(to.w)};
  wiring.first = [x = to.x](cudaStream_t s, Addresses a) {
    return space_to_depth(s, x, a[0], a[4]);
  };
  wiring.then = [w = to.w](cudaStream_t s, Addresses a) {
    return a[2] ? depth_to_space(s, w, a[5], w.dtype, a[2])
                : depth_to_space(s, w, a[5], wide(w.dtype), a[3]);
  };
  wiring.named = "blocks+";
  return by(weight_grad_graph(to.c), std::move(wiring));
}

Candidate weight_grad_product(const Convolution& c) {
  auto product = std::make_unique<CublasProduct>(matrices(c, Pass::weight_grad));
  if (c.dtype == wide(c.dtype)) return {std::move(product), {{1, 0, 2}}};
  const Form narrow{c.w(), c.dtype, {}}, from{c.w(), wide(c.dtype), {}};
  Wiring wiring{{1, 0, 3}};
  wiring.areas = {from.bytes()};
  wiring.then = [narrow, from](cudaStream_t s, Addresses a) {
    return a[2] ? rearrange(s, from, a[4], narrow, a[2]) : cudaSuccess;
  };
  return {std::move(product), std::move(wiring)};
}

}  // namespace

std::vector<Candidate> weight_grad_candidates(const Convolution& c) {
  std::vector<Candidate> all;
  all.push_back(takes_padding(c.geometry.pad) ? by(weight_grad_graph(c), weight_grad_wiring(c))
                                              : padded_weight_grad(c));
  if (multiplies(c)) all.push_back(weight_grad_product(c));
  if (few_channels(c)) all.push_back(weight_grad_in_blocks(c));
  return all;
}

}  // namespace lamina::cuda
