// A kernel with weights, run by one back end or another.
#pragma once

#include "support/operands.hpp"

#include <lamina/kernels/backend.hpp>

namespace lamina::test {

/// What goes in, as numbers that elements of type `t` have.
struct Operands {
  Values x, w, b, added, dy;
};

inline Operands operands_of(const WeightedKernel& k, DType t) {
  return {rounded(random_values(k.inputs[0].shape.size(), 1), t),
          rounded(random_values(k.w.shape.size(), 2), t),
          rounded(random_values(k.b.shape.size(), 3), t),
          rounded(random_values(k.output.shape.size(), 4), t),
          rounded(random_values(k.output.shape.size(), 5), t)};
}

inline Tensor on(const Backend& backend, const Form& form, const Values& values) {
  Tensor plain(form.shape, form.dtype), there(form, backend.memory());
  visit(form.dtype, [&]<class T>(T) {
    for (std::size_t i = 0; i < values.size(); ++i) plain.as<T>()[i] = T(values[i]);
  });
  backend.copy(plain, there);
  return there;
}

inline Values numbers_of(const Backend& backend, const View& view) {
  const Tensor plain(view.shape, view.dtype);
  backend.copy(view, plain);
  return numbers(plain);
}

/// y, dx, dw and db, which are of type `gradients`; db is empty without a bias.
inline std::vector<Values> run(const Backend& backend, WeightedKernel& k, const Operands& in,
                               DType gradients) {
  const auto gradient = [&](Form form) {
    form.dtype = gradients;
    return dirty(form, backend.memory());
  };
  const bool bias = k.b.shape.c > 1, adds = k.inputs.size() > 1;
  const Tensor x = on(backend, k.inputs[0], in.x), w = on(backend, k.w, in.w);
  const Tensor b = bias ? on(backend, k.b, in.b) : Tensor();
  const Tensor added = adds ? on(backend, k.output, in.added) : Tensor();
  const Tensor dy = on(backend, k.output, in.dy), y = dirty(k.output, backend.memory());
  const Tensor dx = dirty(k.inputs[0], backend.memory()), dw = gradient(k.w);
  const Tensor db = bias ? gradient(k.b) : Tensor();
  Stream stream;
  k.forward(stream, x, w, b, y, added);
  k.input_grad(stream, w, dy, dx);
  k.weight_grad(stream, x, dy, dw, db);
  stream.wait();
  std::vector<Values> all = {numbers_of(backend, y), numbers_of(backend, dx),
                             numbers_of(backend, dw)};
  if (bias) all.push_back(numbers_of(backend, db));
  return all;
}

/// How far a result in type `t` may be from that in f64 where so many products are added up, in
/// whatever order, and what is added up is rounded twice, or thrice. One after the other, random
/// ones are off by sqrt(terms / 6) roundings of their sum; of millions some are 5 times as far off;
/// and where half of the results are zeros the others count twice. Winograd's way brings more, and
/// so does a `loose` one of cuDNN's for dw (engine 17 on an H200, up to 15), of which its notes say
/// nothing. (Sums of products of numbers rounded to TF32 are off by 3e-4 and more.)
inline double close_to(DType t, double terms, bool loose = false) {
  return std::max(4 * roundoff(t), 1e-14) + (loose ? 20 : 5) * std::sqrt(terms) * roundoff(wide(t));
}

/// Whether y, dx, dw or db, which is number i of them, may be loose.
inline bool is_loose(std::string_view algorithm, std::size_t i) {
  if (i >= 2) return i == 2;
  const Pass pass = i == 0 ? Pass::forward : Pass::input_grad;
  return algorithm_of(algorithm, pass).find("winograd") != std::string_view::npos;
}

inline const std::vector<ConvGeometry> geometries = {
    {.channels = 6, .kernel = 3, .pad = 1},
    {.channels = 4, .kernel = {3, 2}, .stride = {2, 1}, .pad = Pad(1, 0, 2, 1)},
    {.channels = 6, .kernel = 3, .pad = 2, .dilation = 2, .groups = 3, .bias = false},
    {.channels = 8, .kernel = 1, .bias = false},
};

/// Of few channels, as the first ones of networks have.
struct First {
  ConvGeometry geometry;
  Shape x;
};
inline const std::vector<First> firsts = {
    {{.channels = 8, .kernel = 7, .stride = 2, .pad = 3, .bias = false}, {2, 3, 14, 11}},
    {{.channels = 6, .kernel = 11, .stride = 4, .pad = 2}, {1, 3, 23, 27}},
    {{.channels = 8, .kernel = 3, .pad = 1}, {2, 3, 6, 7}},
    {{.channels = 5, .kernel = 5, .pad = 2}, {2, 1, 8, 8}},
    {{.channels = 8, .kernel = {3, 2}, .stride = {2, 3}, .pad = Pad(1, 0, 2, 1)}, {2, 3, 9, 10}},
    {{.channels = 4, .kernel = {2, 1}, .stride = 3}, {2, 1, 8, 7}},
};

}  // namespace lamina::test
