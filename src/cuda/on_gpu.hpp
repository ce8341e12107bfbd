// What the kernels of a GPU have in common.
#pragma once

#include "cuda/memory.hpp"
#include "cuda/nhwc.hpp"

#include <lamina/kernels/backend.hpp>

#include <memory>
#include <utility>

namespace lamina::cuda {

inline Form vector_of(std::int64_t size, DType dtype = DType::f64) {
  return {{1, size, 1, 1}, dtype, {}};
}

/// A kernel of ours whose work is put into streams of a GPU.
template <class Base>
class OnGpu : public Base {
 protected:
  explicit OnGpu(std::shared_ptr<Memory> memory) : memory_(std::move(memory)) {}

  Memory& memory() const { return *memory_; }
  /// Where an operand lies that must be there, in this form.
  template <class T = void>
  T* at(const View& v, const Form& form, const char* who) const {
    check_operand(v, form, who);
    return memory_->at<T>(v);
  }
  /// Where one lies that may be absent.
  template <class T = void>
  T* any(const View& v, const Form& form, const char* who) const {
    return v ? at<T>(v, form, who) : nullptr;
  }
  /// Has so many bytes for itself from now on, at room().
  void take_workspace(std::size_t bytes) {
    this->workspace = bytes;
    if (bytes > 0) workspace_ = Tensor(vector_of(std::int64_t(bytes + 7) / 8), *memory_);
  }
  void* room() const { return workspace_.view().data; }
  /// Recorded as `what`: work(stream) puts it in.
  template <class Work>
  void put(Stream& stream, Pass pass, const char* what, const Work& work) const {
    memory_->put(stream, pass, what, [&](Queue& q) { return work(q.stream()); });
  }

 private:
  std::shared_ptr<Memory> memory_;
  Tensor workspace_;
};

}  // namespace lamina::cuda
