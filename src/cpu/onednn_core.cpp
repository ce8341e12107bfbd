// Layouts and primitives of oneDNN.
#include "cpu/onednn_core.hpp"

#include <lamina/base/random.hpp>
#include <lamina/base/threads.hpp>

#include <algorithm>
#include <numeric>

namespace lamina::detail {
namespace {

Dims row_major(const Dims& dims) {
  Dims strides(dims.size(), 1);
  for (std::size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
  return strides;
}

Desc desc_of(const Form& form) {
  const auto* layout = dynamic_cast<const DescLayout*>(form.layout.kind());
  check(layout != nullptr, "the layout ", form.layout.name(), " is not oneDNN's");
  return layout->desc();
}

}  // namespace

dnnl::primitive_attr Runtime::with(const Epilogue& e) const {
  if (!e) return attr;
  constexpr float hardly = 1e-30f;
  dnnl::post_ops then;
  if (e.add) then.append_sum();
  if (e.activation) {
    const auto slope = float(e.slope());
    append_relu(then, slope == 0 ? hardly : slope);
  }
  dnnl::primitive_attr with;
  with.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  with.set_post_ops(then);
  return with;
}

std::uint64_t DescLayout::fingerprint_of(const Desc& desc) {
  const Blocking b = blocking(desc);
  if (!b.blocked) return 0;
  std::string all = text(b.offset);
  for (const Dims* part : {&b.dims, &b.padded, &b.strides, &b.inner_blocks, &b.inner_dims}) {
    all += '|';
    for (const std::int64_t v : *part) all += text(v, ' ');
  }
  return key_of(all) | 1;  // never the 0 of a layout that is not known
}

std::optional<AxisOrder> DescLayout::order(const Shape& shape) const {
  const Blocking b = blocking(desc_);
  if (!b.blocked || b.offset != 0 || b.padded != b.dims || !b.inner_blocks.empty()) return {};
  const bool flat = b.dims == Dims{shape.n, shape.sample()};
  if (!flat && b.dims != dims(shape)) return {};
  std::vector<int> by_stride(b.dims.size());
  std::iota(by_stride.begin(), by_stride.end(), 0);
  std::stable_sort(by_stride.begin(), by_stride.end(),
                   [&](int i, int j) { return b.strides[i] > b.strides[j]; });
  std::int64_t stride = 1;
  for (std::size_t i = by_stride.size(); i-- > 0; stride *= b.dims[by_stride[i]])
    if (const int d = by_stride[i]; b.dims[d] > 1 && b.strides[d] != stride) return {};
  if (flat) return by_stride[0] == 0 ? AxisOrder{0, 1, 2, 3} : AxisOrder{1, 2, 3, 0};
  return AxisOrder{by_stride[0], by_stride[1], by_stride[2], by_stride[3]};
}

std::string DescLayout::name() const {
  const Blocking b = blocking(desc_);
  if (!b.blocked) return "opaque";
  std::vector<int> order(b.dims.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int i, int j) { return b.strides[i] > b.strides[j]; });
  std::string name;
  for (int d : order) {
    const bool inner = std::count(b.inner_dims.begin(), b.inner_dims.end(), d) > 0;
    name += char((inner ? 'A' : 'a') + d);
  }
  for (std::size_t i = 0; i < b.inner_dims.size(); ++i) {
    name += text(b.inner_blocks[i], char('a' + b.inner_dims[i]));
  }
  return name;
}

bool is_plain(const Desc& desc) {
  const Blocking b = blocking(desc);
  if (!b.blocked || b.offset != 0 || b.padded != b.dims) return false;
  const Dims strides = row_major(b.dims);
  Dims inner(b.dims.size(), 1);  // of the blocks of each dimension seen so far, innermost first
  std::int64_t stride = 1;
  for (std::size_t i = b.inner_blocks.size(); i-- > 0;) {
    const std::int64_t d = b.inner_dims[i], size = b.inner_blocks[i];
    if (size > 1 && stride != strides[d] * inner[d]) return false;
    inner[d] *= size;
    stride *= size;
  }
  for (std::size_t d = 0; d < b.dims.size(); ++d) {
    if (b.dims[d] > inner[d] && b.strides[d] != strides[d] * inner[d]) return false;
  }
  return true;
}

Layout to_layout(const Desc& desc) {
  return is_plain(desc) ? Layout() : Layout(std::make_shared<const DescLayout>(desc));
}

Desc plain(const Dims& dims, Type type) { return Desc(dims, type, row_major(dims)); }
Desc any(const Dims& dims, Type type) { return Desc(dims, type, dnnl::memory::format_tag::any); }

Desc to_desc(const Form& form, const Dims& plain_dims) {
  const Type type = type_of(form.dtype);
  if (!form.layout.plain()) return retyped(desc_of(form), type);
  return plain(plain_dims.empty() ? dims(form.shape) : plain_dims, type);
}

Dims layout_dims(const Form& form) {
  return form.layout.plain() ? Dims() : blocking(desc_of(form)).dims;
}

int channel_block(const Form& form) {
  if (form.layout.plain()) return 1;
  const Blocking b = blocking(desc_of(form));
  if (!b.blocked || b.dims.size() != 4 || b.inner_blocks.size() != 1 || b.inner_dims[0] != 1) {
    return 0;
  }
  const std::int64_t size = b.inner_blocks[0], w = size, h = w * b.dims[3], c = h * b.dims[2];
  const bool usual = b.strides[3] == w && b.strides[2] == h && b.strides[1] == c &&
                     b.strides[0] == b.padded[1] / size * c && b.offset == 0;
  return usual && 16 % size == 0 ? int(size) : 0;
}

void check_input(const Form& x, const char* who) {
  check(x.dtype == DType::f32 || x.dtype == DType::bf16, who,
        ": the oneDNN back end computes in f32 and bf16, got ", x);
  check_elements(x, who);
  to_desc(x);
}

Op::Op(RuntimePtr runtime, const dnnl::primitive_desc_base& pd, const dnnl::primitive& primitive,
       std::initializer_list<Arg> args)
    : runtime_(std::move(runtime)), primitive_(primitive), threads_(threads()) {
  const auto add = [&](int id, const Desc& desc) {
    memories_[count_] = dnnl::memory(desc, runtime_->engine, DNNL_MEMORY_NONE);
    args_[count_] = {id, memories_[count_].get()};
    ++count_;
  };
  for (const Arg& arg : args) {
    taken_[given_] = !arg.desc.is_zero();  // parts of a tensor have no size of their own
    if (taken_[given_]) add(arg.id, arg.desc);
    ++given_;
  }
  const Desc scratch = pd.scratchpad_desc();
  scratch_ = scratch.get_size();
  if (scratch_ > 0) {
    runtime_->reserve(scratch_);
    add(DNNL_ARG_SCRATCHPAD, scratch);
  }
}

// Setting a handle makes oneDNN clear the padding, which costs time: only where it changed.
void Op::bind(std::size_t i, void* data) {
  if (bound_[i] == data) return;
  memories_[i].set_data_handle(data);
  bound_[i] = data;
}

void Op::operator()(std::initializer_list<void*> buffers) {
  check(buffers.size() == given_, "oneDNN: expected ", given_, " buffers, got ", buffers.size());
  const int team = settle_team();
  check(team >= threads_, "oneDNN: a kernel was made for ", threads_, " threads, and OpenMP gives ",
        team, " where it runs (within a parallel region?): expected both in the same place");
  std::size_t at = 0, i = 0;
  for (void* buffer : buffers) {
    if (taken_[i++]) bind(at++, buffer);
  }
  if (scratch_ > 0) bind(at, runtime_->scratch().data);
  // The C function takes our array; the C++ one would copy a map into a vector at each call.
  dnnl::error::wrap_c_api(
      dnnl_primitive_execute(primitive_.get(), runtime_->stream.get(), int(count_), args_.data()),
      "could not execute a primitive");
  runtime_->stream.wait();
}

Op reorder_op(const RuntimePtr& runtime, const Desc& from, const Desc& to) {
  const dnnl::reorder::primitive_desc pd(runtime->engine, from, runtime->engine, to, runtime->attr);
  return Op(runtime, pd, dnnl::reorder(pd), {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
}

std::string join(const std::string& forward, const std::string& input_grad,
                 const std::string& weight_grad) {
  if (forward == input_grad && forward == weight_grad) return forward;
  return text(forward, '|', input_grad, '|', weight_grad);
}

}  // namespace lamina::detail
