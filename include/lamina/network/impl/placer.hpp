// How layers are placed, and what is inserted between them.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/base/naming.hpp>
#include <lamina/base/pattern.hpp>
#include <lamina/layers/alias.hpp>
#include <lamina/layers/reorder.hpp>
#include <lamina/layers/reshard.hpp>
#include <lamina/network/detail/placer.hpp>
#include <lamina/network/detail/title.hpp>

#include <algorithm>

namespace lamina::detail {

LAMINA_INLINE std::vector<Step> Placer::steps() {
  for (int i = 0; i < int(network_.graph().size()); ++i) {
    Step step = i == 0                           ? place_input()
                : fusion_.of(i).absorbed_by >= 0 ? place_absorbed(i)
                                                 : place_vertex(i);
    step.output.has_gradient = options_.training && step.needs_grad;
    step_of_.push_back(int(steps_.size()));
    steps_.push_back(std::move(step));
  }
  return std::move(steps_);
}

LAMINA_INLINE Step Placer::place_input() {
  const Network::Vertex& v = network_.graph()[0];
  Step step{.kind = Step::Kind::input, .name = v.name};
  Shape whole = v.shape;
  whole.n = options_.batch;
  const Split& split = options_.splits[0];
  step.blocks = Blocks::of(whole, split, Axis::batch, options_.ranks.size());
  const auto me = std::size_t(options_.ranks.rank());
  step.output =
      spec_of({step.blocks.box[me].shape(), options_.dtype.compute, {}}, step.blocks, split);
  return step;
}

/// `trained`: whether its cost says that some are.
LAMINA_INLINE void Placer::check_parameters(const Step& step, bool trained) {
  std::vector<std::string> names;
  for (const Parameter* p : step.parameters()) {
    check(!p->trained || trained, "its cost counts no parameters, but ", p->name,
          " is trained: expected Cost::parameters above zero");
    check(std::ranges::find(names, p->name) == names.end(), "two parameters are named '", p->name,
          "': files could not tell them apart");
    detail::check_one_line("parameter", p->name);
    names.push_back(p->name);
  }
}

LAMINA_INLINE Step Placer::place_vertex(int vertex) {
  const Network::Vertex& v = network_.graph()[std::size_t(vertex)];
  const Split& split = options_.splits[std::size_t(vertex)];
  const Site& site = site_of(split);
  const int ranks = options_.ranks.size();
  const Fusion::Role& role = fusion_.of(vertex);
  Step step{.layer = v.layer.get(), .name = v.name, .vertex = vertex};
  step.epilogue = role.epilogue;
  step.input_shapes = network_.input_shapes(v, options_.batch);
  step.output.split = split;
  for (const int input : v.inputs) step.inputs.push_back(step_of_[std::size_t(input)]);
  for (std::size_t k = 0; k < step.inputs.size(); ++k)
    step.inputs[k] =
        insert_reshard(step, k, v.layer->input_blocks(k, step.input_shapes, split, ranks));
  step.blocks = v.layer->output_blocks(step.input_shapes, split, ranks);
  if (role.added >= 0) {
    step.inputs.push_back(step_of_[std::size_t(role.added)]);
    step.inputs.back() = insert_reshard(step, step.inputs.size() - 1, step.blocks);
  }
  // Whether, not how many: so without a split, which would have it count messages.
  const bool trained = v.layer->cost(step.input_shapes, {}, options_.dtype.compute).parameters > 0;
  if (site.active()) {
    std::vector<Spec> xs;
    for (const int input : step.inputs) {
      xs.push_back(steps_[std::size_t(input)].output);
      xs.back().split = split;
    }
    naming(title(v), [&] {
      step.placement =
          role.epilogue ? v.layer->place_with(role.epilogue, xs, site) : v.layer->place(xs, site);
      check(step.active(), "place() gave no PlacedLayer");
      check_placement(step, xs, step.blocks.box[std::size_t(options_.ranks.rank())].shape());
      check_parameters(step, trained);
      const Form &y = step.placement.output, found = StepNumbers::form();
      check(!v.layer->is_loss() || (y.shape == found.shape && y.dtype == found.dtype), "its y is ",
            y.text(), ": expected ", found.text(), " of a loss (Layer::is_loss)");
    });
    insert_reorders(step, site);
  } else {
    take_no_part(step);
  }
  step.output = spec_of(step.placement.output, step.blocks, split);
  if (trained && options_.training && !options_.frozen.empty()) freeze(step);
  step.needs_grad = trained && step.trained > 0;
  for (const int input : step.inputs) step.needs_grad |= steps_[std::size_t(input)].needs_grad;
  return step;
}

/// Whether place() says what output() and the inputs say. Their shapes are left out: a halo may
/// have changed them.
LAMINA_INLINE void Placer::check_placement(const Step& step, const std::vector<Spec>& xs,
                                           const Shape& y) {
  const Placement& p = step.placement;
  check(p.output.shape == y, "place() makes y ", p.output.shape, ": expected ", y,
        ", as output() and output_blocks() say");
  check(p.inputs.empty() || p.inputs.size() == xs.size(), "place() says how ", p.inputs.size(),
        " inputs lie: expected all ", xs.size(), " or none");
  for (std::size_t k = 0; k < p.inputs.size(); ++k)
    check(p.inputs[k].dtype == xs[k].dtype, "place() wants input ", k, " in ",
          name(p.inputs[k].dtype), ": expected ", name(xs[k].dtype), ", as it comes");
}

/// A layer that another one's kernel has absorbed: its y is what lies before it already. What
/// scales keeps its parameters; an activation computes its own gradient where the kernel does not.
LAMINA_INLINE Step Placer::place_absorbed(int vertex) {
  const Network::Vertex& v = network_.graph()[std::size_t(vertex)];
  const Split& split = options_.splits[std::size_t(vertex)];
  const Site& site = site_of(split);
  const int by = fusion_.of(vertex).absorbed_by;
  const auto before = std::find_if(v.inputs.begin(), v.inputs.end(), [&](int input) {
    return input == by || fusion_.of(input).absorbed_by == by;
  });
  Step step{.layer = v.layer.get(), .name = v.name, .vertex = vertex};
  step.absorber = step_of_[std::size_t(by)];
  step.inputs = {step_of_[std::size_t(*before)]};
  step.input_shapes = network_.input_shapes(v, options_.batch);
  const Step& absorber = steps_[std::size_t(step.absorber)];
  step.blocks = absorber.blocks;
  if (site.active()) {
    const Spec& x = steps_[std::size_t(step.inputs[0])].output;
    const Epilogue work = *v.layer->as_epilogue();
    const bool nothing_left = !work.scale && (absorber.layer->fuses_backward() || !work.activation);
    step.placement = nothing_left ? place_alias(x, x) : v.layer->place({&x, 1}, site);
    if (work.scale) step.placement.alias = true, step.placement.output = x.form();  // runs nothing
    check(step.placement.output == x.form(), title(v), ": cannot be absorbed in layout ", x);
  } else {
    take_no_part(step);
  }
  step.output = spec_of(step.placement.output, step.blocks, split);
  step.needs_grad = steps_[std::size_t(step.inputs[0])].needs_grad;
  return step;
}

LAMINA_INLINE void Placer::take_no_part(Step& step) const {
  step.placement.output = {{0, 0, 0, 0}, options_.dtype.compute, {}};
  step.placement.reads_x = false;
}

/// What is frozen of its parameters. Those who take no part learn how much that is. Collective.
LAMINA_INLINE void Placer::freeze(Step& step) const {
  double all = 0, trained = 0;
  for (Parameter* p : step.parameters()) {
    if (!p->trained) continue;
    const auto size = double((p->block.empty() ? p->form.shape : p->whole).size());
    p->frozen = matches_any(options_.frozen, text(step.name, '.', p->name));
    p->trained = !p->frozen;
    all += size, trained += p->frozen ? 0 : size;
  }
  step.trained = options_.ranks.all_reduce_value(all > 0 ? trained / all : 0, ReduceOp::max);
}

/// Sites are made once per split: their groups are. Collective.
LAMINA_INLINE const Site& Placer::site_of(const Split& split) {
  for (const auto& site : sites_)
    if (site->split() == split) return *site;
  sites_.push_back(std::make_unique<Site>(*options_.backend, split, options_.ranks,
                                          options_.training, options_.dtype, options_.fuse,
                                          options_.unlike_backends));
  return *sites_.back();
}

/// What flows out of a step on this rank.
LAMINA_INLINE Spec Placer::spec_of(const Form& form, const Blocks& blocks,
                                   const Split& split) const {
  Spec spec;
  static_cast<Form&>(spec) = form;
  spec.whole = blocks.whole, spec.split = split;
  spec.box = blocks.box[std::size_t(options_.ranks.rank())];
  return spec;
}

/// The step that gives `step` its input as it wants it: the one that makes it, or a reshard behind
/// that, shared by all who want the same.
LAMINA_INLINE int Placer::insert_reshard(const Step& step, std::size_t input,
                                         const Blocks& wanted) {
  const int from = step.inputs[input];
  const Blocks& held = steps_[std::size_t(from)].blocks;
  if (held.same(wanted)) return from;
  // A rank that holds some of it may have to reorder that first, and one that holds nothing has
  // not; but all have to share alike.
  const auto source = [&](const Step& s) {
    const Step& before = steps_[std::size_t(s.inputs[0])];
    return before.kind == Step::Kind::reorder ? before.inputs[0] : s.inputs[0];
  };
  for (std::size_t s = 0; s < steps_.size(); ++s)
    if (steps_[s].kind == Step::Kind::reshard && source(steps_[s]) == from &&
        steps_[s].blocks.same(wanted))
      return int(s);
  return insert_step(step, input, Step::Kind::reshard, std::make_unique<Reshard>(held, wanted),
                     wanted, step.output.split,
                     site_of({.batch = options_.ranks.size()}));  // as Step::split() has it
}

/// Where `step` wants an input in another layout: a reorder, shared by all who want the same.
LAMINA_INLINE void Placer::insert_reorders(Step& step, const Site& site) {
  const auto& wanted = step.placement.inputs;
  for (std::size_t i = 0; i < step.inputs.size() && i < wanted.size(); ++i) {
    const int from = step.inputs[i];
    const Spec& given = steps_[std::size_t(from)].output;
    if (wanted[i].layout == given.layout || given.box.empty()) continue;
    const auto same = std::find_if(steps_.begin(), steps_.end(), [&](const Step& s) {
      return s.kind == Step::Kind::reorder && s.inputs[0] == from &&
             s.output.layout == wanted[i].layout;
    });
    step.inputs[i] =
        same != steps_.end()
            ? int(same - steps_.begin())
            : insert_step(step, i, Step::Kind::reorder, std::make_unique<Reorder>(wanted[i]),
                          steps_[std::size_t(from)].blocks, given.split, site);
  }
}

/// Adds a step that stands between `step` and its input.
LAMINA_INLINE int Placer::insert_step(const Step& step, std::size_t input, Step::Kind kind,
                                      std::unique_ptr<Layer> layer, Blocks blocks, Split split,
                                      const Site& site) {
  const int from = step.inputs[input];
  const char* suffix = kind == Step::Kind::reshard ? ".reshard" : ".reorder";
  Step between{.kind = kind,
               .layer = layer.get(),
               .name = text(step.name, suffix, input ? text(input) : ""),
               .vertex = step.vertex,
               .inputs = {from},
               .input_shapes = {steps_[std::size_t(from)].blocks.whole},
               .blocks = std::move(blocks)};
  between.placement = layer->place({&steps_[std::size_t(from)].output, 1}, site);
  insert_reorders(between, site);
  between.output = spec_of(between.placement.output, between.blocks, split);
  between.needs_grad = steps_[std::size_t(from)].needs_grad;
  between.output.has_gradient = options_.training && between.needs_grad;
  inserted_.push_back(std::move(layer));
  steps_.push_back(std::move(between));
  return int(steps_.size()) - 1;
}

}  // namespace lamina::detail
