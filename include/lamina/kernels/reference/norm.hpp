// Reference batch normalisation, in the steps between which a layer may communicate.
#pragma once

#include <lamina/kernels/reference/epilogue.hpp>

#include <cmath>

namespace lamina::detail {

template <Floating T>
class ReferenceNorm final : public NormKernel {
 public:
  ReferenceNorm(const Form& x, const Epilogue& e) : x_(x.shape), epilogue_(e) {
    inputs = {x};
    if (e.add) inputs.push_back(x);
    output = x;
    if (e.activation) signs = bits(x_.size());
    algorithm = "loops";
  }

  void statistics(Stream& stream, const View& x, const View& sums) override {
    check_operand(x, inputs[0], "batch_norm x");
    check_operand(sums, f64_vector(2 * x_.c), "batch_norm sums");
    stream.run(Pass::forward, "batch_norm_statistics", [&] {
      each_channel([&](Index c, auto&& positions) {
        double sum = 0, squares = 0;
        positions([&](Index i) {
          const double v = x.as<T>()[i];
          sum += v;
          squares += v * v;
        });
        sums.as<double>()[c] = sum;
        sums.as<double>()[x_.c + c] = squares;
      });
    });
  }

  void finish(Stream& stream, const View& sums, double count, double epsilon, double momentum,
              const View& mean, const View& inv_std, const View& running_mean,
              const View& running_var) override {
    check_operand(sums, f64_vector(2 * x_.c), "batch_norm sums");
    check_operand(mean, f64_vector(x_.c), "batch_norm mean");
    check_operand(inv_std, f64_vector(x_.c), "batch_norm inv_std");
    check_operand(running_mean, parameter(), "batch_norm running_mean");
    check_operand(running_var, parameter(), "batch_norm running_var");
    stream.run(Pass::forward, "batch_norm_finish", [&] {
      for (Index c = 0; c < x_.c; ++c) {
        const double m = sums.as<double>()[c] / count;
        // Rounding may take the difference of a constant channel below zero.
        const double var = std::max(sums.as<double>()[x_.c + c] / count - m * m, 0.0);
        const double unbiased = var * count / std::max(count - 1, 1.0);
        mean.as<double>()[c] = m;
        inv_std.as<double>()[c] = 1 / std::sqrt(var + epsilon);
        P &rm = running_mean.as<P>()[c], &rv = running_var.as<P>()[c];
        rm = P(rm + momentum * (m - rm));
        rv = P(rv + momentum * (unbiased - rv));
      }
    });
  }

  void running(Stream& stream, const View& running_mean, const View& running_var,
               const View& sums) override {
    check_operand(running_mean, parameter(), "batch_norm running_mean");
    check_operand(running_var, parameter(), "batch_norm running_var");
    check_operand(sums, f64_vector(2 * x_.c), "batch_norm sums");
    stream.run(Pass::forward, "batch_norm_running", [&] {
      std::copy_n(running_mean.as<P>(), x_.c, sums.as<double>());
      std::copy_n(running_var.as<P>(), x_.c, sums.as<double>() + x_.c);
    });
  }

  void from_running(Stream& stream, const View& sums, int variants, double epsilon,
                    const View& mean, const View& inv_std) override {
    check_operand(sums, f64_vector(2 * x_.c), "batch_norm sums");
    check_statistics(mean, inv_std);
    stream.run(Pass::forward, "batch_norm_finish", [&] {
      for (Index c = 0; c < x_.c; ++c) {
        const double var = P(sums.as<double>()[x_.c + c] / variants);
        mean.as<double>()[c] = P(sums.as<double>()[c] / variants);
        inv_std.as<double>()[c] = 1 / std::sqrt(var + epsilon);
      }
    });
  }

  void normalize(Stream& stream, const View& x, const View& mean, const View& inv_std,
                 const View& w, const View& b, const View& y, const View& added,
                 const View& passed) override {
    check_operand(x, inputs[0], "batch_norm x"), check_operand(y, output, "batch_norm y");
    check_statistics(mean, inv_std);
    if (w) check_operand(w, parameter(), "batch_norm w");
    if (b) check_operand(b, parameter(), "batch_norm b");
    epilogue_.check_added(added, output, "batch_norm added");
    if (passed) check_operand(passed, signs, "batch_norm signs");
    stream.run(Pass::forward, "batch_norm", [&] {
      each_channel([&](Index c, auto&& positions) {
        const double scale = inv_std.as<double>()[c] * (w ? w.as<P>()[c] : P(1));
        const double shift = b ? b.as<P>()[c] : P(0), m = mean.as<double>()[c];
        positions([&](Index i) {
          y.as<T>()[i] = T(epilogue_.value(P((x.as<T>()[i] - m) * scale + shift), added, i));
          if (passed) keep(passed, i, !(y.as<T>()[i] <= 0));
        });
      });
    });
  }

  void gradients(Stream& stream, const View& x, const View& mean, const View& inv_std,
                 const View& dy, const View& sums, const View& dw, const View& db,
                 const View& passed, const View& dadded, const View& more) override {
    check(!more, "batch_norm: expected dy in one part");
    check_operand(x, inputs[0], "batch_norm x"), check_operand(dy, output, "batch_norm dy");
    check_statistics(mean, inv_std);
    check_operand(sums, f64_vector(2 * x_.c), "batch_norm sums");
    if (dw) check_gradient(dw, parameter(), "batch_norm dw");
    if (db) check_gradient(db, parameter(), "batch_norm db");
    if (epilogue_.activates()) check_operand(passed, signs, "batch_norm signs");
    if (dadded) check_operand(dadded, output, "batch_norm dadded");
    stream.run(Pass::weight_grad, "batch_norm", [&] {
      each_channel([&](Index c, auto&& positions) {
        const double m = mean.as<double>()[c], s = inv_std.as<double>()[c];
        double sum = 0, dot = 0;
        positions([&](Index i) {
          const P g = before(passed, i, dy.as<T>()[i]);
          if (dadded) dadded.as<T>()[i] = T(g);
          sum += g;
          dot += g * ((x.as<T>()[i] - m) * s);
        });
        sums.as<double>()[c] = sum;
        sums.as<double>()[x_.c + c] = dot;
        if (db) put(db, c, sum);
        if (dw) put(dw, c, dot);
      });
    });
  }

  void input_grad(Stream& stream, const View& x, const View& mean, const View& inv_std,
                  const View& w, const View& dy, const View& sums, double count, const View& dx,
                  const View& passed) override {
    check_operand(x, inputs[0], "batch_norm x"), check_operand(dy, output, "batch_norm dy");
    check_statistics(mean, inv_std);
    if (w) check_operand(w, parameter(), "batch_norm w");
    check_operand(sums, f64_vector(2 * x_.c), "batch_norm sums");
    check_operand(dx, inputs[0], "batch_norm dx");
    if (passed) check_operand(passed, signs, "batch_norm signs");
    stream.run(Pass::input_grad, "batch_norm", [&] {
      each_channel([&](Index c, auto&& positions) {
        const double m = mean.as<double>()[c], s = inv_std.as<double>()[c];
        const double scale = s * (w ? w.as<P>()[c] : P(1));
        const double sum = sums.as<double>()[c] / count, dot = sums.as<double>()[x_.c + c] / count;
        positions([&](Index i) {
          const double xhat = (x.as<T>()[i] - m) * s;
          const P g = before(passed, i, dy.as<T>()[i]);
          dx.as<T>()[i] = T(scale * (g - sum - xhat * dot));
        });
      });
    });
  }

 private:
  using P = Wide<T>;  // of parameters and running averages

  Form parameter() const { return {{1, x_.c, 1, 1}, dtype_of<P>, {}}; }

  static void put(const View& to, Index c, double value) {
    visit(to.dtype, [&]<Floating G>(G) { to.as<G>()[c] = G(value); });
  }

  static void keep(const View& passed, Index i, bool whether) {
    auto& word = passed.as<std::int32_t>()[i / 32];
    const auto bit = std::int32_t(1U << (i % 32));
    word = whether ? word | bit : word & ~bit;
  }
  /// dy before the activation, where there are signs.
  P before(const View& passed, Index i, P dy) const {
    if (!passed) return dy;
    return epilogue_.gradient(passed.as<std::int32_t>()[i / 32] >> (i % 32) & 1, dy);
  }

  void check_statistics(const View& mean, const View& inv_std) const {
    check_operand(mean, f64_vector(x_.c), "batch_norm mean");
    check_operand(inv_std, f64_vector(x_.c), "batch_norm inv_std");
  }

  /// Calls f(c, positions), where positions(g) calls g(index) for all elements of the channel.
  template <class F>
  void each_channel(F&& f) const {
    const Index plane = x_.h * x_.w;
    for (Index c = 0; c < x_.c; ++c) {
      f(c, [&](auto&& g) {
        for (Index n = 0; n < x_.n; ++n) {
          const Index first = (n * x_.c + c) * plane;
          for (Index i = first; i < first + plane; ++i) g(i);
        }
      });
    }
  }

  Shape x_;
  ReferenceEpilogue<T> epilogue_;
};

}  // namespace lamina::detail
