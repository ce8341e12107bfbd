// What back ends ask of the operands and geometries of their kernels, alike.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/kernels/backend.hpp>

namespace lamina {

namespace detail {

LAMINA_INLINE void check_window(const char* who, Pair window, Pair stride, Pad pad, Pair dilation) {
  check(window.h > 0 && window.w > 0, who, ": expected a window of at least 1x1, got ", window.h,
        'x', window.w);
  check(stride.h > 0 && stride.w > 0 && dilation.h > 0 && dilation.w > 0, who,
        ": expected strides and dilations of at least 1");
  check(pad.top >= 0 && pad.left >= 0 && pad.bottom >= 0 && pad.right >= 0, who,
        ": expected no negative padding");
}

LAMINA_INLINE void check_output(const char* who, Shape x, Shape y) {
  check(y.h > 0 && y.w > 0, who, ": the window does not fit into an input of ", x.h, 'x', x.w,
        " with its padding");
}

}  // namespace detail

LAMINA_INLINE void check_elements(const Form& x, const char* who) {
  check(is_floating(x.dtype), who, ": expected floating point numbers, got ", x);
  check(x.shape.n > 0 && x.shape.c > 0 && x.shape.h > 0 && x.shape.w > 0, who,
        ": expected a shape with at least one element, got ", x);
}

LAMINA_INLINE void ConvGeometry::check(Shape x) const {
  lamina::check(channels > 0 && groups > 0 && channels % groups == 0 && x.c % groups == 0,
                "conv: ", groups, " groups do not divide ", x.c, " input and ", channels,
                " output channels");
  detail::check_window("conv", kernel, stride, pad, dilation);
  detail::check_output("conv", x, output(x));
}

LAMINA_INLINE void PoolGeometry::check(Shape x) const {
  detail::check_window("pool", window, stride, pad, 1);
  lamina::check(
      pad.top < window.h && pad.bottom < window.h && pad.left < window.w && pad.right < window.w,
      "pool: expected less padding than the window of ", window.h, 'x', window.w);
  detail::check_output("pool", x, output(x));
}

LAMINA_INLINE void LrnGeometry::check() const {
  lamina::check(size > 0 && size % 2 == 1, "lrn: expected an odd size, got ", size);
}

}  // namespace lamina
