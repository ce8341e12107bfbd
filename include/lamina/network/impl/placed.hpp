// How a network is placed as a whole, and how it runs.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/base/naming.hpp>
#include <lamina/base/random.hpp>
#include <lamina/base/threads.hpp>
#include <lamina/network/detail/compare_ranks.hpp>
#include <lamina/network/detail/placer.hpp>
#include <lamina/network/detail/settle_splits.hpp>
#include <lamina/network/detail/source.hpp>
#include <lamina/network/detail/title.hpp>
#include <lamina/network/detail/unwritten.hpp>
#include <lamina/network/placed.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <thread>
#include <utility>

namespace lamina {

namespace detail {

/// This rank's block of a parameter, on as many threads as kernels have: each element is a function
/// of its place in the whole parameter.
inline void draw(const Parameter& p, const Random& random, const View& plain) {
  const auto number = [&](std::int64_t element) {
    const double v = p.initial.value;
    if (p.initial.kind == Initial::Kind::constant) return v;
    return p.initial.kind == Initial::Kind::uniform
               ? v * (2 * random.uniform(std::uint64_t(element)) - 1)
               : v * random.normal(std::uint64_t(element));
  };
  const auto fill = [&](Part some) {
    visit(plain.dtype, [&]<Floating T>(T) {
      for_runs(p.block, some, Box::of(p.whole), p.block,
               [&](std::int64_t from, std::int64_t to, std::int64_t length) {
                 for (std::int64_t i = 0; i < length; ++i)
                   plain.as<T>()[to + i] = T(number(from + i));
               });
    });
  };
  constexpr std::int64_t worth_a_thread = 1 << 15;
  const std::int64_t size = p.block.size();
  const int count = int(std::clamp<std::int64_t>(size / worth_a_thread, 1, threads()));
  std::vector<std::jthread> others;
  for (int i = 1; i < count; ++i)
    others.emplace_back([&fill, some = part(size, count, i)] {
      unbind_thread();
      fill(some);
    });
  fill(part(size, count, 0));
}

/// Throws Error naming a layer whose output nobody reads.
inline void check_ends(const std::vector<Network::Vertex>& graph) {
  std::vector<bool> read(graph.size());
  for (const Network::Vertex& v : graph)
    for (const int input : v.inputs) read[std::size_t(input)] = true;
  for (std::size_t i = 1; i + 1 < graph.size(); ++i)
    check(read[i], detail::title(graph[i]),
          ": no layer reads its output; expected one that does, or that it is the last layer, as ",
          detail::title(graph.back()), " is");
}

/// The samples that this rank loads.
inline Part input_rows(const PlaceOptions& o) {
  const Split& split = o.splits[0];
  return o.ranks.rank() < split.batch ? split.part(Axis::batch, o.batch, o.ranks.rank())
                                      : Part{o.batch, 0};
}

LAMINA_INLINE void settle_splits(const Network& network, std::int64_t batch, int ranks,
                                 bool training, std::vector<Split>& splits) {
  const auto& graph = network.graph();
  const Split input = input_split(batch, ranks);
  if (splits.empty()) {
    check_batch(batch, ranks);
    splits.assign(graph.size(), input);
  }
  check(splits.size() == graph.size(), "expected a split for each of the ", graph.size(),
        " vertices of the network, got ", splits.size());
  Split ways = splits[0];
  ways.shares.batch.clear();
  check(ways == input, "the input is split by ", input, ", not by ", splits[0]);
  check_shares(splits[0]);
  for (std::size_t i = 1; i < graph.size(); ++i)
    naming(detail::title(graph[i]), [&] {
      const std::vector<Shape> xs = network.input_shapes(graph[i], batch);
      const std::string why = why_illegal(*graph[i].layer, xs, splits[i], ranks, training);
      check(why.empty(), why);
    });
}

/// Throws Error where the network cannot be placed so; fills in what was left open.
inline void check_options(const Network& network, PlaceOptions& options) {
  const auto& graph = network.graph();
  check(graph.size() > 1, "the network has no layers");
  check_ends(graph);
  check(options.backend != nullptr, "no back end was given");
  detail::compare_ranks(network, options);
  options.unlike_backends |= detail::unlike_backends(options.ranks, options.backend->name());
  if (options.unlike_backends) detail::check_carrier(options.ranks, options.backend->memory());
  check(options.backend->supports(options.dtype), "back end ", options.backend->name(),
        " does not compute in ", options.dtype);
  const int ranks = options.ranks.size();
  settle_splits(network, options.batch, ranks, options.training, options.splits);
  if (options.recompute.empty()) options.recompute.assign(graph.size(), false);
  check(options.recompute.size() == graph.size(), "expected for each of the ", graph.size(),
        " vertices of the network whether it is recomputed, got ", options.recompute.size());
  check(
      options.workers.count == 0 || (ranks == 1 && !options.shard_optimizer &&
                                     options.micro_batches == options.workers.count),
      "with workers a network is placed on this rank alone, for as many micro-batches as there are "
      "workers, without a sharded optimizer");
  const auto& sent = options.sent_gradients;
  check(!sent || *sent == options.dtype.gradients ||
            (*sent == DType::bf16 && options.dtype.gradients == DType::f32),
        "sent_gradients: gradients in ", name(options.dtype.gradients), " cannot go as ",
        sent ? name(*sent) : "", ": expected bf16 for f32");
  check(!options.narrow() || options.workers.count == 0,
        "sent_gradients: workers' sums are the same on any number of ranks, so they are not "
        "rounded between these: expected f32");
  check(!options.narrow() || ranks == 1 || options.ranks.imagined() ||
            options.backend->memory().on_host(),
        "sent_gradients: back end ", options.backend->name(),
        " sends gradients as they are: "
        "expected f32");
  options.loss_scaling.check();
  const Network::Vertex& last = graph.back();
  check(!options.training || !options.loss_scaling.on() || last.layer->scales_gradient(),
        detail::title(last), ": expected a loss that scales its gradient, for training with loss ",
        "scale ", options.loss_scaling.text());
  check(options.micro_batches > 0, "micro_batches must be positive, got ", options.micro_batches);
  check(!options.training || !options.parameters_of,
        "parameters of another network are for inference only: expected training = false");
}

/// So many bytes for activations and their gradients, which are what grows with the batch: a device
/// that has not so much says what would fit. Beside them it will have what kernels write to, one
/// after the other, and batches on their way; what layers have for themselves it has already, for
/// this batch.
inline Tensor room_for(const std::vector<Step>& steps, std::size_t bytes, const Memory& memory,
                       const PlaceOptions& o) {
  MemorySpace& space = o.backend->memory();
  try {
    return Tensor({1, std::int64_t(bytes / 8), 1, 1}, DType::f64, space);
  } catch (const Error&) {
    const std::size_t all = space.free_bytes();
    if (space.on_host() || all >= bytes) throw;
    std::size_t scratch = 0;
    for (const Step& step : steps) scratch = std::max(scratch, step.placement.scratch);
    const double free = double(all - std::min(all, scratch));
    const double own = double(memory.workspace + memory.messages) - double(scratch);
    const double grows = double(bytes) + 2 * double(steps[0].output.bytes());
    const auto fits = std::int64_t(double(o.batch) * free / grows);
    const auto most = std::int64_t(double(o.batch) * (free + own) / (grows + own));
    const Step& largest =
        *std::ranges::max_element(steps, {}, [](const Step& step) { return step.output.bytes(); });
    const int ranks = o.ranks.size();
    throw Error(text("not enough memory of ", space.name(), ": activations and gradients of ",
                     o.batch, " samples", ranks > 1 ? text(" on ", ranks, " ranks") : std::string(),
                     " take ", in_bytes(double(bytes)), ", those of layer ", largest.name, ' ',
                     in_bytes(double(largest.output.bytes())), " each, and ", in_bytes(free),
                     " are free for them: ",
                     most < 1 ? text("not one sample fits", ranks > 1 ? " on each rank" : "")
                              : text("expected a batch or micro-batch of ",
                                     fits > 0 ? text("about ", fits) : text("at most ", most))));
  }
}

}  // namespace detail

LAMINA_INLINE PlacedNetwork::PlacedNetwork(const Network& network, PlaceOptions options)
    : network_(network), options_(std::move(options)) {
  detail::check_options(network_, options_);
  rows_ = detail::input_rows(options_);
  fusion_.vertices.resize(network_.graph().size());
  if (options_.fuse) fusion_ = plan_fusion(network_, options_);
  steps_ = detail::Placer(network_, options_, fusion_, inserted_, sites_).steps();
  plan_recomputed();
  arena_ = plan_activations(steps_, options_.training);
  memory_.activations = arena_.bytes;
  plan_workspace();
  parameters_ = Parameters(steps_, options_, memory_);
  if (const PlacedNetwork* from = std::exchange(options_.parameters_of, nullptr))
    source_ =
        std::make_unique<detail::Source>(*from, options_.backend, parameters_, steps_, memory_);
  plan_kept();
}

// Here, so that not every program has to compile them.
LAMINA_INLINE PlacedNetwork::PlacedNetwork(PlacedNetwork&&) noexcept = default;
LAMINA_INLINE PlacedNetwork& PlacedNetwork::operator=(PlacedNetwork&& other) noexcept {
  if (this == &other) return *this;
  std::destroy_at(this);  // members in their order, in which assigning each would not let them go
  return *std::construct_at(this, std::move(other));
}
LAMINA_INLINE PlacedNetwork::~PlacedNetwork() = default;

/// What backward reads depends on the kernels that a rank chose: what one of them reads, all do.
/// Collective.
LAMINA_INLINE void PlacedNetwork::plan_recomputed() {
  const auto& marked = options_.recompute;
  if (!options_.training || std::find(marked.begin(), marked.end(), true) == marked.end()) return;
  std::string reads(network_.graph().size(), '\0');
  for (const Step& s : steps_)
    if (!s.inserted())
      reads[std::size_t(s.vertex)] =
          char((s.placement.reads_x ? reads_x : 0) | (s.placement.reads_y ? reads_y : 0));
  for (const std::string& theirs : options_.ranks.all_gather_text(reads))
    for (std::size_t v = 0; v < reads.size(); ++v) reads[v] = char(reads[v] | theirs[v]);
  plan_recomputation(steps_, marked, reads);
}

/// What kernels and layers take, and makes the kernels that add up gradients.
LAMINA_INLINE void PlacedNetwork::plan_workspace() {
  std::size_t scratch = 0;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    Step& step = steps_[i];
    Placement& p = step.placement;
    const auto &parts = arena_.parts[i], &dx = arena_.dx[i];
    if (!parts.empty() && !step.output.box.empty() && !absorber_adds(step, steps_, parts.size())) {
      const std::vector<Form> forms(parts.size(), step.output);
      auto& sum = step.buffers.sum = options_.backend->sum(forms);
      p.workspace += sum->workspace, p.scratch = std::max(p.scratch, sum->scratch);
    }
    if (std::any_of(dx.begin(), dx.end(), [](int storage) { return storage >= 0; }))
      p.workspace += p.dx_workspace;
    step.memory.activations = arena_.brought[i];
    step.memory.workspace = p.workspace - p.messages + p.scratch;
    step.memory.messages = p.messages;
    memory_.workspace += p.workspace - p.messages, memory_.messages += p.messages;
    scratch = std::max(scratch, p.scratch);
  }
  steps_[0].memory.workspace += StepNumbers::bytes();
  memory_.workspace += StepNumbers::bytes();
  memory_.workspace += scratch;  // one buffer serves all kernels, one after the other
}

LAMINA_INLINE Form PlacedNetwork::gradient_form() const {
  return parameters_.gradient_form(options_);
}

LAMINA_INLINE void PlacedNetwork::allocate(Tensor gradients) {
  check(!options_.ranks.imagined(), "the ranks on which the network is placed are imagined: it ",
        "never runs, and has no buffers");
  check(!allocated_, "the network has its buffers already");
  options_.backend->make_room();
  naming("parameters and gradients",
         [&] { parameters_.allocate(options_, memory_, std::move(gradients)); });
  allocate_activations();  // in what is left, of which an error says which batch would fit
  numbers_ = StepNumbers(options_.backend->memory());
  set_loss_scale({.scale = options_.loss_scaling.start});
  allocate_kept();
  allocated_ = true;
  if (options_.workers.count > 0) share(options_.workers);
  if (source_) source_->refresh();
}

LAMINA_INLINE void PlacedNetwork::end() {
  activations_ = Tensor();
  parameters_.end();
  ended_ = true;
}

LAMINA_INLINE std::shared_ptr<const void> PlacedNetwork::parameter_memory() const {
  check(!source_, "these parameters are another network's: expected that one");
  return parameters_.values.memory();
}

LAMINA_INLINE void PlacedNetwork::refresh() {
  check(allocated_ && source_, "the network has no parameters of another one");
  source_->refresh();
  prepared_ = false;
}

/// What follows from parameters alone, once for all batches.
LAMINA_INLINE void PlacedNetwork::prepare_constants() {
  prepared_ = true;
  const Backend& backend = *options_.backend;
  std::vector<ChannelScale> scales(steps_.size());
  for (const Step& step : steps_)
    if (step.active() && step.absorbed() && step.layer->as_epilogue()->scale)
      scales[std::size_t(step.absorber)] = step.placement.layer->channel_scale(backend);
  for (std::size_t i = 1; i < steps_.size(); ++i)
    if (steps_[i].active()) steps_[i].placement.layer->prepare(backend, scales[i]);
}

LAMINA_INLINE void PlacedNetwork::allocate_activations() {
  const ActivationPlan& plan = arena_;
  activations_ = detail::room_for(steps_, plan.bytes, memory_, options_);
  const auto view = [&](int storage, const Form& form) {
    if (storage < 0) return View();
    return activations_.view().at(plan.storages[std::size_t(storage)].offset, form);
  };
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    Step& step = steps_[i];
    Buffers& b = step.buffers;
    b.y = view(plan.y[i], step.output), b.kept_y = view(plan.kept[i], step.output);
    b.dy = view(plan.dy[i], step.output);
    for (std::size_t k = 0; k < step.inputs.size(); ++k) {
      const auto input = std::size_t(step.inputs[k]);
      b.x.push_back(view(plan.y[input], steps_[input].output));
      b.kept_x.push_back(view(plan.kept[input], steps_[input].output));
      b.dx.push_back(options_.training ? view(plan.dx[i][k], steps_[input].output) : View());
    }
    for (const int part : plan.parts[i]) b.parts.push_back(view(part, step.output));
  }
  for (const Step& step : steps_)
    if (const auto& parts = step.buffers.parts; absorber_adds(step, steps_, parts.size())) {
      Buffers& b = steps_[std::size_t(step.absorber)].buffers;
      b.dy = parts[0], b.more = parts[1];
    }
}

LAMINA_INLINE void PlacedNetwork::initialize(std::uint64_t seed) {
  check(allocated_, "the network must have its buffers before it is initialized");
  check(!borrows(), "the network has the parameters of another one: expected that one");
  changed(), values_are_new();
  for (const NamedParameter& n : parameters_.mine) {
    const Parameter& p = *n.parameter;
    const View master = p.bucket ? p.bucket->master() : View();
    const Form form{p.form.shape, master ? master.dtype : p.form.dtype, {}};
    // In the room of its gradient, so that the largest one is not held once more.
    const bool fits = p.grad && !p.grad.space && p.grad.bytes() >= form.bytes();
    const Tensor apart = fits ? Tensor() : Tensor(form);
    const View plain = fits ? p.grad.at(0, form) : apart.view();
    detail::draw(p, Random(seed, key_of(n.name)), plain);
    detail::set_value(*options_.backend, p, plain);
    if (fits) space_of(p.grad).zero(p.grad.data, p.grad.bytes());
  }
}

LAMINA_INLINE void PlacedNetwork::set_value(const Parameter& p, const View& plain) {
  check(!borrows(), p.name, ": the parameters are another network's: expected that one");
  changed();
  detail::set_value(*options_.backend, p, plain);
  const View all = kept_of(p);
  if (!all) return;
  const Form one{{1, all.shape.c, 1, 1}, all.dtype, {}};
  for (std::int64_t w = 0; w < all.shape.n; ++w)
    copy_bytes(p.value.at(0, one), all.at(std::size_t(w) * one.bytes(), one));
}

LAMINA_INLINE void PlacedNetwork::begin_turn(Context& context) {
  check(allocated_ && !ended_, "the network has no buffers ", ended_ ? "any more" : "yet");
  check(!source_ || source_->fresh(),
        "the network's parameters are another one's, which has changed them: expected refresh()");
  check(options_.training || !context.training,
        "the network was placed for inference: expected Context::training = false");
  check(context.training || !parameters_.changes->of_one_worker, detail::of_one_worker);
  if (!options_.training && !prepared_) prepare_constants();
  ran_forward_ = false;
  tell(context);
  numbers_.now.put(context.stream, {.seed = context.seed,
                                    .step = context.step,
                                    .micro_batch = context.micro_batch,
                                    .stop = context.stop});
  const bool by_workers = options_.workers.count > 0;
  if (context.training && by_workers && kept_is_new_) learn_kept(context.stream);
  numbers_.add_up = found_by_step() && (context.training || by_workers);
}

LAMINA_INLINE void PlacedNetwork::forward(Context& context) {
  begin_turn(context);
  run_forward(context);
  ran_forward_ = context.training;
  if (context.training || !found_by_step() || options_.workers.count == 0) return;
  end_turn();
  if (turn_ == 0) add_up_workers(context.stream);
}

LAMINA_INLINE void PlacedNetwork::run_forward(Context& context) {
  const bool takes_turns = context.training && options_.workers.count > 0;
  if (takes_turns) move_kept(context.stream, false);
  for (std::size_t i = 1; i < steps_.size(); ++i)
    run_layer(context, i, steps_[i].buffers.x, steps_[i].buffers.y, LayerRun::Phase::forward);
  context.stream.enter(-1);
  if (takes_turns) move_kept(context.stream, true), note_worker();
  if (numbers_.add_up) add_up_found(context);
}

LAMINA_INLINE void PlacedNetwork::tell(Context& context) const {
  context.micro_batch = int(options_.workers.mine.begin) + turn_;
  context.micro_batches = options_.micro_batches;
  context.now = numbers_.now.view();
  const Form one{{1, 1, 1, 1}, DType::f64, {}};
  context.loss_scale = loss_scale() ? loss_scale().at(offsetof(LossScale, scale), one) : View();
}

LAMINA_INLINE View PlacedNetwork::loss_scale() const {
  const bool scales = options_.training && options_.loss_scaling.on();
  return scales ? numbers_.loss_scale.view() : View();
}

LAMINA_INLINE LossScale PlacedNetwork::loss_scale_now() const {
  LossScale now;
  if (const View there = loss_scale()) copy_bytes(there, {&now, there.form()});
  return now;
}

LAMINA_INLINE void PlacedNetwork::set_loss_scale(const LossScale& scale) {
  LossScale now = scale;
  if (const View there = loss_scale()) copy_bytes({&now, there.form()}, there);
}

LAMINA_INLINE void PlacedNetwork::add_up_found(Context& context) {
  if (options_.workers.count > 0) return note_found(context);
  options_.backend->add_found(context.stream, shared_found(context.stream), turn_ == 0,
                              numbers_.totals);
}

LAMINA_INLINE View PlacedNetwork::found_by_step() const {
  const bool adds_up = options_.micro_batches > 1 && steps_.back().layer->is_loss();
  return adds_up ? numbers_.totals.view() : View();
}

LAMINA_INLINE View PlacedNetwork::found(Stream& stream) const {
  const Step& loss = steps_.back();
  check(loss.layer->is_loss(), "the network ends in ", loss.name,
        ": expected a loss, SoftmaxCrossEntropy");
  return numbers_.add_up ? numbers_.totals.view() : shared_found(stream);
}

/// Rank 0 takes part in everything, and tells the others. Who takes no part asks to stop here.
LAMINA_INLINE View PlacedNetwork::shared_found(Stream& stream) const {
  const Step& loss = steps_.back();
  const int ranks = options_.ranks.size();
  if (options_.splits.back().ways() == ranks) return loss.buffers.y;
  const View& found = numbers_.found;
  const View y = options_.ranks.rank() == 0 ? loss.buffers.y : View();
  const Form one{{1, 1, 1, 1}, DType::f64, {}};
  const Box all = Box::of(found.shape), single = Box::of(one.shape);
  const View asks = numbers_.now.view().at(offsetof(StepValues, stop), one);
  const std::array moves{BoxMove{y, all, found, all, all},
                         BoxMove{asks, single, found.at(4 * sizeof(double), one), single, single}};
  const std::size_t count = loss.active() ? 1 : 2;
  options_.backend->move(stream, Pass::forward, "found", std::span(moves).first(count));
  options_.ranks.all_reduce(stream, Pass::forward, found).wait(stream);
  return found;
}

LAMINA_INLINE void PlacedNetwork::backward(Context& context) {
  check(options_.training, "the network was placed for inference: there are no gradients");
  check(ran_forward_,
        "backward: expected a forward pass with Context::training before it, of its own");
  tell(context);
  run_backward(context);
  end_turn();
}

LAMINA_INLINE void PlacedNetwork::end_turn() {
  turn_ = (turn_ + 1) % options_.turns();
  if (!std::exchange(ran_forward_, false) || turn_ > 0) return;
  waiting_ = waiting_.value_or(0) + 1;
}

LAMINA_INLINE void PlacedNetwork::check_update() const {
  check(turn_ == 0, "update: ", turn_, " of ", options_.turns(),
        " micro-batches have run backward");
  const int steps = waiting_.value_or(1);
  check(steps == 1, "update: expected one backward pass since the last update, got ", steps,
        steps == 0 ? ""
                   : ", each of which wrote its gradients over the ones before: "
                     "PlaceOptions::micro_batches adds them up, drop_gradients() forgets them");
}

LAMINA_INLINE void PlacedNetwork::run_backward(Context& context) {
  parameters_.begin_turn(turn_);
  const bool first_step = !waiting_ && !context.stream.silent();
  for (auto i = steps_.size(); i-- > 1;) {
    const Step& step = steps_[i];
    recompute(context, step);
    if (!step.needs_grad || !step.active()) continue;
    context.layer = step.vertex;
    const LayerScope scope(context.stream, std::int32_t(i), step.name.c_str(),
                           LayerRun::Phase::backward);
    const Buffers& b = step.buffers;
    if (b.sum) {
      context.stream.enter(std::int32_t(i), step.name.c_str(), Pass::input_grad);
      b.sum->forward(context.stream, b.parts, b.dy);
    }
    context.stream.enter(std::int32_t(i), step.name.c_str());
    context.more = b.more;
    const auto unwritten = first_step ? detail::unwritten_dx(step) : detail::Unwritten();
    step.placement.layer->backward(context, b.kept_x, b.kept_y, b.dy, b.dx);
    unwritten.check_none(step, "backward", "dx");
  }
  parameters_.check_reduced();
  context.stream.enter(-1);
}

/// What `step` reads and its layers did not keep.
LAMINA_INLINE void PlacedNetwork::recompute(Context& context, const Step& step) {
  if (step.recomputes.empty()) return;
  context.again = true;
  for (const int r : step.recomputes) {
    const Buffers& again = steps_[std::size_t(r)].buffers;
    run_layer(context, std::size_t(r), again.kept_x, again.kept_y, LayerRun::Phase::recompute);
  }
  context.again = false;
}

LAMINA_INLINE void PlacedNetwork::run_layer(Context& context, std::size_t i,
                                            std::span<const View> xs, const View& y,
                                            LayerRun::Phase phase) {
  const Step& step = steps_[i];
  if (!step.active() || step.absorbed()) return;
  context.layer = step.vertex;
  const auto index = std::int32_t(i);
  const LayerScope scope(context.stream, index, step.name.c_str(), phase);
  if (phase == LayerRun::Phase::recompute)
    context.stream.enter(index, step.name.c_str(), Pass::recompute);
  else
    context.stream.enter(index, step.name.c_str());
  const bool first_step = phase == LayerRun::Phase::forward && context.training && !waiting_ &&
                          !context.stream.silent();
  const auto unwritten = first_step ? detail::unwritten_y(y, xs) : detail::Unwritten();
  step.placement.layer->forward(context, xs, y);
  unwritten.check_none(step, "forward", "y");
}

}  // namespace lamina
