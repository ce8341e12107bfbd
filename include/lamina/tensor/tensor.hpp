// Tensor owns a buffer; View looks into one.
#pragma once

#include <lamina/tensor/layout.hpp>
#include <lamina/tensor/memory_space.hpp>

#include <memory>
#include <span>

namespace lamina {

/// A buffer that belongs to somebody else, and its form. `data` is null for an absent operand.
struct View : Form {
  void* data = nullptr;
  MemorySpace* space = nullptr;  ///< whose memory that is; null = the host's

  View() = default;
  View(void* data_, Form form, MemorySpace* space_ = nullptr)
      : Form(std::move(form)), data(data_), space(space_) {}

  explicit operator bool() const { return data != nullptr; }
  const Form& form() const { return *this; }

  /// The elements, on the host: throws Error for those of a device. Only plain views can be indexed
  /// by n, c, h, w; T must be the dtype's type.
  template <class T>
  T* as() const {
    if (space && data) [[unlikely]]
      refuse();
    return static_cast<T*>(data);
  }
  template <class T>
  std::span<T> elements() const {
    return {as<T>(), bytes() / sizeof(T)};
  }
  /// What lies `offset` bytes from its beginning, wherever that is. Absent where this is.
  View at(std::size_t offset, Form form) const {
    return {data ? static_cast<char*>(data) + offset : nullptr, std::move(form), space};
  }

 private:
  [[noreturn]] void refuse() const {
    throw Error(lamina::text("a tensor of ", shape, " lies in the memory of ", space->name(),
                             ", where the host cannot reach it: expected a copy of it"));
  }
};

/// What the host has anyway, to be copied from.
template <class T>
View on_host(const T* data, Shape shape) {
  return {const_cast<T*>(data), {shape, dtype_of<T>, {}}};
}

/// Whose memory a view looks into.
inline MemorySpace& space_of(const View& v) { return v.space ? *v.space : host_memory(); }

/// From the host, in the order of a stream: what lies at `from` may change as soon as this returns.
inline void put_bytes(Stream& stream, const void* from, const View& to) {
  space_of(to).put(stream, from, to.data, to.bytes());
}
/// To the host, where the bytes are when the stream has come so far.
inline void get_bytes(Stream& stream, const View& from, void* to) {
  space_of(from).get(stream, from.data, to, from.bytes());
}

/// The bytes of `from`, wherever the two lie, when all that this thread has asked a device for is
/// done. Throws Error unless their forms agree.
inline void copy_bytes(const View& from, const View& to) {
  check(from.form() == to.form(), "copy_bytes: expected two buffers of one form, got ", from.form(),
        " and ", to.form());
  MemorySpace& space = space_of(from.space ? from : to);
  space.settle();
  space.copy(from.data, to.data, to.bytes());
}

/// Owns zeroed, 64-byte aligned memory. Move-only.
class Tensor {
 public:
  Tensor() = default;
  /// In that memory of `space`, or, where there is none, in what it allocates. Throws Error where
  /// there is not enough.
  explicit Tensor(Form form, MemorySpace& space = host_memory(),
                  std::shared_ptr<void> memory = nullptr)
      : buffer_(std::move(memory)),
        view_(nullptr, std::move(form), space.on_host() ? nullptr : &space) {
    if (!buffer_) buffer_ = space.allocate(view_.bytes());
    if (!buffer_ && view_.bytes() > 0) throw Error(lacks(space));
    view_.data = buffer_.get();
  }
  explicit Tensor(Shape shape, DType dtype, MemorySpace& space = host_memory())
      : Tensor(Form{shape, dtype, {}}, space) {}

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
  std::string lacks(const MemorySpace& space) const {
    const bool host = space.on_host();
    return lamina::text(
        "not enough memory", host ? "" : " of " + space.name(), " for a tensor of ", shape(),
        ", which needs ", in_bytes(double(view_.bytes())),
        host ? "" : lamina::text(", and ", in_bytes(double(space.free_bytes())), " are free"));
  }

  std::shared_ptr<void> buffer_;
  View view_;
};

}  // namespace lamina
