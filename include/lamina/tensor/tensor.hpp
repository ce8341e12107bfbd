// Tensor owns a buffer; View looks into one.
#pragma once

#include <lamina/tensor/layout.hpp>

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>

namespace lamina {

/// A buffer that belongs to somebody else, and its form. `data` is null for an absent operand.
struct View : Form {
  void* data = nullptr;

  View() = default;
  View(void* data_, Form form) : Form(std::move(form)), data(data_) {}

  explicit operator bool() const { return data != nullptr; }
  const Form& form() const { return *this; }

  /// The elements. Only plain views can be indexed by n, c, h, w; T must be the dtype's type.
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  template <class T>
  std::span<T> elements() const {
    return {as<T>(), bytes() / sizeof(T)};
  }
};

/// Owns zeroed, 64-byte aligned memory. Move-only.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(Form form) : view_(nullptr, std::move(form)) {
    const std::size_t bytes = view_.bytes(), large = std::size_t(4) << 20;
    const std::size_t align = bytes >= large ? std::size_t(2) << 20 : 64;
    const std::size_t padded = (bytes + align - 1) / align * align;
    if (bytes == 0) return;
    buffer_.reset(std::aligned_alloc(align, padded), std::free);
    check(buffer_ != nullptr, "not enough memory for a tensor of ", shape(), ", which needs ",
          bytes >> 20, " MiB");
    // Large pages save the address translations that strided kernels would otherwise wait for.
    if (bytes >= large) madvise(buffer_.get(), padded, MADV_HUGEPAGE);
    std::memset(buffer_.get(), 0, padded);
    view_.data = buffer_.get();
  }
  Tensor(Shape shape, DType dtype) : Tensor(Form{shape, dtype, {}}) {}
  /// In memory that somebody else made, as zeroed and aligned; freed with its last owner.
  Tensor(Form form, std::shared_ptr<void> memory)
      : buffer_(std::move(memory)), view_(buffer_.get(), std::move(form)) {}

  const View& view() const { return view_; }
  /// Keeps the memory when the tensor has gone.
  std::shared_ptr<const void> memory() const { return buffer_; }
  operator const View&() const { return view_; }
  const Shape& shape() const { return view_.shape; }
  std::size_t bytes() const { return view_ ? view_.bytes() : 0; }
  template <class T>
  T* as() const {
    return view_.as<T>();
  }
  template <class T>
  std::span<T> elements() const {
    return view_.elements<T>();
  }

 private:
  std::shared_ptr<void> buffer_;
  View view_;
};

}  // namespace lamina
