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

}  // namespace

std::vector<Candidate> forward_candidates(const Convolution& c) {
  std::vector<Candidate> all;
  // cuDNN 9.19 has what also adds an operand, or leaves some below zero, compiled at run time only.
  const bool rectifies = c.epilogue.activation && c.epilogue.slope() == 0;
  if (!c.epilogue.add && (rectifies || (c.geometry.bias && !c.epilogue.activation)))
    all.push_back(fused_forward(c));
  all.push_back(plain_forward(c));
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

/// The padding of x as part of it, and what writes that.
struct Padded {
  Convolution c;
  SpaceToDepth from;

  explicit Padded(const Convolution& of) : c(of) {
    const Pad pad = std::exchange(c.geometry.pad, 0);
    c.x.h += pad.top + pad.bottom, c.x.w += pad.left + pad.right;
    from = {.dtype = c.dtype, .x = of.x, .y = c.x, .top = pad.top, .left = pad.left};
  }
  std::size_t bytes() const { return Form{c.x, c.dtype, {}}.bytes(); }
};

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

}  // namespace

std::vector<Candidate> weight_grad_candidates(const Convolution& c) {
  std::vector<Candidate> all;
  if (takes_padding(c.geometry.pad)) {
    all.push_back(plain_weight_grad(c));
    return all;
  }
  const Padded padded(c);
  Wiring& wiring = all.emplace_back(plain_weight_grad(padded.c)).wiring;
  const std::size_t x = 4 + wiring.areas.size();
  wiring.areas.push_back(padded.bytes()), wiring.operands[0] = int(x);
  wiring.first = [from = padded.from, x](cudaStream_t s, Addresses a) {
    return space_to_depth(s, from, a[0], a[x]);
  };
  return all;
}

}  // namespace lamina::cuda
