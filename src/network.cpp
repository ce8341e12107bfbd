// How a network is placed, and how it runs.
#include <lamina/network/network.hpp>

#include <algorithm>

namespace lamina {

namespace {

/// Runs `work`; an Error that passes by gets the layer's name in front.
template <class Work>
decltype(auto) naming(const std::string& name, std::string_view type, Work&& work) {
  try {
    return work();
  } catch (const Error& e) {
    throw Error(text(name, " (", type, "): ", e.what()), e.where());
  }
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

Node Network::append(std::vector<int> inputs, std::unique_ptr<Layer> layer, std::string name) {
  check(steps_.empty(), "the network is placed: no layer can be added any more");
  if (name.empty()) name = unique_name(layer->type());
  for (const Vertex& v : graph_) check(v.name != name, "two layers are named '", name, "'");
  Vertex vertex{std::move(layer), std::move(name), std::move(inputs), {}};
  vertex.shape = naming(vertex.name, vertex.layer->type(),
                        [&] { return vertex.layer->output(input_shapes(vertex, 1)); });
  graph_.push_back(std::move(vertex));
  return {this, int(graph_.size()) - 1};
}

void Network::prepare(PlaceOptions options) {
  check(steps_.empty(), "the network is placed already");
  check(graph_.size() > 1, "the network has no layers");
  check(options.backend != nullptr, "no back end was given");
  check(options.backend->supports(options.dtype), "back end ", options.backend->name(),
        " does not compute in ", name(options.dtype));
  const int ranks = options.ranks.size();
  check(options.batch >= ranks, "a global batch of ", options.batch, " is smaller than the ", ranks,
        " ranks: expected at least one sample per rank");
  if (options.splits.empty()) options.splits.assign(graph_.size(), Split{.batch = ranks});
  check(options.splits.size() == graph_.size(), "expected a split for each of the ", graph_.size(),
        " vertices of the network, got ", options.splits.size());
  check(options.splits[0] == Split{.batch = ranks}, "the input is split by batch over all ranks");
  for (std::size_t i = 1; i < graph_.size(); ++i)
    naming(graph_[i].name, graph_[i].layer->type(), [&] {
      const std::vector<Shape> xs = input_shapes(graph_[i], options.batch);
      const std::string why = why_illegal(*graph_[i].layer, xs, options.splits[i], ranks);
      check(why.empty(), why);
    });
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
  sites_.push_back(std::make_unique<Site>(*options_.backend, split, options_.ranks));
  return *sites_.back();
}

/// Makes the steps in forward order; layouts propagate along the edges.
void Network::place_layers() {
  const int ranks = options_.ranks.size();
  const auto me = std::size_t(options_.ranks.rank());
  const auto spec_of = [&](Form form, const Blocks& blocks, const Split& split) {
    Spec spec;
    static_cast<Form&>(spec) = std::move(form);
    spec.whole = blocks.whole, spec.split = split, spec.box = blocks.box[me];
    return spec;
  };

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
        step.placement = naming(v.name, v.layer->type(), [&] { return v.layer->place(xs, site); });
        insert_reorders(step, site);
      } else {
        step.placement.output = {{0, 0, 0, 0}, options_.dtype, {}};
        step.placement.reads_x = false;
      }
      step.output = spec_of(step.placement.output, step.blocks, split);
      for (const Parameter* p : v.layer->parameters()) step.needs_grad |= p->trained;
      for (const int input : step.inputs) step.needs_grad |= steps_[std::size_t(input)].needs_grad;
    }
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
  auto layer = std::make_unique<Reshard>(held, wanted);
  Step reshard;
  reshard.layer = layer.get();
  reshard.name = text(step.name, ".reshard", input ? text(input) : "");
  reshard.vertex = step.vertex;
  reshard.inputs = {from};
  reshard.input_shapes = {step.input_shapes[input]};
  reshard.blocks = wanted;
  const Spec& given = steps_[std::size_t(from)].output;
  const Site& site = site_of(options_.splits[0]);  // all ranks
  reshard.placement = layer->place({&given, 1}, site);
  insert_reorders(reshard, site);
  static_cast<Form&>(reshard.output) = reshard.placement.output;
  reshard.output.whole = wanted.whole, reshard.output.split = step.output.split;
  reshard.output.box = wanted.box[std::size_t(options_.ranks.rank())];
  reshard.needs_grad = steps_[std::size_t(from)].needs_grad;
  inserted_.push_back(std::move(layer));
  steps_.push_back(std::move(reshard));
  return int(steps_.size()) - 1;
}

/// Where `step` wants an input in another layout: a reorder, shared by all who want the same.
void Network::insert_reorders(Step& step, const Site& site) {
  const auto& wanted = step.placement.inputs;
  for (std::size_t i = 0; i < step.inputs.size() && i < wanted.size(); ++i) {
    const int from = step.inputs[i];
    const Step& producer = steps_[std::size_t(from)];
    const Spec given = producer.output;
    if (wanted[i].layout == given.layout || given.box.empty()) continue;
    int at = -1;
    for (std::size_t s = 0; s < steps_.size(); ++s)
      if (steps_[s].layer && steps_[s].layer->type() == "Reorder" && steps_[s].inputs[0] == from &&
          steps_[s].output.layout == wanted[i].layout)
        at = int(s);
    if (at < 0) {
      auto layer = std::make_unique<Reorder>(wanted[i]);
      Step reorder;
      reorder.layer = layer.get();
      reorder.name = text(step.name, ".reorder", i ? text(i) : "");
      reorder.vertex = step.vertex;
      reorder.inputs = {from};
      reorder.input_shapes = {step.input_shapes[i]};
      reorder.blocks = producer.blocks;
      reorder.placement = layer->place({&given, 1}, site);
      reorder.output = given;
      reorder.output.layout = wanted[i].layout;
      reorder.needs_grad = producer.needs_grad;
      inserted_.push_back(std::move(layer));
      at = int(steps_.size());
      steps_.push_back(std::move(reorder));
    }
    step.inputs[i] = at;
  }
}

/// Gives x, y, dy and dx of every step an address. Forward of step i happens at time i, its
/// backward at time 2 * steps - i.
void Network::plan_activations() {
  const int count = int(steps_.size()), end = 2 * count + 1;
  auto& storages = arena_.storages;
  auto &y = arena_.y, &dy = arena_.dy;
  auto &dx = arena_.dx, &parts = arena_.parts;
  const auto backward = [&](int i) { return 2 * count - i; };
  int owner = 0;  // the step that brings what is allocated
  const auto allocate = [&](const Form& form, int time) {
    storages.push_back({form.bytes(), time, time});
    steps_[std::size_t(owner)].memory.activations += form.bytes();
    return int(storages.size()) - 1;
  };
  const auto use = [&](int storage, int time) {
    auto& s = storages[std::size_t(storage)];
    s.first = std::min(s.first, time), s.last = std::max(s.last, time);
  };
  struct Edge {
    int step, slot;
  };
  std::vector<std::vector<Edge>> consumers(steps_.size());
  for (int i = 0; i < count; ++i)
    for (int k = 0; k < int(steps_[std::size_t(i)].inputs.size()); ++k)
      consumers[std::size_t(steps_[std::size_t(i)].inputs[std::size_t(k)])].push_back({i, k});

  // Forward: y of each step, over its input where the layer can work in place.
  y.resize(steps_.size());
  for (int i = 0; i < count; ++i) {
    const Step& step = steps_[std::size_t(i)];
    const Placement& p = step.placement;
    owner = i;
    const int from = step.inputs.empty() ? -1 : step.inputs[0];
    bool over = false;
    if (p.in_place && from > 0) {
      const Placement& producer = steps_[std::size_t(from)].placement;
      over = step.output.form() == steps_[std::size_t(from)].output.form() && !p.reads_x &&
             !producer.reads_y && !producer.alias && consumers[std::size_t(from)].size() == 1;
    }
    y[std::size_t(i)] = p.alias || over ? y[std::size_t(from)] : allocate(step.output, i);
    use(y[std::size_t(i)], i);
    for (const int input : step.inputs) use(y[std::size_t(input)], i);
    if (!options_.training) continue;
    if (p.reads_y) use(y[std::size_t(i)], backward(i));
    if (p.reads_x)
      for (const int input : step.inputs) use(y[std::size_t(input)], backward(i));
  }
  use(y[0], 0);
  use(y.back(), end);  // the caller reads it

  // Backward: a gradient per edge; those of one value are added up where it has several consumers.
  dy.assign(steps_.size(), -1), dx.resize(steps_.size()), parts.resize(steps_.size());
  std::vector<bool> shared(
      storages.size());  // dy that several edges pass on: not to be overwritten
  for (int i = count - 1; i >= 0 && options_.training; --i) {
    Step& step = steps_[std::size_t(i)];
    owner = i;
    dx[std::size_t(i)].assign(step.inputs.size(), -1);
    if (!step.needs_grad) continue;
    auto& mine = parts[std::size_t(i)];
    for (const Edge& e : consumers[std::size_t(i)])
      if (const int part = dx[std::size_t(e.step)][std::size_t(e.slot)]; part >= 0)
        mine.push_back(part);
    for (const int part : mine) use(part, backward(i));
    if (mine.size() == 1) {
      dy[std::size_t(i)] = mine[0];
      mine.clear();
    } else if (mine.size() > 1) {
      dy[std::size_t(i)] = allocate(step.output, backward(i));
    }
    const int given = dy[std::size_t(i)];
    shared.resize(storages.size());
    const Placement& p = step.placement;
    int passed = 0;
    for (std::size_t k = 0; k < step.inputs.size(); ++k) {
      const Step& input = steps_[std::size_t(step.inputs[k])];
      if (!input.needs_grad) continue;
      const bool same = given >= 0 && (p.alias || p.passes_gradient);
      const bool over = given >= 0 && p.in_place && !shared[std::size_t(given)] &&
                        input.output.form() == step.output.form();
      dx[std::size_t(i)][k] = same || over ? given : allocate(input.output, backward(i));
      passed += same;
    }
    shared.resize(storages.size());
    if (passed > 1) shared[std::size_t(given)] = true;
  }

  memory_.activations = (plan(storages) + 7) / 8 * 8;
  std::size_t scratch = 0;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    Step& step = steps_[i];
    Placement& p = step.placement;
    if (!parts[i].empty() && !step.output.box.empty()) {
      const std::vector<Form> forms(parts[i].size(), step.output);
      step.sum = options_.backend->sum(forms);
      p.workspace += step.sum->workspace, p.scratch = std::max(p.scratch, step.sum->scratch);
    }
    if (std::any_of(dx[i].begin(), dx[i].end(), [](int part) { return part >= 0; }))
      p.workspace += p.dx_workspace;
    step.memory.workspace = p.workspace - p.messages + p.scratch;
    step.memory.messages = p.messages;
    memory_.workspace += p.workspace - p.messages, memory_.messages += p.messages;
    scratch = std::max(scratch, p.scratch);
  }
  memory_.workspace += scratch;  // one buffer serves all kernels, one after the other
}

void Network::allocate_activations() {
  const auto &y = arena_.y, &dy = arena_.dy;
  const auto &dx = arena_.dx, &parts = arena_.parts;
  activations_ = Tensor({1, std::int64_t(memory_.activations / 8), 1, 1}, DType::f64);
  const auto view = [&](int storage, const Form& form) {
    if (storage < 0) return View();
    return View(activations_.as<char>() + arena_.storages[std::size_t(storage)].offset, form);
  };
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    Step& step = steps_[i];
    step.y = view(y[i], step.output);
    step.dy = view(dy[i], step.output);
    for (std::size_t k = 0; k < step.inputs.size(); ++k) {
      const auto input = std::size_t(step.inputs[k]);
      step.x.push_back(view(y[input], steps_[input].output));
      step.dx.push_back(options_.training ? view(dx[i][k], steps_[input].output) : View());
    }
    for (const int part : parts[i]) step.parts.push_back(view(part, step.output));
  }
}

void Network::forward(Context& context) {
  for (std::size_t i = 1; i < steps_.size(); ++i) {
    Step& step = steps_[i];
    if (!step.active) continue;
    context.layer = step.vertex;
    const LayerScope scope(context.stream, std::int32_t(i), step.name.c_str(),
                           LayerRun::Phase::forward);
    context.stream.enter(std::int32_t(i), step.name.c_str());
    step.layer->forward(context, step.x, step.y);
  }
  context.stream.enter(-1);
}

void Network::backward(Context& context) {
  check(options_.training, "the network was placed for inference: there are no gradients");
  for (auto i = steps_.size(); i-- > 1;) {
    Step& step = steps_[i];
    if (!step.needs_grad || !step.active) continue;
    context.layer = step.vertex;
    const LayerScope scope(context.stream, std::int32_t(i), step.name.c_str(),
                           LayerRun::Phase::backward);
    if (step.sum) {
      context.stream.enter(std::int32_t(i), Pass::input_grad);
      step.sum->forward(context.stream, step.parts, step.dy);
    }
    context.stream.enter(std::int32_t(i), step.name.c_str());
    step.layer->backward(context, step.x, step.y, step.dy, step.dx);
  }
  context.stream.enter(-1);
}

}  // namespace lamina
