// Layout: how the elements of a shape lie in memory. Opaque: it belongs to the back end that made
// it.
#pragma once

#include <lamina/tensor/dtype.hpp>
#include <lamina/tensor/shape.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace lamina {

/// What a back end derives its own layouts from (oneDNN's blocked formats, for example).
class LayoutKind {
 public:
  virtual ~LayoutKind() = default;
  virtual std::string name() const = 0;
  /// For how many the buffer has room, padding included, whatever their type: gradients and states
  /// lie as what they belong to, in types of their own.
  virtual std::int64_t elements() const = 0;
  virtual bool equals(const LayoutKind&) const = 0;
  /// A number that layouts have in common, also in different processes, just where they lie alike;
  /// 0 where the back end cannot tell: such a layout is like none.
  virtual std::uint64_t fingerprint() const = 0;
  /// How the axes n, c, h, w of such a shape follow each other in memory, the last one the fastest,
  /// where that is all that there is to it: {0, 2, 3, 1} for n-h-w-c; else nothing.
  virtual std::optional<AxisOrder> order(const Shape&) const { return {}; }
};

/// Plain, contiguous n-c-h-w unless made from a LayoutKind.
class Layout {
 public:
  Layout() = default;
  explicit Layout(std::shared_ptr<const LayoutKind> kind) : kind_(std::move(kind)) {}

  bool plain() const { return !kind_; }
  const LayoutKind* kind() const { return kind_.get(); }
  std::string name() const { return kind_ ? kind_->name() : "nchw"; }
  std::uint64_t fingerprint() const { return kind_ ? kind_->fingerprint() : 1; }

  friend bool operator==(const Layout& a, const Layout& b) {
    if (a.kind_ == b.kind_) return true;
    return a.kind_ && b.kind_ && a.kind_->equals(*b.kind_);
  }

 private:
  std::shared_ptr<const LayoutKind> kind_;
};

/// All that a kernel must know of an operand before it has a buffer.
struct Form {
  Shape shape;
  DType dtype = DType::f32;
  Layout layout;

  std::size_t bytes() const {
    const std::int64_t elements = layout.plain() ? shape.size() : layout.kind()->elements();
    return std::size_t(elements) * size_of(dtype);
  }
  bool operator==(const Form&) const = default;
  /// See LayoutKind::order.
  std::optional<AxisOrder> order() const {
    return layout.plain() ? AxisOrder{0, 1, 2, 3} : layout.kind()->order(shape);
  }
  /// Of shape, dtype and layout together; 0 where that of the layout is.
  std::uint64_t fingerprint() const {
    std::uint64_t h = layout.fingerprint();
    if (h == 0) return 0;
    for (const std::int64_t v : {shape.n, shape.c, shape.h, shape.w, std::int64_t(dtype)})
      h = (h ^ std::uint64_t(v)) * 0x100000001B3;  // FNV-1a, a word at a time
    return h;
  }
  std::string text() const { return lamina::text(shape, ' ', name(dtype), ' ', layout.name()); }
};

}  // namespace lamina
