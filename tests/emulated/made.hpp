// Operands of kernels, where these run: emulated, or on a GPU.
#pragma once

#include "catch.hpp"
#include "kernels/launch.hpp"
#include "support/operands.hpp"

#include <memory>

namespace lamina::test {

/// Random ones around `centre`, as elements of T have them.
template <class T>
Values random_of(std::size_t count, std::uint64_t seed, double centre = 0) {
  Values values = random_values(std::int64_t(count), seed);
  for (double& v : values) v += centre;
  return rounded(values, dtype_of<T>);
}

template <class T>
std::vector<T> as(const Values& from) {
  std::vector<T> to;
  for (const double v : from) to.push_back(T(v));
  return to;
}
template <class T>
Values wide(const std::vector<T>& from) {
  return {from.begin(), from.end()};
}

inline void ok(cudaError_t status) { REQUIRE(status == cudaSuccess); }

#ifdef LAMINA_EMULATED
inline std::shared_ptr<void> room_for_kernels(std::size_t bytes) {
  return {::operator new(bytes), [](void* p) { ::operator delete(p); }};
}
inline void carry(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}
#else
inline std::shared_ptr<void> room_for_kernels(std::size_t bytes) {
  void* memory = nullptr;
  ok(cudaMalloc(&memory, std::max<std::size_t>(bytes, 1)));
  return {memory, [](void* p) { cudaFree(p); }};
}
/// Behind all kernels that were started.
inline void carry(void* to, const void* from, std::size_t bytes) {
  ok(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
}
#endif

/// Elements in the memory of kernels. A copy has memory of its own.
template <class T>
class There {
 public:
  explicit There(const std::vector<T>& from)
      : count_(from.size()), memory_(room_for_kernels(count_ * sizeof(T))) {
    carry(data(), from.data(), count_ * sizeof(T));
  }
  explicit There(std::size_t count, const T& each = T(0.0)) : There(std::vector<T>(count, each)) {}
  There(const There& other) : There(other.back()) {}
  There& operator=(const There&) = delete;

  T* data() const { return static_cast<T*>(memory_.get()); }
  std::size_t size() const { return count_; }
  std::vector<T> back() const {
    std::vector<T> to(count_);
    carry(to.data(), data(), count_ * sizeof(T));
    return to;
  }

 private:
  std::size_t count_;
  std::shared_ptr<void> memory_;
};

template <class T>
There<T> there(const Values& from) {
  return There<T>(as<T>(from));
}
template <class T>
Values wide(const There<T>& from) {
  return wide(from.back());
}

/// An operand that begins so many elements behind where a pack may.
template <class T>
struct Operand {
  Operand(Values values, std::size_t after)
      : first(after), elements(as<T>((values.insert(values.begin(), after, 0), values))) {}
  T* data() const { return elements.data() + first; }
  Values values() const {
    const Values all = wide(elements);
    return {all.begin() + std::ptrdiff_t(first), all.end()};
  }
  std::size_t first;
  There<T> elements;
};

/// difference(), but NaN does not differ from NaN.
inline double difference_or_nan(Values got, Values want) {
  for (std::size_t i = 0; i < std::min(got.size(), want.size()); ++i)
    if (std::isnan(got[i]) && std::isnan(want[i])) got[i] = want[i] = 0;
  return difference(got, want);
}

}  // namespace lamina::test
