// Halo: what a layer does with an input that is not laid out as its kernel reads it: rows and
// columns of neighbours join it, and their gradients go back.
#pragma once

#include <lamina/cost/cost.hpp>
#include <lamina/layers/exchange.hpp>
#include <lamina/layers/site.hpp>

#include <memory>

namespace lamina {

/// The input as the kernel reads it: itself where nothing has to be done, else a buffer.
class Halo {
 public:
  Halo() = default;
  /// `held` is what the ranks of the site hold of `x`, `needed` what their windows reach, cut along
  /// `axes` (height and width, or channels).
  Halo(const Blocks& held, const Blocks& needed, const Spec& x, const Site& site, Axis axes);

  /// Its messages, of the rank that sends the most. None where nothing moves.
  static std::vector<Message> messages(const Blocks& held, const Blocks& needed, DType dtype,
                                       const Split& split, Axis axes);

  /// Whether anything has to be gathered.
  bool moves() const { return moves_; }
  /// For a kernel made for x(): in which form it wants that. With `plain` x must lie plain outside,
  /// whatever the kernel likes.
  void prepare(const Backend& backend, const Form& wanted, bool plain);
  /// After prepare(): whether a kernel can work on what is here while rows of others travel.
  bool prepare_overlap(const Backend& backend);
  /// Rows of x() that come from others: the first and the last ones.
  std::int64_t above() const { return own_.h.begin - all_.h.begin; }
  std::int64_t below() const { return all_.h.end() - own_.h.end(); }
  /// What the kernel is made for, given what flows in.
  Form x(const Form& given) const { return moves_ ? needed_ : given; }
  /// What must flow in: x without halo.
  const Form& outside() const { return outside_; }
  /// Whether what flows in is read by forward only.
  bool keeps() const { return moves_ || reorder_; }
  std::size_t workspace() const {
    return x_.bytes() + dx_.bytes() + kernel_x_.bytes() + kernel_dx_.bytes() + waiting();
  }
  /// Of these, what waits to travel.
  std::size_t waiting() const { return gather_.workspace() + fold_.workspace(); }

  /// gather() in two parts, where prepare_overlap() said so: x as the kernel reads it, with zeros
  /// where the rows of others will be,
  const View& start(Stream& stream, const View& x) {
    gather_.start(stream, Pass::forward, x, x_);
    gather_.preview(stream, Pass::forward, x, x_);
    if (!reorder_) return x_.view();
    reorder_->forward(stream, x_, kernel_x_);
    return kernel_x_.view();
  }
  /// and these rows. All of x() in plain.
  const View& finish(Stream& stream, const View& x) {
    gather_.finish(stream, Pass::forward, x, x_);
    for (const auto& rows : arrived_) rows->forward(stream, x_, kernel_x_);
    return x_.view();
  }
  /// x as the kernel reads it.
  const View& gather(Stream& stream, const View& x) {
    if (moves_) gather_.run(stream, Pass::forward, x, x_);
    const View& whole = moves_ ? x_.view() : x;
    if (!reorder_) return whole;
    reorder_->forward(stream, whole, kernel_x_);
    return kernel_x_.view();
  }
  /// The same in backward.
  const View& kept(const View& x) const {
    return reorder_ ? kernel_x_.view() : moves_ ? x_.view() : x;
  }
  /// Where the kernel writes its dx,
  const View& gradient(const View& dx) const {
    return reorder_ ? kernel_dx_.view() : moves_ ? dx_.view() : dx;
  }
  /// and the same as it lies outside, halo included: what ranks may add up.
  const View& outside_gradient(Stream& stream, const View& dx) const {
    const View& whole = moves_ ? dx_.view() : dx;
    if (reorder_) reorder_->input_grad(stream, {}, {}, kernel_dx_, whole);
    return whole;
  }
  /// Starts to add up in dx what the ranks have in outside_gradient(), which must be left alone
  /// until finish_fold().
  void start_fold(Stream& stream, const View& dx) {
    if (moves_) fold_.start(stream, Pass::input_grad, dx_, dx);
  }
  void finish_fold(Stream& stream, const View& dx) {
    if (moves_) fold_.finish(stream, Pass::input_grad, dx_, dx);
  }
  /// From gradient() to dx in one go.
  void fold(Stream& stream, const View& dx) {
    outside_gradient(stream, dx), start_fold(stream, dx), finish_fold(stream, dx);
  }

 private:
  bool moves_ = false, has_dx_ = true;
  Form held_, needed_, outside_;
  Box own_, all_;  // what of the needed is here
  std::unique_ptr<UnaryKernel> reorder_;
  std::vector<std::unique_ptr<UnaryKernel>> arrived_;  // the rows of others, into kernel_x_
  Tensor x_, dx_, kernel_x_, kernel_dx_;
  Exchange gather_, fold_;  // behind the memory, for which they wait when they go
};

}  // namespace lamina
