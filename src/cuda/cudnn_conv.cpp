#include "cuda/cudnn_conv.hpp"

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

/// The convolution alone; what the epilogue adds comes in a pass of our own.
Candidate plain_forward(const Convolution& c) {
  Candidate plain{CudnnGraph(c.dtype), {{0, 1, 4}}};
  const int x = plain.graph.operand(c.x, c.dtype), w = plain.graph.operand(c.w(), c.dtype);
  plain.graph.convolve(Pass::forward, c.geometry, x, w, plain.graph.operand(c.y(), c.dtype));
  plain.graph.finish();
  const Shape y = c.y();
  const Finish rest{c.dtype, y.n * y.h * y.w, int(y.c), c.epilogue.slope()};
  if (c.geometry.bias || c.epilogue)
    plain.wiring.then = [rest](cudaStream_t s, Addresses a) {
      return finish(s, rest, a[2], a[3], a[4]);
    };
  return plain;
}

/// The bias and ReLU in the graph.
Candidate fused_forward(const Convolution& c) {
  const bool activates = c.epilogue.activation.has_value();
  Candidate fused{CudnnGraph(c.dtype), {{0, 1}}};
  CudnnGraph& g = fused.graph;
  const int x = g.operand(c.x, c.dtype), w = g.operand(c.w(), c.dtype);
  const int b = c.geometry.bias ? g.operand({1, c.geometry.channels, 1, 1}, c.dtype) : -1;
  const int y = g.operand(c.y(), c.dtype);
  int last = g.inner(c.y());
  g.convolve(Pass::forward, c.geometry, x, w, last);
  if (c.geometry.bias) {
    const int biased = activates ? g.inner(c.y()) : y;
    g.add(last, b, biased);
    last = biased;
    fused.wiring.operands.push_back(2);
  }
  if (activates) g.rectify(last, y);
  fused.wiring.operands.push_back(4);
  g.finish();
  return fused;
}

std::vector<Candidate> fused_and_plain_forward(const Convolution& c) {
  std::vector<Candidate> all;
  // cuDNN 9.19 has what also adds an operand, or leaves some below zero, compiled at run time only.
  const bool rectifies = c.epilogue.activation && c.epilogue.slope() == 0;
  if (!c.epilogue.add && (rectifies || (c.geometry.bias && !c.epilogue.activation)))
    all.push_back(fused_forward(c));
  all.push_back(plain_forward(c));
  return all;
}

}  // namespace

std::vector<Candidate> forward_candidates(const Convolution& c) {
  std::vector<Candidate> all = fused_and_plain_forward(c);
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
  std::vector<Candidate> all;
  Candidate& only = all.emplace_back(CudnnGraph(c.dtype), Wiring{{0, 1, 2}});
  const int w = only.graph.operand(c.w(), c.dtype), dy = only.graph.operand(c.y(), c.dtype);
  only.graph.convolve(Pass::input_grad, c.geometry, only.graph.operand(c.x, c.dtype), w, dy);
  only.graph.finish();
  return all;
}

namespace {

/// Whether cuDNN computes dw right: cuDNN 9.19 on an H200 does not where padding is not the same on
/// opposite sides.
bool takes_padding(const Pad& pad) { return pad.top == pad.bottom && pad.left == pad.right; }

Candidate plain_weight_grad(const Convolution& c) {
  Candidate plain{CudnnGraph(c.dtype), {{0, 1, 2}}};
  const int x = plain.graph.operand(c.x, c.dtype), dy = plain.graph.operand(c.y(), c.dtype);
  plain.graph.convolve(Pass::weight_grad, c.geometry, x, plain.graph.operand(c.w(), c.dtype), dy);
  plain.graph.finish();
  if (c.dtype == wide(c.dtype)) return plain;
  // cuDNN sums up f32, but writes dw in the type of x.
  const Form narrow{c.w(), c.dtype, {}}, to{c.w(), wide(c.dtype), {}};
  plain.wiring.areas = {narrow.bytes()};
  plain.wiring.then = [narrow, to](cudaStream_t s, Addresses a) {
    return a[3] ? rearrange(s, narrow, a[4], to, a[3]) : cudaSuccess;
  };
  return plain;
}

Candidate padded_weight_grad(const Convolution& c) {
  const Recast to = padded(c);
  Candidate all = plain_weight_grad(to.c);
  const std::size_t x = 4 + all.wiring.areas.size();
  all.wiring.operands[0] = int(x);
  all.wiring.areas.push_back(bytes_of_y(to.x));
  all.wiring.first = [from = to.x, x](cudaStream_t s, Addresses a) {
    return space_to_depth(s, from, a[0], a[x]);
  };
  all.wiring.named = "padded+";
  return all;
}

Candidate weight_grad_in_blocks(const Convolution& c) {
  const Recast to = in_blocks(c);
  Candidate blocks = plain_weight_grad(to.c);
  blocks.wiring = {{4, 1, 5}};
  blocks.wiring.areas = {bytes_of_y(to.x), bytes_of_y(to.w)};
  blocks.wiring.first = [x = to.x](cudaStream_t s, Addresses a) {
    return space_to_depth(s, x, a[0], a[4]);
  };
  blocks.wiring.then = [w = to.w](cudaStream_t s, Addresses a) {
    return a[2] ? depth_to_space(s, w, a[5], w.dtype, a[2])
                : depth_to_space(s, w, a[5], wide(w.dtype), a[3]);
  };
  blocks.wiring.named = "blocks+";
  return blocks;
}

}  // namespace

std::vector<Candidate> weight_grad_candidates(const Convolution& c) {
  std::vector<Candidate> all;
  all.push_back(takes_padding(c.geometry.pad) ? plain_weight_grad(c) : padded_weight_grad(c));
  if (few_channels(c)) all.push_back(weight_grad_in_blocks(c));
  return all;
}

}  // namespace lamina::cuda
