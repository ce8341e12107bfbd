// n-h-w-c: how a GPU wants values of several channels and positions.
#pragma once

#include <lamina/tensor/layout.hpp>

namespace lamina::cuda {

class Nhwc final : public LayoutKind {
 public:
  explicit Nhwc(std::int64_t elements) : elements_(elements) {}
  std::string name() const override { return "nhwc"; }
  std::int64_t elements() const override { return elements_; }
  bool equals(const LayoutKind& other) const override {
    return dynamic_cast<const Nhwc*>(&other) != nullptr;  // a Form has shape and type beside it
  }
  std::uint64_t fingerprint() const override { return 2; }  // padding there is none
  std::optional<AxisOrder> order(const Shape&) const override { return AxisOrder{0, 2, 3, 1}; }

 private:
  std::int64_t elements_;
};

/// Of this shape and type; plain where that is the same.
inline Form nhwc(const Shape& shape, DType dtype) {
  Form form{shape, dtype, {}};
  if (shape.c > 1 && shape.h * shape.w > 1)
    form.layout = Layout(std::make_shared<const Nhwc>(shape.size()));
  return form;
}
inline Form nhwc(const Form& x) { return nhwc(x.shape, x.dtype); }

}  // namespace lamina::cuda
