// What the reference kernels share: checks of their operands, conversions between types of
// elements, and matrix products that allocate nothing.
#pragma once

#include <lamina/kernels/backend.hpp>

// One thread and one order of summation: this back end is what others are compared with.
#ifndef EIGEN_DONT_PARALLELIZE
#define EIGEN_DONT_PARALLELIZE
#endif
#include <Eigen/Core>
#include <algorithm>
#include <cstdint>
#include <string_view>

namespace lamina::detail {

using Index = std::int64_t;

inline void check_form(const Form& x, const char* who) {
  check(x.layout.plain(), who, ": the reference back end wants plain layouts, got ", x);
  check_elements(x, who);
}

/// Of a gradient of `form`, which may be in another type than that: Precision::gradients.
inline void check_gradient(const View& gradient, Form form, const char* who) {
  if (is_floating(gradient.dtype)) form.dtype = gradient.dtype;
  check_operand(gradient, form, who);
}

/// Each element rounded once. Both are plain, of one shape.
inline void convert(const View& from, const View& to) {
  visit(from.dtype, [&]<Floating From>(From) {
    visit(to.dtype, [&]<Floating To>(To) {
      const From* const in = from.as<From>();
      To* const out = to.as<To>();
      for (Index i = 0; i < from.shape.size(); ++i) out[i] = To(in[i]);
    });
  });
}

/// The plain f64 vector {1, c, 1, 1} of sums and statistics.
inline Form f64_vector(Index c) { return {{1, c, 1, 1}, DType::f64, {}}; }

template <class T>
using RowMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <class T>
auto matrix(T* data, Index rows, Index columns) {
  using Base = RowMajor<std::remove_const_t<T>>;
  return Eigen::Map<std::conditional_t<std::is_const_v<T>, const Base, Base>>(data, rows, columns);
}

/// c += a * b, in tiles whose packed copies (at most 128 x 128 x 8 bytes) Eigen keeps on the stack;
/// for larger products it would allocate.
template <class A, class B, class C>
void add_product(const A& a, const B& b, C&& c) {
  static_assert(128 * 128 * sizeof(double) <= EIGEN_STACK_ALLOCATION_LIMIT);
  const auto tiles = [](Index extent, auto&& f) {
    for (Index i = 0; i < extent; i += 128) f(i, std::min<Index>(128, extent - i));
  };
  tiles(c.rows(), [&](Index i, Index rows) {
    tiles(c.cols(), [&](Index j, Index columns) {
      tiles(a.cols(), [&](Index l, Index depth) {
        c.block(i, j, rows, columns).noalias() +=
            a.block(i, l, rows, depth) * b.block(l, j, depth, columns);
      });
    });
  });
}

}  // namespace lamina::detail
