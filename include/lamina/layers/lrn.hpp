// LRN: local response normalisation across channels (Krizhevsky et al., 2012).
#pragma once

#include <lamina/layers/unary.hpp>

#include <array>

namespace lamina {

/// y = x / (k + alpha/size * sum of x^2 over the `size` channels around it)^beta
///
/// split                   forward        backward
/// batch, height, width
/// channel                 halo of x      halo of dx
///
/// With channels cut, the kernel runs over the neighbours' channels, too: their y is dropped and
/// their dy is zero, so that each rank adds up what its own y says of dx.
class LRN final : public UnaryLayer {
 public:
  struct Options {
    std::int64_t size = 5;
    double alpha = 1e-4, beta = 0.75, k = 2;
  };
  explicit LRN(Options o) : o_(o) {
    check(o_.size > 0 && o_.size % 2 == 1, "size must be positive and odd, got ", o_.size);
    check(o_.k > 0 && o_.alpha >= 0, "k must be positive and alpha not negative, got ", o_.k,
          " and ", o_.alpha);
  }

  std::string_view type() const override { return "LRN"; }
  std::string describe() const override { return text("size ", o_.size); }

  // Forward: the square, `size` additions, scale, add k, power, multiply. Backward: the same sum
  // over dy y / scale, and about as much around it. A power counts as one operation.
  Cost cost(std::span<const Shape> xs, const Split& split, DType t) const override {
    const double size = double(o_.size);
    const Blocks wide = needed(xs, split);
    Shape most = split.of_output(only(xs));
    for (const Box& box : wide.box) most.c = std::max(most.c, box.c.size);
    Cost cost = per_element(most, t, size + 5, 2 * size + 9);
    cost.messages =
        Halo::messages(input_blocks(0, xs, split, split.ways()), wide, t, split.channel);
    return cost;
  }

  Placement place(std::span<const Spec> xs, const Site& site) override {
    const std::array whole{xs[0].whole};
    const Split& split = site.split();
    const Blocks held = input_blocks(0, whole, split, split.ways()), wide = needed(whole, split);
    halo_ = Halo(held, wide, xs[0].dtype, site, Axis::channel);
    Placement p = finish(site, make(site.backend(), halo_.x(xs[0])));
    if (!halo_.moves()) return p;
    const int me = site.ranks().rank();
    cut_ = Exchange(held_alone(wide, me), held_alone(held, me), xs[0].dtype, {});
    widen_ = Exchange(held_alone(held, me), held_alone(wide, me), xs[0].dtype, {});
    wide_ = Tensor(kernel_->output);
    p.output = xs[0].form(), p.output.layout = {};
    p.workspace += wide_.bytes();
    return p;
  }

  void forward(Context& context, std::span<const View> xs, const View& y) override {
    UnaryLayer::forward(context, xs, wide_.view() ? wide_.view() : y);
    if (wide_.view()) cut_.run(context.stream, Pass::forward, wide_, y);
  }
  void backward(Context& context, std::span<const View> xs, const View& y, const View& dy,
                std::span<const View> dxs) override {
    if (wide_.view()) widen_.run(context.stream, Pass::input_grad, dy, wide_);
    UnaryLayer::backward(context, xs, y, wide_.view() ? wide_.view() : dy, dxs);
  }

 protected:
  std::unique_ptr<UnaryKernel> make(const Backend& backend, const Form& x) const override {
    return backend.lrn({o_.size, o_.alpha, o_.beta, o_.k}, x);
  }

 private:
  /// The channels that the windows of each rank reach.
  Blocks needed(std::span<const Shape> xs, const Split& split) const {
    Blocks blocks = input_blocks(0, xs, split, split.ways());
    for (Box& box : blocks.box) box.c = reach(box.c, o_.size, 1, 1, o_.size / 2, xs[0].c).rows;
    return blocks;
  }
  static Blocks held_alone(const Blocks& all, int rank) { return all.among({rank}); }

  Options o_;
  Exchange cut_, widen_;  // on this rank alone: between its own channels and those it reads
  Tensor wide_;           // y, or dy, of the channels it reads
};

}  // namespace lamina
