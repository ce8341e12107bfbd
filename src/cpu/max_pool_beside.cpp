// Maximum pooling of bf16 that lies n-h-w-c, as where tiles (AMX) multiply it. oneDNN's takes
// several times as long as memory does, and adds up the gradients of windows that overlap in bf16.
// All channels of a pixel are taken at a time.
#include "cpu/blocked.hpp"

#include <algorithm>

namespace lamina::detail {
namespace {

/// So many channels have their maxima, or sums, in the first cache.
constexpr std::int64_t most = 1024;

/// Along an axis: where a window begins, which may be before the image, and which of its elements
/// lie within; or which windows have an element.
struct Range {
  std::int64_t origin, begin, end;
};
Range within(std::int64_t position, std::int64_t window, std::int64_t stride, std::int64_t pad,
             std::int64_t extent) {
  const std::int64_t origin = position * stride - pad;
  return {origin, std::max<std::int64_t>(0, -origin), std::min(window, extent - origin)};
}
Range around(std::int64_t element, std::int64_t window, std::int64_t stride, std::int64_t pad,
             std::int64_t windows) {
  const std::int64_t last = element + pad, first = last - window + 1;
  return {last, first <= 0 ? 0 : (first + stride - 1) / stride,
          std::min(windows, last / stride + 1)};
}

/// A whole number that orders values of bf16: zeros are equal, and NaN is more than all else. What
/// comes back is 0 for either zero, and a NaN for any.
constexpr std::int16_t least_key = -0x8000, key_of_nan = 0x7FFF;
inline std::int16_t key_of(BF16 v) {
  const auto size = std::int16_t(v.bits & 0x7FFF);
  const std::int16_t key = std::int16_t(v.bits) < 0 ? std::int16_t(-size) : size;
  return size > 0x7F80 ? key_of_nan : key;
}
inline BF16 of_key(std::int16_t key) {
  BF16 v;
  v.bits = key < 0 ? std::uint16_t(0x8000 - key) : std::uint16_t(key);
  return v;
}

/// Takes what is larger, and notes that it lies at `place`.
LAMINA_SIMD void take_larger(const BF16* x, std::uint8_t place, std::int64_t channels,
                             std::int16_t* keys, std::uint8_t* places) {
#pragma omp simd
  for (std::int64_t c = 0; c < channels; ++c) {
    const std::int16_t key = key_of(x[c]);
    places[c] = key > keys[c] ? place : places[c];
    keys[c] = key > keys[c] ? key : keys[c];
  }
}
LAMINA_SIMD void put_keys(const std::int16_t* keys, std::int64_t channels, BF16* y) {
#pragma omp simd
  for (std::int64_t c = 0; c < channels; ++c) y[c] = of_key(keys[c]);
}

/// What goes to the maximum at `place`; the last ones are rounded.
LAMINA_SIMD void pass(const BF16* dy, const std::uint8_t* places, std::uint8_t place,
                      std::int64_t channels, BF16* dx) {
#pragma omp simd
  for (std::int64_t c = 0; c < channels; ++c)
    dx[c].bits = places[c] == place ? dy[c].bits : std::uint16_t(0);
}
LAMINA_SIMD void add_passed(const BF16* dy, const std::uint8_t* places, std::uint8_t place,
                            std::int64_t channels, float* sums) {
#pragma omp simd
  for (std::int64_t c = 0; c < channels; ++c) sums[c] += places[c] == place ? widened(dy[c]) : 0.0f;
}
LAMINA_SIMD void round_sums(const float* sums, std::int64_t channels, BF16* dx) {
#pragma omp simd
  for (std::int64_t c = 0; c < channels; ++c) put(sums[c], dx[c]);
}

class MaxPoolBeside final : public UnaryKernel {
 public:
  MaxPoolBeside(const PoolGeometry& g, const Form& x, const Form& y)
      : g_(g),
        x_(x.shape),
        y_(y.shape),
        kept_(Form{{(y_.size() + 3) / 4, 1, 1, 1}, DType::f32, {}}) {
    inputs = {x};
    output = y;
    algorithm = "lamina:simd";
    reads_x = false;
    workspace = kept_.bytes();
  }

  void forward(Stream& stream, const View& x, const View& y) override {
    check_operand(x, inputs[0], what), check_operand(y, output, what);
    stream.run(Pass::forward, what, [&] {
      each_row(y_, [&](std::int64_t n, std::int64_t p) {
        max_row(x.as<const BF16>() + n * x_.sample(), p, y.as<BF16>() + at(y_, n, p),
                kept_.as<std::uint8_t>() + at(y_, n, p));
      });
    });
  }
  void input_grad(Stream& stream, const View&, const View&, const View& dy,
                  const View& dx) override {
    check_operand(dy, output, what), check_operand(dx, inputs[0], what);
    stream.run(Pass::input_grad, what, [&] {
      each_row(x_, [&](std::int64_t n, std::int64_t r) {
        gather_row(dy.as<const BF16>() + n * y_.sample(),
                   kept_.as<const std::uint8_t>() + n * y_.sample(), r,
                   dx.as<BF16>() + at(x_, n, r));
      });
    });
  }

 private:
  static constexpr const char* what = "max_pool";

  static std::int64_t at(const Shape& s, std::int64_t n, std::int64_t row) {
    return (n * s.h + row) * s.w * s.c;
  }
  template <class F>
  void each_row(const Shape& of, const F& f) const {
#pragma omp parallel for schedule(static) if (x_.size() > std::int64_t(parallel_elements))
    for (std::int64_t i = 0; i < of.n * of.h; ++i) f(i / of.h, i % of.h);
  }
  /// Calls f(first, count) for some channels at a time.
  template <class F>
  void each_band(const F& f) const {
    for (std::int64_t c = 0; c < x_.c; c += most) f(c, std::min(most, x_.c - c));
  }

  void max_row(const BF16* x, std::int64_t p, BF16* y, std::uint8_t* kept) const {
    const Range rows = within(p, g_.window.h, g_.stride.h, g_.pad.top, x_.h);
    for (std::int64_t q = 0; q < y_.w; ++q, y += y_.c, kept += y_.c) {
      const Range columns = within(q, g_.window.w, g_.stride.w, g_.pad.left, x_.w);
      each_band([&](std::int64_t first, std::int64_t count) {
        std::int16_t keys[most];
        std::fill_n(keys, count, least_key);
        for (std::int64_t r = rows.begin; r < rows.end; ++r)
          for (std::int64_t s = columns.begin; s < columns.end; ++s) {
            const std::int64_t pixel = (rows.origin + r) * x_.w + columns.origin + s;
            take_larger(x + pixel * x_.c + first, std::uint8_t(r * g_.window.w + s), count, keys,
                        kept + first);
          }
        put_keys(keys, count, y + first);
      });
    }
  }

  void gather_row(const BF16* dy, const std::uint8_t* kept, std::int64_t r, BF16* dx) const {
    const Range rows = around(r, g_.window.h, g_.stride.h, g_.pad.top, y_.h);
    for (std::int64_t s = 0; s < x_.w; ++s, dx += x_.c) {
      const Range columns = around(s, g_.window.w, g_.stride.w, g_.pad.left, y_.w);
      const auto place = [&](std::int64_t p, std::int64_t q) {
        return std::uint8_t((rows.origin - p * g_.stride.h) * g_.window.w + columns.origin -
                            q * g_.stride.w);
      };
      const std::int64_t windows =
          std::max<std::int64_t>(0, rows.end - rows.begin) * (columns.end - columns.begin);
      if (windows <= 0) {
        std::fill_n(dx, x_.c, BF16());
      } else if (windows == 1) {
        const std::int64_t from = (rows.begin * y_.w + columns.begin) * y_.c;
        pass(dy + from, kept + from, place(rows.begin, columns.begin), x_.c, dx);
      } else {
        each_band([&](std::int64_t first, std::int64_t count) {
          float sums[most];
          std::fill_n(sums, count, 0.0f);
          for (std::int64_t p = rows.begin; p < rows.end; ++p)
            for (std::int64_t q = columns.begin; q < columns.end; ++q) {
              const std::int64_t from = (p * y_.w + q) * y_.c + first;
              add_passed(dy + from, kept + from, place(p, q), count, sums);
            }
          round_sums(sums, count, dx + first);
        });
      }
    }
  }

  PoolGeometry g_;
  Shape x_, y_;
  Tensor kept_;  // bytes: the place of each maximum within its window, the first of equal ones
};

}  // namespace

std::unique_ptr<UnaryKernel> max_pool_beside(const PoolGeometry& g, const Form& x, const Form& y) {
  return std::make_unique<MaxPoolBeside>(g, x, y);
}

}  // namespace lamina::detail
