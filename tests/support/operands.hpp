// Operands of kernels under test: random values, moved into whatever form a kernel wants and back.
#pragma once

#include "catch.hpp"
#include "support/allocations.hpp"
#include "support/peek.hpp"

#include <lamina/base/random.hpp>
#include <lamina/kernels/backends.hpp>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

namespace lamina::test {

/// The elements of a tensor in n-c-h-w order.
using Values = std::vector<double>;

/// Normal random numbers that f32 represents exactly.
inline Values random_values(std::int64_t size, std::uint64_t seed) {
  const Random random(seed);
  Values values(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = random.normal(i);
  return values;
}

/// Whole numbers, of one digit mostly; narrow types hold those of a few, and their sums are exact.
inline Values digits(std::int64_t size, std::uint64_t seed, double most = 3) {
  Values values = random_values(size, seed);
  for (double& v : values) v = std::round(most * v);
  return values;
}

/// A tensor of NaN, padding included: what a kernel does not write stays to be seen.
inline Tensor dirty(const Form& form, MemorySpace& memory = host_memory()) {
  Tensor t(form, memory);
  const std::string nan(t.bytes(), '\xFF');
  memory.copy(nan.data(), t.view().data, t.bytes());
  return t;
}

inline Tensor place(const Backend& backend, const Form& form, const Values& values) {
  check(std::int64_t(values.size()) == form.shape.size(), "place: ", values.size(),
        " values do not fill ", form);
  Tensor plain(form.shape, form.dtype);
  visit(form.dtype, [&]<class T>(T) {
    for (std::size_t i = 0; i < values.size(); ++i) plain.as<T>()[i] = T(values[i]);
  });
  if (form.layout.plain()) return plain;
  Tensor tensor(form);
  backend.copy(plain, tensor);
  return tensor;
}

/// Throws if the padding of a layout holds anything but finite numbers.
inline Values read(const Backend& backend, const View& view) {
  Tensor plain(view.shape, view.dtype);
  backend.copy(view, plain);
  const Values values = numbers(plain);
  bool finite = true;
  for (const double v : values) finite = finite && std::isfinite(v);
  visit(view.dtype, [&]<Floating T>(T) {
    for (const T v : view.elements<T>())
      check(!finite || std::isfinite(double(v)), "the padding of ", view.form(),
            " was not written");
  });
  return values;
}

/// Each as the nearest number of that type.
inline Values rounded(Values values, DType t) {
  visit(t, [&]<Floating T>(T) {
    for (double& v : values) v = double(T(v));
  });
  return values;
}

/// As kernels read them.
inline Tensor passed(const StepValues& values) {
  Tensor tensor(Passed<StepValues>::form());
  std::memcpy(tensor.as<double>(), &values, sizeof values);
  return tensor;
}

/// How a case is to be run: by which back end, in which type and layout.
struct Setup {
  const Backend& backend;
  DType dtype = DType::f64;
  bool native = false;  ///< operands in the layout that the back end's convolutions write
  bool watch = false;   ///< run all twice, and note what the second run allocates
  std::size_t allocations = 0, largest_allocation = 0;
  std::string algorithm = {};  ///< of the convolution that ran last
  Stream stream = {};
  DType stored = DType::f64;  ///< y is rounded to it before backward reads it

  Form form(Shape shape) const {
    const Form plain{shape, dtype, {}};
    if (!native) return plain;
    ConvGeometry g;
    g.channels = shape.c;
    return backend.conv(g, plain)->output;
  }

  Tensor place(const Form& form, const Values& values) const {
    return test::place(backend, form, values);
  }
  Values read(const View& view) const { return test::read(backend, view); }

  template <class Work>
  void run(Work&& work) {
    work();
    if (!watch) return;
    const Allocations since;
    work();
    allocations += since.count();
    largest_allocation = std::max(largest_allocation, since.largest());
  }
};

/// The largest difference, in units of the wanted value, the root mean square of all finite wanted
/// values, or `least`, whichever is greatest; infinite for NaN or another size. Equal infinities do
/// not differ.
inline double difference(const Values& got, const Values& want, double least = 0) {
  if (got.size() != want.size()) return INFINITY;
  double squares = 0, worst = 0;
  for (const double v : want) squares += std::isinf(v) ? 0 : v * v;
  const double rms = std::sqrt(squares / double(std::max<std::size_t>(want.size(), 1)));
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (got[i] == want[i]) continue;
    const double relative = std::abs(got[i] - want[i]) / std::max({std::abs(want[i]), rms, least});
    if (!(relative <= worst)) worst = std::isnan(relative) ? INFINITY : relative;
  }
  return worst;
}

/// The reference first.
inline std::vector<std::shared_ptr<const Backend>> all_backends() {
  std::vector<std::shared_ptr<const Backend>> all{reference_backend()};
  if (has_onednn()) all.push_back(onednn_backend());
  return all;
}

/// Calls f(setup) for each back end, dtype and layout that there is.
template <class F>
void on_all(F&& f, std::vector<DType> dtypes = {DType::f32, DType::f64}) {
  for (const auto& backend : all_backends())
    for (const DType dtype : dtypes)
      for (const bool native : {false, true}) {
        if (!backend->supports(dtype)) continue;
        INFO(backend->name() << ' ' << name(dtype) << (native ? " native" : " plain"));
        Setup setup{*backend, dtype, native};
        f(setup);
      }
}

}  // namespace lamina::test
