// Where activations and their gradients lie, how long they live, and which of them are computed
// twice.
#include <lamina/network/network.hpp>

#include <algorithm>

namespace lamina {

/// For each step, who reads y: the step, and which of its inputs.
std::vector<std::vector<Network::Edge>> Network::consumers() const {
  std::vector<std::vector<Edge>> consumers(steps_.size());
  for (int i = 0; i < int(steps_.size()); ++i)
    for (int k = 0; k < int(steps_[std::size_t(i)].inputs.size()); ++k)
      consumers[std::size_t(steps_[std::size_t(i)].inputs[std::size_t(k)])].push_back({i, k});
  return consumers;
}

/// Decides for each step that is not kept before whose backward its forward runs once more. Such a
/// forward may send, so all ranks must decide alike, although what backward reads depends on the
/// kernels that a rank chose: what one of them reads, all do. Collective.
void Network::plan_recomputation(const std::vector<std::vector<Edge>>& consumers) {
  const auto& marked = options_.recompute;
  if (!options_.training || std::find(marked.begin(), marked.end(), true) == marked.end()) return;
  constexpr char reads_x = 1, reads_y = 2;
  const auto inserted = [&](const Step& s) {
    return s.layer != graph_[std::size_t(s.vertex)].layer.get();
  };
  std::string reads(graph_.size(), '\0');
  for (const Step& s : steps_)
    if (!inserted(s))
      reads[std::size_t(s.vertex)] =
          char((s.placement.reads_x ? reads_x : 0) | (s.placement.reads_y ? reads_y : 0));
  for (const std::string& theirs : options_.ranks.all_gather_text(reads))
    for (std::size_t v = 0; v < reads.size(); ++v) reads[v] = char(reads[v] | theirs[v]);

  // What the network gives back stays. A reshard's output, too: moving costs more than keeping. A
  // reorder's or an alias is as good as what it is made of.
  std::vector<bool> dropped(steps_.size());
  for (std::size_t i = 1; i + 1 < steps_.size(); ++i) {
    const Step& s = steps_[i];
    const bool follows = s.placement.alias || s.layer->type() == "Reorder";
    dropped[i] = follows ? dropped[std::size_t(s.inputs[0])]
                         : marked[std::size_t(s.vertex)] && s.layer->type() != "Reshard";
  }
  std::vector<int> last(steps_.size(), -1);  // the step before whose backward it must be there
  for (auto i = steps_.size(); i-- > 1;) {
    if (!dropped[i]) continue;
    const Step& s = steps_[i];
    const auto read = [&](const Step& by, char what) {
      return by.needs_grad && !inserted(by) && (reads[std::size_t(by.vertex)] & what);
    };
    if (read(s, reads_y)) last[i] = int(i);
    for (const Edge& e : consumers[i]) {
      if (read(steps_[std::size_t(e.step)], reads_x)) last[i] = std::max(last[i], e.step);
      last[i] = std::max(last[i], last[std::size_t(e.step)]);
    }
  }
  for (std::size_t i = 1; i < steps_.size(); ++i) {
    steps_[i].recomputed = last[i] >= 0;
    if (last[i] >= 0) steps_[std::size_t(last[i])].recomputes.push_back(int(i));
  }
}

/// Gives x, y, dy and dx of every step an address. Forward of step i happens at time i, its
/// backward, and what that recomputes, at time 2 * steps - i.
void Network::plan_activations() {
  const int count = int(steps_.size()), end = 2 * count + 1;
  auto& storages = arena_.storages;
  auto &y = arena_.y, &kept = arena_.kept, &dy = arena_.dy;
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
  const auto consumers = this->consumers();
  plan_recomputation(consumers);

  // Forward: y of each step, over its input where the layer can work in place.
  y.resize(steps_.size());
  std::vector<bool> over(steps_.size());
  for (int i = 0; i < count; ++i) {
    const Step& step = steps_[std::size_t(i)];
    const Placement& p = step.placement;
    owner = i;
    const int from = step.inputs.empty() ? -1 : step.inputs[0];
    if (p.in_place && from > 0) {
      const Step& producer = steps_[std::size_t(from)];
      const Placement& q = producer.placement;
      over[std::size_t(i)] = step.output.form() == producer.output.form() && !p.reads_x &&
                             !q.reads_y && !q.alias && consumers[std::size_t(from)].size() == 1 &&
                             (!step.recomputed || producer.recomputed);  // else x is needed again
    }
    y[std::size_t(i)] =
        p.alias || over[std::size_t(i)] ? y[std::size_t(from)] : allocate(step.output, i);
    use(y[std::size_t(i)], i);
    for (const int input : step.inputs) use(y[std::size_t(input)], i);
  }
  use(y[0], 0);
  use(y.back(), end);  // the caller reads it

  // What backward sees of it: the same, or once more the same, later.
  kept = y;
  for (int k = count - 1; k >= 0 && options_.training; --k) {
    for (const int r : steps_[std::size_t(k)].recomputes) {
      const Step& step = steps_[std::size_t(r)];
      const auto at = std::size_t(r);
      if (step.placement.alias || over[at]) {
        kept[at] = kept[std::size_t(step.inputs[0])];
      } else {
        // Not one more activation of the step: the first is gone when this one comes.
        storages.push_back({step.output.bytes(), backward(k), backward(k)});
        kept[at] = int(storages.size()) - 1;
      }
      for (const int input : step.inputs) use(kept[std::size_t(input)], backward(k));
    }
  }
  for (int i = 0; i < count && options_.training; ++i) {
    const Step& step = steps_[std::size_t(i)];
    if (step.placement.reads_y) use(kept[std::size_t(i)], backward(i));
    if (step.placement.reads_x)
      for (const int input : step.inputs) use(kept[std::size_t(input)], backward(i));
  }

  // Backward: a gradient per edge; those of one value are added up where it has several consumers.
  dy.assign(steps_.size(), -1), dx.resize(steps_.size()), parts.resize(steps_.size());
  std::vector<bool> shared(storages.size());  // dy that several edges pass on: to be left as it is
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
      const bool in_place = given >= 0 && p.in_place && !shared[std::size_t(given)] &&
                            input.output.form() == step.output.form();
      dx[std::size_t(i)][k] = same || in_place ? given : allocate(input.output, backward(i));
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
  const auto &y = arena_.y, &kept = arena_.kept, &dy = arena_.dy;
  const auto &dx = arena_.dx, &parts = arena_.parts;
  activations_ = Tensor({1, std::int64_t(memory_.activations / 8), 1, 1}, DType::f64);
  const auto view = [&](int storage, const Form& form) {
    if (storage < 0) return View();
    return View(activations_.as<char>() + arena_.storages[std::size_t(storage)].offset, form);
  };
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    Step& step = steps_[i];
    step.y = view(y[i], step.output), step.kept_y = view(kept[i], step.output);
    step.dy = view(dy[i], step.output);
    for (std::size_t k = 0; k < step.inputs.size(); ++k) {
      const auto input = std::size_t(step.inputs[k]);
      step.x.push_back(view(y[input], steps_[input].output));
      step.kept_x.push_back(view(kept[input], steps_[input].output));
      step.dx.push_back(options_.training ? view(dx[i][k], steps_[input].output) : View());
    }
    for (const int part : parts[i]) step.parts.push_back(view(part, step.output));
  }
}

}  // namespace lamina
