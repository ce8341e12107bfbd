#include "cuda/updates.hpp"

#include "kernels/boxes.hpp"
#include "kernels/update.hpp"

namespace lamina::cuda {

namespace {

Update numbers(const Memory& memory, const UpdateRule& rule, const UpdateStep& step) {
  using Kind = UpdateRule::Kind;
  Update u;
  u.kind = rule.kind == Kind::sgd    ? Update::Kind::sgd
           : rule.kind == Kind::adam ? Update::Kind::adam
                                     : Update::Kind::adamw;
  u.momentum = rule.momentum, u.nesterov = rule.nesterov;
  u.beta1 = rule.beta1, u.beta2 = rule.beta2, u.epsilon = rule.epsilon;
  u.rate = step.rate, u.weight_decay = step.weight_decay;
  u.grad_scale = step.grad_scale, u.step = double(step.step);
  u.values = memory.at<const UpdateValues>(step.values);
  u.found = memory.at<const double>(step.found), u.samples = step.samples;
  u.squares = memory.at<const double>(step.squares);
  u.square_count = step.squares ? int(step.squares.shape.size()) : 0;
  u.clip_norm = step.clip_norm;
  u.value_square = memory.at<const double>(step.value_square);
  u.grad_square = memory.at<const double>(step.grad_square);
  u.trust = step.trust;
  return u;
}

}  // namespace

cudaError_t put_update(Queue& queue, const Memory& memory, const UpdateRule& rule,
                       const UpdateStep& step, const View& w, const View& dw,
                       std::span<const View> states) {
  check(rule.kind != UpdateRule::Kind::custom, "update: a rule of one's own is no kernel");
  check_operand(w, w, "update w");
  check_operand(dw, {w.shape, dw.dtype, w.layout}, "update dw");
  check(states.size() == std::size_t(rule.states()), "update: expected ", rule.states(),
        " states, got ", states.size());
  for (const View& state : states) check_operand(state, w, "update state");
  const auto state = [&](std::size_t i) {
    return i < states.size() ? memory.at(states[i]) : nullptr;
  };
  return update(queue.stream(), numbers(memory, rule, step), w.dtype, w.shape.size(), memory.at(w),
                dw.dtype, memory.at(dw), state(0), state(1));
}

cudaError_t put_squared_norm(Queue& queue, const Memory& memory, const View& x, const View& sum) {
  check_operand(sum, {{1, 1, 1, 1}, DType::f64, {}}, "squared_norm sum");
  static_assert(square_workspace <= Queue::room_bytes);
  return squared_norm(queue.stream(), x.dtype, x.shape.size(), memory.at(x), memory.at<double>(sum),
                      queue.room());
}

cudaError_t put_moves(Queue& queue, const Memory& memory, std::span<const BoxMove> moves) {
  for (const BoxMove& m : moves) {
    const BoxCopy copy{
        m.to.dtype, memory.at(m.from), m.from_block, memory.at(m.to), m.to_block, m.box, m.add};
    if (const cudaError_t status = copy_box(queue.stream(), copy); status != cudaSuccess)
      return status;
  }
  return cudaSuccess;
}

}  // namespace lamina::cuda
