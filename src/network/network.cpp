// How a network is placed, and how it runs.
#include <lamina/base/naming.hpp>
#include <lamina/network/network.hpp>

#include <algorithm>

namespace lamina {

namespace {

std::string title(const std::string& name, const Layer& layer) {
  return text(name, " (", layer.type(), ')');
}

}  // namespace

const Shape& Node::shape() const { return network_->graph()[std::size_t(index_)].shape; }

std::string Network::unique_name(std::string_view type) const {
  std::string base;  // "BatchNorm" -> "batchnorm"
  for (const char c : type) base += char(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  for (int i = 1;; ++i) {
    const std::string name = text(base, i);
    if (std::none_of(graph_.begin(), graph_.end(), [&](auto& v) { return v.name == name; }))
      return name;
  }
}

Network::Network(Shape sample) {
  sample.n = 1;
  check(sample.c > 0 && sample.h > 0 && sample.w > 0, "input shape ", sample, " is empty");
  graph_.push_back({nullptr, "input", {}, sample});
}

// Here, so that not every program has to compile them.
Network::Network(Network&&) noexcept = default;
Network& Network::operator=(Network&&) noexcept = default;
Network::~Network() = default;

std::vector<Shape> Network::input_shapes(const Vertex& v, std::int64_t n) const {
  std::vector<Shape> xs;
  for (const int i : v.inputs) {
    xs.push_back(graph_[std::size_t(i)].shape);
    xs.back().n = n;
  }
  return xs;
}

Node Network::append(std::vector<int> inputs, std::unique_ptr<Layer> layer, std::string name) {
  check(steps_.empty(), "the network is placed: no layer can be added any more");
  if (name.empty()) name = unique_name(layer->type());
  for (const Vertex& v : graph_) check(v.name != name, "two layers are named '", name, "'");
  Vertex vertex{std::move(layer), std::move(name), std::move(inputs), {}};
  vertex.shape = naming(title(vertex.name, *vertex.layer),
                        [&] { return vertex.layer->output(input_shapes(vertex, 1)); });
  graph_.push_back(std::move(vertex));
  return {this, int(graph_.size()) - 1};
}

Split input_split(std::int64_t batch, int ranks) {
  check(batch > 0, "the global batch must be positive, got ", batch);
  return {.batch = int(std::min<std::int64_t>(batch, ranks))};
}

void check_batch(std::int64_t batch, int ranks) {
  check(batch >= ranks, "a global batch of ", batch, " is smaller than the ", ranks,
        " ranks: expected at least one sample per rank, or a plan that cuts something else");
}

/// Throws Error naming a layer whose output is for nobody.
void Network::check_ends() const {
  std::vector<bool> read(graph_.size());
  for (const Vertex& v : graph_)
    for (const int input : v.inputs) read[std::size_t(input)] = true;
  for (std::size_t i = 1; i + 1 < graph_.size(); ++i)
    check(read[i], title(graph_[i].name, *graph_[i].layer),
          ": no layer reads its output; expected one that does, or that it is the last layer, as ",
          title(graph_.back().name, *graph_.back().layer), " is");
}

void Network::prepare(PlaceOptions options) {
  check(steps_.empty(), "the network is placed already");
  check(graph_.size() > 1, "the network has no layers");
  check_ends();
  check(options.backend != nullptr, "no back end was given");
  compare_ranks(options);
  check(options.backend->supports(options.dtype), "back end ", options.backend->name(),
        " does not compute in ", name(options.dtype));
  const int ranks = options.ranks.size();
  const Split input = input_split(options.batch, ranks);
  if (options.splits.empty()) {
    check_batch(options.batch, ranks);
    options.splits.assign(graph_.size(), input);
  }
  check(options.splits.size() == graph_.size(), "expected a split for each of the ", graph_.size(),
        " vertices of the network, got ", options.splits.size());
  check(options.splits[0] == input, "the input is split by ", input, ", not by ",
        options.splits[0]);
  for (std::size_t i = 1; i < graph_.size(); ++i)
    naming(title(graph_[i].name, *graph_[i].layer), [&] {
      const std::vector<Shape> xs = input_shapes(graph_[i], options.batch);
      const std::string why = why_illegal(*graph_[i].layer, xs, options.splits[i], ranks);
      check(why.empty(), why);
    });
  if (options.recompute.empty()) options.recompute.assign(graph_.size(), false);
  check(options.recompute.size() == graph_.size(), "expected for each of the ", graph_.size(),
        " vertices of the network whether it is recomputed, got ", options.recompute.size());
  options_ = std::move(options);
  rows_ = part(options_.batch, ranks, options_.ranks.rank());
  place_layers();
  plan_activations();
  plan_parameters();
}

void Network::allocate() {
  check(!steps_.empty() && !placed_, "expected a network that is prepared, and not placed yet");
  allocate_activations();
  allocate_parameters();
  placed_ = true;
}

/// Sites are made once per split: their groups are. Collective.
const Site& Network::site_of(const Split& split) {
  for (const auto& site : sites_)
    if (site->split() == split) return *site;
  sites_.push_back(
      std::make_unique<Site>(*options_.backend, split, options_.ranks, options_.training));
  return *sites_.back();
}

/// What flows out of a step on this rank.
Spec Network::spec_of(const Form& form, const Blocks& blocks, const Split& split) const {
  Spec spec;
  static_cast<Form&>(spec) = form;
  spec.whole = blocks.whole, spec.split = split;
  spec.box = blocks.box[std::size_t(options_.ranks.rank())];
  return spec;
}

/// Makes the steps in forward order; layouts propagate along the edges.
void Network::place_layers() {
  const int ranks = options_.ranks.size();
  std::vector<int> step_of(graph_.size());
  for (std::size_t i = 0; i < graph_.size(); ++i) {
    const Vertex& v = graph_[i];
    const Split& split = options_.splits[i];
    const Site& site = site_of(split);
    Step step;
    step.layer = v.layer.get(), step.name = v.name, step.vertex = int(i);
    if (!v.layer) {
      Shape whole = v.shape;
      whole.n = options_.batch;
      step.blocks = Blocks::of(whole, split, Axis::batch, ranks);
      const auto me = std::size_t(options_.ranks.rank());
      step.output = spec_of({step.blocks.box[me].shape(), options_.dtype, {}}, step.blocks, split);
    } else {
      step.active = site.active();
      step.input_shapes = input_shapes(v, options_.batch);
      step.output.split = split;
      for (const int input : v.inputs) step.inputs.push_back(step_of[std::size_t(input)]);
      for (std::size_t k = 0; k < step.inputs.size(); ++k)
        step.inputs[k] =
            insert_reshard(step, k, v.layer->input_blocks(k, step.input_shapes, split, ranks));
      step.blocks = v.layer->output_blocks(step.input_shapes, split, ranks);
      if (step.active) {
        std::vector<Spec> xs;
        for (const int input : step.inputs) {
          xs.push_back(steps_[std::size_t(input)].output);
          xs.back().split = split;
        }
        step.placement = naming(title(v.name, *v.layer), [&] { return v.layer->place(xs, site); });
        insert_reorders(step, site);
      } else {
        step.placement.output = {{0, 0, 0, 0}, options_.dtype, {}};
        step.placement.reads_x = false;
      }
      step.output = spec_of(step.placement.output, step.blocks, split);
      for (const Parameter* p : v.layer->parameters()) step.needs_grad |= p->trained;
      for (const int input : step.inputs) step.needs_grad |= steps_[std::size_t(input)].needs_grad;
    }
    step.output.has_gradient = options_.training && step.needs_grad;
    step_of[i] = int(steps_.size());
    steps_.push_back(std::move(step));
  }
}

/// The step that gives `step` its input as it wants it: the one that makes it, or a reshard behind
/// that, shared by all who want the same.
int Network::insert_reshard(const Step& step, std::size_t input, const Blocks& wanted) {
  const int from = step.inputs[input];
  const Blocks& held = steps_[std::size_t(from)].blocks;
  if (held.same(wanted)) return from;
  for (std::size_t s = 0; s < steps_.size(); ++s)
    if (steps_[s].layer && steps_[s].layer->type() == "Reshard" && steps_[s].inputs[0] == from &&
        steps_[s].blocks.same(wanted))
      return int(s);
  return insert_step(step, input, std::make_unique<Reshard>(held, wanted), ".reshard", wanted,
                     step.output.split, site_of({.batch = options_.ranks.size()}));  // all ranks
}

/// Where `step` wants an input in another layout: a reorder, shared by all who want the same.
void Network::insert_reorders(Step& step, const Site& site) {
  const auto& wanted = step.placement.inputs;
  for (std::size_t i = 0; i < step.inputs.size() && i < wanted.size(); ++i) {
    const int from = step.inputs[i];
    const Spec& given = steps_[std::size_t(from)].output;
    if (wanted[i].layout == given.layout || given.box.empty()) continue;
    const auto same = std::find_if(steps_.begin(), steps_.end(), [&](const Step& s) {
      return s.layer && s.layer->type() == "Reorder" && s.inputs[0] == from &&
             s.output.layout == wanted[i].layout;
    });
    step.inputs[i] = same != steps_.end()
                         ? int(same - steps_.begin())
                         : insert_step(step, i, std::make_unique<Reorder>(wanted[i]), ".reorder",
                                       steps_[std::size_t(from)].blocks, given.split, site);
  }
}

/// Adds a step that stands between `step` and its input.
int Network::insert_step(const Step& step, std::size_t input, std::unique_ptr<Layer> layer,
                         std::string_view kind, Blocks blocks, Split split, const Site& site) {
  const int from = step.inputs[input];
  Step between;
  between.layer = layer.get();
  between.name = text(step.name, kind, input ? text(input) : "");
  between.vertex = step.vertex;
  between.inputs = {from};
  between.input_shapes = {step.input_shapes[input]};
  between.blocks = std::move(blocks);
  between.placement = layer->place({&steps_[std::size_t(from)].output, 1}, site);
  insert_reorders(between, site);
  between.output = spec_of(between.placement.output, between.blocks, split);
  between.needs_grad = steps_[std::size_t(from)].needs_grad;
  between.output.has_gradient = options_.training && between.needs_grad;
  inserted_.push_back(std::move(layer));
  steps_.push_back(std::move(between));
  return int(steps_.size()) - 1;
}

void Network::forward(Context& context) {
  for (std::size_t i = 1; i < steps_.size(); ++i)
    run_forward(context, i, steps_[i].x, steps_[i].y, LayerRun::Phase::forward);
  context.stream.enter(-1);
}

void Network::backward(Context& context) {
  check(options_.training, "the network was placed for inference: there are no gradients");
  for (auto i = steps_.size(); i-- > 1;) {
    Step& step = steps_[i];
    recompute(context, step);
    if (!step.needs_grad || !step.active) continue;
    context.layer = step.vertex;
    const LayerScope scope(context.stream, std::int32_t(i), step.name.c_str(),
                           LayerRun::Phase::backward);
    if (step.sum) {
      context.stream.enter(std::int32_t(i), step.name.c_str(), Pass::input_grad);
      step.sum->forward(context.stream, step.parts, step.dy);
    }
    context.stream.enter(std::int32_t(i), step.name.c_str());
    step.layer->backward(context, step.kept_x, step.kept_y, step.dy, step.dx);
  }
  context.stream.enter(-1);
}

/// What `step` reads and its layers did not keep.
void Network::recompute(Context& context, const Step& step) {
  if (step.recomputes.empty()) return;
  context.again = true;
  for (const int r : step.recomputes) {
    const Step& again = steps_[std::size_t(r)];
    run_forward(context, std::size_t(r), again.kept_x, again.kept_y, LayerRun::Phase::recompute);
  }
  context.again = false;
}

void Network::run_forward(Context& context, std::size_t i, std::span<const View> xs, const View& y,
                          LayerRun::Phase phase) {
  const Step& step = steps_[i];
  if (!step.active) return;
  context.layer = step.vertex;
  const auto index = std::int32_t(i);
  const LayerScope scope(context.stream, index, step.name.c_str(), phase);
  if (phase == LayerRun::Phase::recompute)
    context.stream.enter(index, step.name.c_str(), Pass::recompute);
  else
    context.stream.enter(index, step.name.c_str());
  step.layer->forward(context, xs, y);
}

}  // namespace lamina
