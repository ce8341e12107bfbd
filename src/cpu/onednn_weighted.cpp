// How convolution and linear run: what has to be reordered before each pass, and after it.
#include "cpu/onednn_weighted.hpp"

namespace lamina::detail {

bool OneDnnWeighted::takes(std::string_view ours, bool pays) const {
  const Choice& choice = runtime_->choice;
  if (choice.offered) choice.offered->emplace(ours);
  if (choice.only.empty()) return pays;
  return ours.find(choice.only) != ours.npos;
}

void OneDnnWeighted::describe_forward(bool bias, bool fused) {
  bias_ = bias, behind_ = epilogue_ && !fused, over_added = epilogue_.add && !behind_;
  if (epilogue_.add) inputs.push_back(output);
}

bool OneDnnWeighted::take_forward(const std::optional<TileConv>& kernel, bool bias) {
  if (!kernel || !takes(TileConv::name, kernel->pays())) return false;
  describe_forward(bias, true);
  scratch = kernel->scratch();
  runtime_->reserve(scratch);
  forward_ = [kernel = *kernel, bias, runtime = runtime_](auto v) {
    void* const* at = v.begin();  // x, w, b, y
    kernel(static_cast<const BF16*>(at[0]), static_cast<const BF16*>(at[1]),
           bias ? static_cast<const BF16*>(at[2]) : nullptr, static_cast<BF16*>(at[3]),
           runtime->scratch().as<void>());
  };
  return true;
}

bool OneDnnWeighted::take_gradient(const std::optional<TileConv>& kernel, const Desc& kept,
                                   const Desc& weights) {
  if (!kernel || !takes(TileConv::name, kernel->pays())) return false;
  data_w_ = stage(kept, weights);
  arrange(kernel->scratch(), {&data_w_});
  data_ = [kernel = *kernel, runtime = runtime_](auto v) {
    void* const* at = v.begin();  // w, dy, dx
    kernel(static_cast<const BF16*>(at[1]), static_cast<const BF16*>(at[0]), nullptr,
           static_cast<BF16*>(at[2]), runtime->scratch().as<void>());
  };
  return true;
}

bool OneDnnWeighted::take_products(const DwProducts& kernel, const Desc& made, const Desc& kept) {
  if (!takes(kernel.how(), kernel.pays())) return false;
  weights_dw_ = stage(made, kept);
  weights_dw_.bytes = made.get_size();
  arrange(kernel.scratch(), {&weights_dw_});
  weights_ = [kernel, bias = bias_, runtime = runtime_](auto v) {
    void* const* at = v.begin();  // x, dy, dw, db
    kernel(static_cast<const BF16*>(at[0]), static_cast<const BF16*>(at[1]),
           static_cast<float*>(at[2]), bias ? static_cast<float*>(at[3]) : nullptr,
           runtime->scratch().as<void>());
  };
  return true;
}

void OneDnnWeighted::take_winograd(const Winograd& kernel, bool bias, bool once,
                                   bool forward_only) {
  describe_forward(bias, true);
  scratch = once ? kernel.prepared_scratch() : kernel.scratch();
  runtime_->reserve(scratch);
  const auto to = [](void* p) { return static_cast<float*>(p); };
  const auto memory = [runtime = runtime_] { return runtime->scratch().as<float>(); };
  const auto slope = float(epilogue_.slope());
  forward_ = [=, add = epilogue_.add](auto v) {
    void* const* at = v.begin();  // x, w, b, y
    const Winograd::Ending ending{bias ? to(at[2]) : nullptr, add, slope};
    if (once) return kernel.forward_prepared(to(at[0]), to(at[1]), ending, to(at[3]), memory());
    kernel.forward(to(at[0]), to(at[1]), ending, to(at[3]), memory());
  };
  if (forward_only) return;
  data_ = [=](auto v) {
    void* const* at = v.begin();  // w, dy, dx
    kernel.input_grad(to(at[0]), to(at[1]), to(at[2]), memory());
  };
  weights_ = [=](auto v) {
    void* const* at = v.begin();  // x, dy, dw, db
    kernel.weight_grad(to(at[0]), to(at[1]), to(at[2]), bias ? to(at[3]) : nullptr, memory());
  };
}

OneDnnWeighted::Staged OneDnnWeighted::stage(const Desc& from, const Desc& to) const {
  if (from == to) return {};
  return {reorder_op(runtime_, from, to), to.get_size()};
}

void OneDnnWeighted::arrange(std::size_t own, std::initializer_list<Staged*> all) {
  std::size_t end = own;
  for (const Staged* s : all) end = std::max(end, s->reorder.scratch());
  for (Staged* s : all) {
    if (!s->reorder) continue;
    s->at = aligned(end);
    end = s->at + s->bytes;
  }
  scratch = std::max(scratch, end);
  runtime_->reserve(scratch);
}

void* OneDnnWeighted::staged(Stream& stream, Pass pass, Staged& operand, const char* span,
                             void* data) {
  if (!operand.reorder) return data;
  void* to = room(operand);
  stream.run(pass, span, [&] { operand.reorder({data, to}); });
  return to;
}

void OneDnnWeighted::forward(Stream& stream, const View& x, const View& w_, const View& b_,
                             const View& y, const View& added) {
  check_operand(x, inputs[0], what_), check_operand(w_, w, what_), check_operand(y, output, what_);
  if (bias_) check_operand(b_, b, what_);
  if (epilogue_.add) check_operand(added, output, what_);
  if (over_added && added.data != y.data)  // oneDNN adds to what is there
    stream.run(Pass::forward, "copy added", [&] { copy(added.data, y.data, y.bytes()); });
  stream.run(Pass::forward, what_, [&] { forward_({x.data, w_.data, b_.data, y.data}); });
  if (behind_) run_epilogue(stream, epilogue_, y, added);
}

void run_epilogue(Stream& stream, const Epilogue& e, const View& y, const View& added) {
  stream.run(Pass::forward, "epilogue", [&] {
    visit(y.dtype, [&]<Stored T>(T) {
      finish(y.as<T>(), e.add ? added.as<const T>() : nullptr, float(e.slope()),
             y.bytes() / sizeof(T));
    });
  });
}

void OneDnnWeighted::input_grad(Stream& stream, const View& w_, const View& dy, const View& dx) {
  check_operand(w_, w, what_), check_operand(dy, output, what_);
  check_operand(dx, inputs[0], what_);
  void* weights = staged(stream, Pass::input_grad, data_w_, "reorder w", w_.data);
  void* from = staged(stream, Pass::input_grad, data_dy_, "reorder dy", dy.data);
  void* gradient = to_image_ ? image_.get() : dx.data;
  stream.run(Pass::input_grad, what_, [&] { data_({weights, from, gradient}); });
  if (to_image_) {
    stream.run(Pass::input_grad, "reorder dx", [&] { to_image_({gradient, dx.data}); });
  }
}

void OneDnnWeighted::weight_grad(Stream& stream, const View& x, const View& dy, const View& dw,
                                 const View& db) {
  check_operand(x, inputs[0], what_), check_operand(dy, output, what_);
  check_operand(dw, gradient(w), what_);
  if (bias_) check_operand(db, gradient(b), what_);
  void* result = weights_dw_.reorder ? room(weights_dw_) : dw.data;
  void* image = staged(stream, Pass::weight_grad, weights_x_, "reorder x", x.data);
  void* from = staged(stream, Pass::weight_grad, weights_dy_, "reorder dy", dy.data);
  stream.run(Pass::weight_grad, what_, [&] { weights_({image, from, result, db.data}); });
  if (weights_dw_.reorder) {
    stream.run(Pass::weight_grad, "reorder dw", [&] { weights_dw_.reorder({result, dw.data}); });
  }
}

}  // namespace lamina::detail
