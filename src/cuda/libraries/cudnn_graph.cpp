// Graphs of cuDNN's: how they are described, planned and run.
#include "cuda/libraries/cudnn_graph.hpp"

#include "cuda/libraries/kernel.hpp"

#include <lamina/base/text.hpp>

#include <algorithm>
#include <array>
#include <optional>

namespace lamina::cuda {

Gpu::Gpu(int device) : properties_(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR) {
  properties_.set(CUDNN_ATTR_DEVICEPROP_DEVICE_ID, device).finalize("read a GPU's properties");
}

Gpu::Gpu(const std::string& properties) : properties_(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR) {
  const std::span<const char> text(properties.c_str(), properties.size() + 1);
  properties_.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, text)
      .finalize("take a GPU's properties");
}

int CudnnGraph::operand(const Shape& shape, DType t) { return tensor(shape, t, false); }

int CudnnGraph::tensor(const Shape& shape, DType t, bool inside) {
  const auto number = std::int64_t(tensors_.size());
  const std::array<std::int64_t, 4> extents{shape.n, shape.c, shape.h, shape.w};
  const std::array<std::int64_t, 4> strides{shape.sample(), 1, shape.w * shape.c, shape.c};
  tensors_.emplace_back(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  tensors_.back()
      .set(CUDNN_ATTR_TENSOR_DATA_TYPE, data_type(t))
      .set(CUDNN_ATTR_TENSOR_DIMENSIONS, std::span<const std::int64_t>(extents))
      .set(CUDNN_ATTR_TENSOR_STRIDES, std::span<const std::int64_t>(strides))
      .set(CUDNN_ATTR_TENSOR_UNIQUE_ID, number)
      .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, std::int64_t(16))
      .set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, inside)
      .finalize("describe a tensor");
  if (!inside) numbers_.push_back(number);
  return int(number);
}

namespace {

Descriptor geometry_of(const ConvGeometry& g, DType sums) {
  const auto pair = [](std::int64_t h, std::int64_t w) { return std::array{h, w}; };
  const auto dilation = pair(g.dilation.h, g.dilation.w), stride = pair(g.stride.h, g.stride.w);
  const auto before = pair(g.pad.top, g.pad.left), after = pair(g.pad.bottom, g.pad.right);
  using Extents = std::span<const std::int64_t>;
  Descriptor d(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  d.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, data_type(sums))
      .set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_CROSS_CORRELATION)
      .set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, std::int64_t(2))
      .set(CUDNN_ATTR_CONVOLUTION_DILATIONS, Extents(dilation))
      .set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, Extents(stride))
      .set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, Extents(before))
      .set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, Extents(after))
      .finalize("describe a convolution");
  return d;
}

/// The names that a pass has for what they have in common.
struct Attributes {
  cudnnBackendDescriptorType_t kind;
  cudnnBackendAttributeName_t geometry, x, w, y, alpha, beta;
};
constexpr Attributes forward_pass{CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
constexpr Attributes input_pass{CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
constexpr Attributes weight_pass{CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};

}  // namespace

void CudnnGraph::convolve(Pass pass, const ConvGeometry& g, int x, int w, int y) {
  const Attributes& of = pass == Pass::input_grad    ? input_pass
                         : pass == Pass::weight_grad ? weight_pass
                                                     : forward_pass;
  parts_.push_back(geometry_of(g, sums_));
  Descriptor& d = operations_.emplace_back(of.kind);
  d.set(of.geometry, parts_.back())
      .set(of.x, tensors_[std::size_t(x)])
      .set(of.w, tensors_[std::size_t(w)])
      .set(of.y, tensors_[std::size_t(y)]);
  if (sums_ == DType::f64)
    d.set(of.alpha, 1.0).set(of.beta, 0.0);
  else
    d.set(of.alpha, 1.0F).set(of.beta, 0.0F);
  d.finalize("make a convolution");
}

Descriptor& CudnnGraph::point_by_point(cudnnPointwiseMode_t mode, int x, int y) {
  Descriptor& how = parts_.emplace_back(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  how.set(CUDNN_ATTR_POINTWISE_MODE, mode).set(CUDNN_ATTR_POINTWISE_MATH_PREC, data_type(sums_));
  if (mode == CUDNN_POINTWISE_RELU_FWD)  // else NaN becomes 0
    how.set(CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CUDNN_PROPAGATE_NAN);
  how.finalize("describe an operation");
  return operations_.emplace_back(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, parts_.back())
      .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, tensors_[std::size_t(x)])
      .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, tensors_[std::size_t(y)]);
}

void CudnnGraph::add(int a, int b, int y) {
  point_by_point(CUDNN_POINTWISE_ADD, a, y)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, tensors_[std::size_t(b)])
      .finalize("make a sum");
}

void CudnnGraph::rectify(int x, int y) {
  point_by_point(CUDNN_POINTWISE_RELU_FWD, x, y).finalize("make an activation");
}

void CudnnGraph::finish() {
  graph_ = Descriptor(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph_.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, std::span<const Descriptor>(operations_))
      .finalize("make a graph");
}

namespace {

template <class Note>
std::vector<Note> notes(const Descriptor& engine, cudnnBackendAttributeName_t name, int kinds) {
  auto found = std::vector<Note>(std::size_t(kinds));
  found.resize(engine.get(name, std::span<Note>(found)));
  return found;
}

/// What the heuristics have found; they leave descriptors that are final.
std::vector<Descriptor> configs(const Descriptor& graph, const Gpu& gpu,
                                cudnnBackendHeurMode_t mode) {
  Descriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph)
      .set(CUDNN_ATTR_ENGINEHEUR_MODE, mode)
      .set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, gpu.properties());
  if (cudnn().finalize(heuristics.get()) != CUDNN_STATUS_SUCCESS) return {};  // it has none
  constexpr std::size_t most = 64;
  std::vector<Descriptor> found;
  while (found.size() < most) found.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  found.resize(heuristics.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, std::span<Descriptor>(found)));
  return found;
}

/// Whether results are as exact as the type of elements allows, and as asked for.
bool exact(cudnnBackendNumericalNote_t note, DType t, const Demands& demands) {
  switch (note) {
    case CUDNN_NUMERICAL_NOTE_TENSOR_CORE:  // with f32 these multiply TF32
      return t != DType::f32 || demands.tf32;
    case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC:
      return !demands.deterministic;
    case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS:
    case CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION:
    case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6:
    case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13:
      return false;
    default:
      return true;
  }
}

/// Of a configuration; nothing where it does not do what is asked.
std::optional<Engine> engine_of(Descriptor config, DType t, const Demands& demands) {
  Descriptor number(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  config.get(CUDNN_ATTR_ENGINECFG_ENGINE, std::span<Descriptor>(&number, 1));
  Engine engine;
  engine.name = text("cudnn:", number.get<std::int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX));
  engine.workspace = std::size_t(config.get<std::int64_t>(CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE));
  if (engine.workspace > demands.most_workspace) return {};
  for (const auto note : notes<cudnnBackendNumericalNote_t>(
           number, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT)) {
    if (!exact(note, t, demands)) return {};
    // These multiply less than is counted.
    if (note == CUDNN_NUMERICAL_NOTE_WINOGRAD || note == CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4)
      engine.name += ":winograd";
    if (note == CUDNN_NUMERICAL_NOTE_FFT) engine.name += ":fft";
  }
  for (const auto note : notes<cudnnBackendBehaviorNote_t>(number, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE,
                                                           CUDNN_BEHAVIOR_NOTE_TYPE_COUNT))
    if (note == CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION) engine.compiled = true;
  engine.config = std::move(config);
  return engine;
}

}  // namespace

std::vector<Engine> CudnnGraph::engines(const Gpu& gpu, const Demands& demands) const {
  std::vector<Engine> found;
  for (const auto mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK})
    for (Descriptor& config : configs(graph_, gpu, mode))
      if (auto engine = engine_of(std::move(config), elements_, demands))
        found.push_back(std::move(*engine));
  return found;
}

std::vector<Way> CudnnGraph::ways(const LibrariesOnGpu& on) const {
  std::vector<Way> found;
  for (Engine& each : engines(on.gpu, on.demands)) {
    if (each.compiled) continue;  // that takes seconds for each shape
    const auto engine = std::make_shared<const Engine>(std::move(each));
    found.push_back({engine->name, [this, engine, &gpu = on.gpu] {
                       return std::make_unique<CudnnPlan>(*this, *engine, gpu);
                     }});
  }
  return found;
}

CudnnPlan::CudnnPlan(const CudnnGraph& graph, const Engine& engine, const Gpu& gpu)
    : name_(engine.name),
      numbers_(graph.numbers().begin(), graph.numbers().end()),
      plan_(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
  plan_.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, engine.config)
      .set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, gpu.properties())
      .finalize("make a plan");
  workspace_ = std::size_t(plan_.get<std::int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE));
}

CudnnPlan::Pack& CudnnPlan::pack_of(void* workspace, Addresses operands) {
  for (Pack& pack : packs_)
    if (pack.addresses.back() == workspace &&
        std::equal(operands.begin(), operands.end(), pack.addresses.begin()))
      return pack;
  constexpr std::size_t most = 16;  // those of a few networks that share a kernel's operands
  if (packs_.size() == most) packs_.erase(packs_.begin());
  Pack& pack = packs_.emplace_back();
  pack.addresses.assign(operands.begin(), operands.end());
  pack.descriptor = Descriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.descriptor.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, std::span<const std::int64_t>(numbers_))
      .set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, operands)
      .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, workspace)
      .finalize("take operands");
  pack.addresses.push_back(workspace);
  return pack;
}

namespace {

/// Of a queue.
struct Handle {
  cudnnHandle_t handle = nullptr;

  explicit Handle(cudaStream_t stream) {
    ok(cudnn().create(&handle), "start");
    ok(cudnn().set_stream(handle, stream), "choose a stream");
  }
  ~Handle() { cudnn().destroy(handle); }
  Handle(const Handle&) = delete;
};

}  // namespace

void CudnnPlan::run(Queue& queue, void* workspace, Addresses operands) {
  check(operands.size() == numbers_.size(), name_, ": expected ", numbers_.size(),
        " operands, got ", operands.size());
  const cudaStream_t stream = queue.stream();  // asked for each time: the next mark is behind this
  const auto& handle = queue.kept<Handle>([&] { return std::make_shared<Handle>(stream); });
  const Pack& pack = pack_of(workspace, operands);
  ok(cudnn().execute(handle.handle, plan_.get(), pack.descriptor.get()), name_.c_str());
}

}  // namespace lamina::cuda
