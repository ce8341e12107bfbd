// Linear by oneDNN's inner product. x is wanted plain: to reorder n*c values costs nothing beside
// reading k*c weights, and for images in blocks oneDNN 2.6 has slow kernels only.
#include "cpu/onednn_products.hpp"
#include "cpu/onednn_weighted.hpp"

#include <algorithm>

namespace lamina::detail {
namespace {

using Forward = dnnl::inner_product_forward;
using Data = dnnl::inner_product_backward_data;
using Weights = dnnl::inner_product_backward_weights;

class Linear final : public OneDnnWeighted {
 public:
  Linear(RuntimePtr runtime, std::int64_t features, bool bias, const Form& form, const Epilogue& e)
      : OneDnnWeighted(std::move(runtime), "linear", e) {
    check_input(form, "linear");
    check(features > 0, "linear: the number of features must be positive, got ", features);
    const Shape shape = form.shape;
    const Dims w_dims{features, shape.sample()};
    const Type type = type_of(form.dtype);
    const Desc x = plain({shape.n, shape.sample()}, type), y = plain({shape.n, features}, type);
    const Desc bias_desc = bias ? plain({features}, type) : Desc();
    const Desc db_desc = retyped(bias_desc, f32);
    const dnnl::engine& engine = runtime_->engine;
    const dnnl::primitive_attr& attr = runtime_->attr;

    const auto forward = forward_desc<Forward>(engine, attr, dnnl::prop_kind::forward_training, x,
                                               any(w_dims, type), bias_desc, y);
    check(bool(forward), "linear: oneDNN has no implementation for ", form);
    const Desc kept = forward.weights_desc();
    auto data = backward_desc<Data>(engine, attr, forward, x, kept, y);
    if (!data) data = backward_desc<Data>(engine, attr, forward, x, any(w_dims, type), y);
    auto weights = backward_desc<Weights>(engine, attr, forward, x, retyped(kept, f32), db_desc, y);
    if (slow(weights))
      weights = backward_desc<Weights>(engine, attr, forward, x, any(w_dims), db_desc, y);
    check(data && weights, "linear: oneDNN has no backward implementation for ", form);

    inputs = {{shape, form.dtype, {}}};
    output = {{shape.n, features, 1, 1}, form.dtype, {}};
    w = to_form({features, shape.c, shape.h, shape.w}, kept);
    if (bias) b = {{1, features, 1, 1}, form.dtype, {}};
    const auto same = [&](const auto& pd) {
      return pd.impl_info_str() == std::string(forward.impl_info_str());
    };
    const auto fused =
        e ? forward_desc_where<Forward>(same, engine, runtime_->with(e),
                                        dnnl::prop_kind::forward_training, x, kept, bias_desc, y)
          : Forward::primitive_desc();
    assemble_forward<Forward>(forward, fused, bias_desc);
    assemble_data<Data>(forward, data);
    std::string dw = products(weights, shape, features, kept);
    if (dw.empty()) {
      assemble_weights<Weights>(forward, weights, bias_desc);
      dw = weights.impl_info_str();
    }
    algorithm = join(forward.impl_info_str(), data.impl_info_str(), dw);
  }

 private:
  // Our own dw, if the weights lie in blocks as it does. Empty if not taken.
  std::string products(const Weights::primitive_desc& theirs, const Shape& x, std::int64_t features,
                       const Desc& kept) {
    using Tag = dnnl::memory::format_tag;
    struct Blocks {
      int features, channels;
      Tag tag;
    };
    constexpr Blocks layouts[] = {{16, 16, Tag::AB8b16a2b},  {32, 16, Tag::AB8b32a2b},
                                  {64, 16, Tag::AB8b64a2b},  {16, 32, Tag::AB16b16a2b},
                                  {32, 32, Tag::AB16b32a2b}, {64, 32, Tag::AB16b64a2b}};
    if (!may_be_products(theirs)) return "";
    for (const Blocks& blocks : layouts) {
      if (kept != Desc(blocking(kept).dims, Type::bf16, blocks.tag)) continue;
      const DwProducts kernel(features, blocks.features, blocks.channels, x, is(theirs, "amx"));
      if (take_products(kernel)) return kernel.how();
    }
    return "";
  }
};

}  // namespace

std::unique_ptr<WeightedKernel> make_linear(RuntimePtr runtime, std::int64_t features, bool bias,
                                            const Form& x, const Epilogue& e) {
  return std::make_unique<Linear>(std::move(runtime), features, bias, x, e);
}

}  // namespace lamina::detail
