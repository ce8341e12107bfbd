// A stand-in for cuDNN's back end API: keeps what descriptors are told, and computes graphs of
// convolutions, sums and ReLU by plain loops in f64, in the handle's stream. It has some ways for
// each graph, of which one must not be taken since it would be compiled at run time.
#include "fake/libraries/cudnn.hpp"

#include "cuda/libraries/cudnn.hpp"
#include "fake/libraries/elements.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>

namespace {

using lamina::DType;
using lamina::test::FakeCudnn;

FakeCudnn counted;
std::vector<std::int64_t> refused, noted;  // engines
cudnnBackendNumericalNote_t note;          // of these

bool has(const std::vector<std::int64_t>& list, std::int64_t engine) {
  return std::count(list.begin(), list.end(), engine) > 0;
}

/// A descriptor, with those that are attributes of it: copies, as they were when they were set.
struct Object {
  cudnnBackendDescriptorType_t kind;
  bool final = false;
  std::map<int, std::vector<char>> values = {};
  std::map<int, std::vector<std::shared_ptr<const Object>>> objects = {};

  template <class T>
  std::vector<T> all(int name) const {
    const std::vector<char>& bytes = values.at(name);
    std::vector<T> to(bytes.size() / sizeof(T));
    std::memcpy(to.data(), bytes.data(), bytes.size());
    return to;
  }
  template <class T>
  T one(int name) const {
    return all<T>(name).at(0);
  }
  const Object& object(int name) const { return *objects.at(name).at(0); }
};

std::size_t size_of(cudnnBackendAttributeType_t t) {
  switch (t) {
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
      return 8;
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
      return 1;
    default:
      return 4;
  }
}

constexpr int engines = 3;  ///< number 2 would be compiled at run time
constexpr std::int64_t workspaces[engines] = {0, 4096, 64};

DType dtype_of(cudnnDataType_t type) {
  for (const DType t : {DType::f64, DType::f32, DType::f16, DType::bf16})
    if (lamina::cuda::data_type(t) == type) return t;
  throw type;
}

struct Operand {
  std::array<std::int64_t, 4> extents, strides;
  DType type;
  char* data = nullptr;             // null for what is inside a graph
  std::vector<double> inside = {};  // in its place

  explicit Operand(const Object& d)
      : type(dtype_of(d.one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE))) {
    const auto e = d.all<std::int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
    const auto s = d.all<std::int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
    std::copy(e.begin(), e.end(), extents.begin());
    std::copy(s.begin(), s.end(), strides.begin());
  }
  /// A row for all is read as if it was there for each.
  std::int64_t at(std::array<std::int64_t, 4> i) const {
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < 4; ++d) offset += extents[d] == 1 ? 0 : i[d] * strides[d];
    return offset;
  }
  double get(std::array<std::int64_t, 4> i) const {
    const std::int64_t o = at(i);
    return data ? lamina::test::number_at(type, data, o) : inside[std::size_t(o)];
  }
  void set(std::array<std::int64_t, 4> i, double v) {
    const std::int64_t o = at(i);
    if (data)
      lamina::test::put_number(type, data, o, v);
    else
      inside[std::size_t(o)] = v;
  }
  template <class F>
  void each(const F& f) const {
    std::array<std::int64_t, 4> i;
    for (i[0] = 0; i[0] < extents[0]; ++i[0])
      for (i[1] = 0; i[1] < extents[1]; ++i[1])
        for (i[2] = 0; i[2] < extents[2]; ++i[2])
          for (i[3] = 0; i[3] < extents[3]; ++i[3]) f(i);
  }
};

using Operands = std::map<std::int64_t, Operand>;

Operand& operand(Operands& all, const Object& operation, int name) {
  return all.at(operation.object(name).one<std::int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID));
}

/// Calls f(n, k, p, q, c, h, w, r, s, channel of w) for each product of a convolution.
template <class F>
void each_product(const Object& g, const Operand& x, const Operand& w, const Operand& y,
                  const F& f) {
  const auto stride = g.all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
  const auto pad = g.all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
  const auto dilation = g.all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_DILATIONS);
  const std::int64_t groups = x.extents[1] / w.extents[1], each = w.extents[0] / groups;
  y.each([&](std::array<std::int64_t, 4> out) {
    w.each([&](std::array<std::int64_t, 4> of) {
      if (of[0] != out[1]) return;
      const std::int64_t h = out[2] * stride[0] + of[2] * dilation[0] - pad[0];
      const std::int64_t v = out[3] * stride[1] + of[3] * dilation[1] - pad[1];
      if (h < 0 || v < 0 || h >= x.extents[2] || v >= x.extents[3]) return;
      f(out, of, std::array{out[0], out[1] / each * w.extents[1] + of[1], h, v});
    });
  });
}

bool same_padding(const Object& g) {
  return g.all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS) ==
         g.all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS);
}

void convolve(const Object& operation, Operands& all, int first) {
  // Both gradients and forward have their attributes in one order, from `first` on, but for names.
  const bool forward = operation.kind == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR;
  const bool data = operation.kind == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR;
  Operand& w = operand(all, operation, first + 3);
  Operand& x = operand(all, operation, first + 4);
  Operand& y = operand(all, operation, first + 5);
  Operand& to = forward ? y : data ? x : w;
  std::vector<double> sums;
  to.each([&](auto i) { sums.resize(std::max(sums.size(), std::size_t(to.at(i)) + 1)); });
  each_product(operation.object(first + 2), x, w, y, [&](auto out, auto of, auto in) {
    const auto i = forward ? out : data ? in : of;
    const double product = forward ? w.get(of) * x.get(in)
                           : data  ? w.get(of) * y.get(out)
                                   : x.get(in) * y.get(out);
    sums[std::size_t(to.at(i))] += product;
  });
  if (!forward && !data && !same_padding(operation.object(first + 2)))
    sums.assign(sums.size(), std::nan(""));  // hardware has been seen to compute wrong numbers
  to.each([&](auto i) { to.set(i, sums[std::size_t(to.at(i))]); });
}

void point_by_point(const Object& operation, Operands& all) {
  const Object& how = operation.object(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
  const Operand& x = operand(all, operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
  Operand& y = operand(all, operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
  const bool adds = how.one<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE) == CUDNN_POINTWISE_ADD;
  const auto nan = how.values.find(CUDNN_ATTR_POINTWISE_NAN_PROPAGATION);  // else it becomes 0
  const bool keeps_nan =
      nan != how.values.end() && how.one<cudnnNanPropagation_t>(nan->first) == CUDNN_PROPAGATE_NAN;
  const Operand* const b =
      adds ? &operand(all, operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC) : nullptr;
  y.each([&](auto i) {
    const double v = x.get(i);
    y.set(i, adds ? v + b->get(i) : v > 0 || (keeps_nan && v != v) ? v : 0.0);
  });
}

Operands operands_of(const Object& graph, const Object& pack) {
  Operands all;
  const auto numbers = pack.all<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto addresses = pack.all<char*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  for (const auto& operation : graph.objects.at(CUDNN_ATTR_OPERATIONGRAPH_OPS))
    for (const auto& [name, objects] : operation->objects) {
      const Object& tensor = *objects.at(0);
      if (tensor.kind != CUDNN_BACKEND_TENSOR_DESCRIPTOR) continue;
      const auto id = tensor.one<std::int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
      Operand& o = all.try_emplace(id, tensor).first->second;
      const auto at = std::find(numbers.begin(), numbers.end(), id) - numbers.begin();
      if (tensor.one<char>(CUDNN_ATTR_TENSOR_IS_VIRTUAL))
        o.each(
            [&](auto i) { o.inside.resize(std::max(o.inside.size(), std::size_t(o.at(i)) + 1)); });
      else
        o.data = addresses.at(std::size_t(at));
      if (o.data && reinterpret_cast<std::uintptr_t>(o.data) % 16 != 0) throw 0;
    }
  return all;
}

struct Handle {
  cudaStream_t stream = nullptr;
};

Object& object(void* p) { return *static_cast<Object*>(p); }

cudnnStatus_t create(cudnnHandle_t* to) {
  ++counted.handles;
  *to = reinterpret_cast<cudnnHandle_t>(new Handle);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t destroy(cudnnHandle_t handle) {
  --counted.handles;
  delete reinterpret_cast<Handle*>(handle);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t set_stream(cudnnHandle_t handle, cudaStream_t stream) {
  reinterpret_cast<Handle*>(handle)->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t create_descriptor(cudnnBackendDescriptorType_t kind, void** to) {
  ++counted.descriptors, ++counted.made;
  *to = new Object{kind};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t destroy_descriptor(void* d) {
  --counted.descriptors;
  delete static_cast<Object*>(d);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t set_attribute(void* d, cudnnBackendAttributeName_t name,
                            cudnnBackendAttributeType_t type, std::int64_t count,
                            const void* values) {
  if (object(d).final) return CUDNN_STATUS_BAD_PARAM;
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    auto& to = object(d).objects[name];
    for (std::int64_t i = 0; i < count; ++i) {
      const Object& other = object(static_cast<void* const*>(values)[i]);
      if (!other.final) return CUDNN_STATUS_BAD_PARAM;
      to.push_back(std::make_shared<const Object>(other));
    }
    return CUDNN_STATUS_SUCCESS;
  }
  const char* const bytes = static_cast<const char*>(values);
  object(d).values[name].assign(bytes, bytes + std::size_t(count) * size_of(type));
  return CUDNN_STATUS_SUCCESS;
}

template <class T>
cudnnStatus_t give(T value, std::int64_t* count, void* to) {
  *count = 1;
  std::memcpy(to, &value, sizeof value);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t get_attribute(void* d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t,
                            std::int64_t room, std::int64_t* count, void* values) {
  const Object& from = object(d);
  const auto engine = [&] { return std::size_t(from.one<std::int64_t>(-1)); };
  const auto put_engine = [](Object& to, std::int64_t number) {
    const char* const bytes = reinterpret_cast<const char*>(&number);
    to.values[-1].assign(bytes, bytes + sizeof number), to.final = true;
  };
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS: {
      const bool fallback =
          from.one<cudnnBackendHeurMode_t>(CUDNN_ATTR_ENGINEHEUR_MODE) == CUDNN_HEUR_MODE_FALLBACK;
      *count = fallback ? 0 : std::min<std::int64_t>(room, engines);
      for (std::int64_t e = 0; e < *count; ++e) {
        Object& config = object(static_cast<void**>(values)[e]);
        config.objects[-2] = from.objects.at(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
        put_engine(config, engines - 1 - e);
      }
      return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_ATTR_ENGINECFG_ENGINE:
      *count = 1;
      put_engine(object(*static_cast<void**>(values)), std::int64_t(engine()));
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
      return give(std::int64_t(engine()), count, values);
    case CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE:
      return give(workspaces[engine()], count, values);
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
      return give(
          workspaces[from.object(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG).one<std::int64_t>(-1)],
          count, values);
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
      *count = 0;
      return has(noted, std::int64_t(engine())) ? give(note, count, values) : CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE:
      *count = 0;
      return engine() < 2 ? CUDNN_STATUS_SUCCESS
                          : give(CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION, count, values);
    default:
      return CUDNN_STATUS_NOT_SUPPORTED;
  }
}

cudnnStatus_t finalize(void* d) {
  if (object(d).final) return CUDNN_STATUS_BAD_PARAM;
  if (object(d).kind == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
    const Object& config = object(d).object(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    if (has(refused, config.one<std::int64_t>(-1))) return CUDNN_STATUS_NOT_SUPPORTED;
    ++counted.plans;
  }
  object(d).final = true;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t execute(cudnnHandle_t handle, void* plan, void* pack) {
  const Object& config = object(plan).object(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  const auto engine = config.one<std::int64_t>(-1);
  ++counted.runs[engine];
  if (engine == engines - 1) return CUDNN_STATUS_EXECUTION_FAILED;
  const auto graph = config.objects.at(-2).at(0);
  char* const workspace = object(pack).one<char*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  const auto work = [graph, pack = object(pack), workspace, engine] {
    Operands all = operands_of(*graph, pack);
    for (const auto& operation : graph->objects.at(CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
      if (operation->kind == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
        point_by_point(*operation, all);
      else
        convolve(*operation, all, operation->values.begin()->first);
    }
    // What lies there is lost, results, too.
    if (workspaces[engine] > 0) std::memset(workspace, 0xff, std::size_t(workspaces[engine]));
  };
  return reinterpret_cast<Handle*>(handle)->stream->put(work) == cudaSuccess
             ? CUDNN_STATUS_SUCCESS
             : CUDNN_STATUS_EXECUTION_FAILED;
}

}  // namespace

namespace lamina {

test::FakeCudnn test::fake_cudnn() { return counted; }
void test::refuse_engines(std::vector<std::int64_t> engines) { refused = std::move(engines); }
void test::note_of_engines(std::vector<std::int64_t> engines, cudnnBackendNumericalNote_t what) {
  noted = std::move(engines), note = what;
}

cuda::Cudnn cuda::open_cudnn() {
  Cudnn c{};
  c.version = [] { return std::size_t(91900); };
  c.name_of = [](cudnnStatus_t) { return "refused by the stand-in"; };
  c.last_error = [](char*, std::size_t) {};
  c.create = create, c.destroy = destroy, c.set_stream = set_stream;
  c.create_descriptor = create_descriptor, c.destroy_descriptor = destroy_descriptor;
  c.set_attribute = set_attribute, c.get_attribute = get_attribute;
  c.finalize = finalize, c.execute = execute;
  return c;
}

}  // namespace lamina
