// cuDNN's back end API in a thin wrapper: descriptors that have attributes, and the library behind
// them, which is opened when the first of them is made.
#pragma once

#include <lamina/base/error.hpp>
#include <lamina/tensor/dtype.hpp>

#include <cudnn.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace lamina::cuda {

/// The functions of cuDNN 9 that are called here.
struct Cudnn {
  decltype(&cudnnGetVersion) version;
  decltype(&cudnnGetErrorString) name_of;
  decltype(&cudnnGetLastErrorString) last_error;
  decltype(&cudnnCreate) create;
  decltype(&cudnnDestroy) destroy;
  decltype(&cudnnSetStream) set_stream;
  decltype(&cudnnBackendCreateDescriptor) create_descriptor;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor;
  decltype(&cudnnBackendSetAttribute) set_attribute;
  decltype(&cudnnBackendGetAttribute) get_attribute;
  decltype(&cudnnBackendFinalize) finalize;
  decltype(&cudnnBackendExecute) execute;
};

/// Throws Error where the library is not there, or not of that version.
Cudnn open_cudnn();
/// Opened at the first call.
const Cudnn& cudnn();

/// Throws Error, with what cuDNN says, unless the call that was for `what` succeeded.
void ok(cudnnStatus_t status, const char* what);

/// "cuDNN 9.19.0"
std::string cudnn_name();

cudnnDataType_t data_type(DType t);

/// The types of attributes, by those of their values.
constexpr cudnnBackendAttributeType_t type_of(std::int64_t) { return CUDNN_TYPE_INT64; }
constexpr cudnnBackendAttributeType_t type_of(float) { return CUDNN_TYPE_FLOAT; }
constexpr cudnnBackendAttributeType_t type_of(double) { return CUDNN_TYPE_DOUBLE; }
constexpr cudnnBackendAttributeType_t type_of(bool) { return CUDNN_TYPE_BOOLEAN; }
constexpr cudnnBackendAttributeType_t type_of(char) { return CUDNN_TYPE_CHAR; }
constexpr cudnnBackendAttributeType_t type_of(int) { return CUDNN_TYPE_INT32; }
constexpr cudnnBackendAttributeType_t type_of(void*) { return CUDNN_TYPE_VOID_PTR; }
constexpr cudnnBackendAttributeType_t type_of(cudnnDataType_t) { return CUDNN_TYPE_DATA_TYPE; }
constexpr cudnnBackendAttributeType_t type_of(cudnnConvolutionMode_t) {
  return CUDNN_TYPE_CONVOLUTION_MODE;
}
constexpr cudnnBackendAttributeType_t type_of(cudnnPointwiseMode_t) {
  return CUDNN_TYPE_POINTWISE_MODE;
}
constexpr cudnnBackendAttributeType_t type_of(cudnnNanPropagation_t) {
  return CUDNN_TYPE_NAN_PROPOGATION;
}
constexpr cudnnBackendAttributeType_t type_of(cudnnBackendHeurMode_t) {
  return CUDNN_TYPE_HEUR_MODE;
}
constexpr cudnnBackendAttributeType_t type_of(cudnnBackendNumericalNote_t) {
  return CUDNN_TYPE_NUMERICAL_NOTE;
}
constexpr cudnnBackendAttributeType_t type_of(cudnnBackendBehaviorNote_t) {
  return CUDNN_TYPE_BEHAVIOR_NOTE;
}

/// Attributes are set, then it is finalized; only then it can be an attribute of others.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(cudnnBackendDescriptorType_t kind) {
    ok(cudnn().create_descriptor(kind, &handle_), "make a descriptor");
  }
  ~Descriptor() {
    if (handle_) cudnn().destroy_descriptor(handle_);
  }
  Descriptor(Descriptor&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }

  cudnnBackendDescriptor_t get() const { return handle_; }

  template <class T>
  Descriptor& set(cudnnBackendAttributeName_t name, std::span<const T> values) {
    return set(name, type_of(T()), values.size(), values.data());
  }
  template <class T>
  Descriptor& set(cudnnBackendAttributeName_t name, T value) {
    return set(name, type_of(value), 1, &value);
  }
  Descriptor& set(cudnnBackendAttributeName_t name, const Descriptor& value) {
    return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value.handle_);
  }
  Descriptor& set(cudnnBackendAttributeName_t name, std::span<const Descriptor> values) {
    static_assert(sizeof(Descriptor) == sizeof(cudnnBackendDescriptor_t));
    return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, values.size(), values.data());
  }
  Descriptor& finalize(const char* what) {
    ok(cudnn().finalize(handle_), what);
    return *this;
  }

  /// So many of the values as there are and fit; how many.
  template <class T>
  std::size_t get(cudnnBackendAttributeName_t name, std::span<T> values) const {
    return get(name, type_of(T()), values.size(), values.data());
  }
  /// The same; fills descriptors that have been made.
  std::size_t get(cudnnBackendAttributeName_t name, std::span<Descriptor> values) const {
    return get(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, values.size(), values.data());
  }
  template <class T>
  T get(cudnnBackendAttributeName_t name) const {
    T value{};
    get(name, std::span<T>(&value, 1));
    return value;
  }

 private:
  Descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                  std::size_t count, const void* values) {
    ok(cudnn().set_attribute(handle_, name, type, std::int64_t(count), values), "set an attribute");
    return *this;
  }
  std::size_t get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                  std::size_t room, void* values) const {
    std::int64_t count = 0;
    ok(cudnn().get_attribute(handle_, name, type, std::int64_t(room), &count, values),
       "get an attribute");
    return std::min(std::size_t(count), room);
  }

 private:
  cudnnBackendDescriptor_t handle_ = nullptr;
};

}  // namespace lamina::cuda
