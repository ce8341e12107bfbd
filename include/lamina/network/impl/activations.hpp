// Which activations are computed twice, where all of them and their gradients lie, and how long
// they live.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/network/activations.hpp>

#include <algorithm>
#include <utility>

namespace lamina {

LAMINA_INLINE std::vector<std::vector<Reader>> readers(const std::vector<Step>& steps) {
  std::vector<std::vector<Reader>> readers(steps.size());
  for (int i = 0; i < int(steps.size()); ++i)
    for (int k = 0; k < int(steps[std::size_t(i)].inputs.size()); ++k)
      readers[std::size_t(steps[std::size_t(i)].inputs[std::size_t(k)])].push_back({i, k});
  return readers;
}

LAMINA_INLINE void plan_recomputation(std::vector<Step>& steps, const std::vector<bool>& marked,
                                      const std::string& reads) {
  const auto consumers = readers(steps);
  // What the network gives back stays. A reshard's output, too: moving costs more than keeping. A
  // reorder's or an alias is as good as what it is made of.
  std::vector<bool> dropped(steps.size());
  for (std::size_t i = 1; i + 1 < steps.size(); ++i) {
    const Step& s = steps[i];
    const bool follows = s.placement.alias || s.kind == Step::Kind::reorder;
    dropped[i] = follows ? dropped[std::size_t(s.inputs[0])]
                         : marked[std::size_t(s.vertex)] && s.kind != Step::Kind::reshard;
  }
  std::vector<int> last(steps.size(), -1);  // the step before whose backward it must be there
  for (auto i = steps.size(); i-- > 1;) {
    if (!dropped[i]) continue;
    const Step& s = steps[i];
    const auto read = [&](const Step& by, char what) {
      return by.needs_grad && !by.inserted() && (reads[std::size_t(by.vertex)] & what);
    };
    if (read(s, reads_y)) last[i] = int(i);
    for (const Reader& e : consumers[i]) {
      const Step& by = steps[std::size_t(e.step)];
      if (!by.adds(std::size_t(e.slot)) && read(by, reads_x)) last[i] = std::max(last[i], e.step);
      last[i] = std::max(last[i], last[std::size_t(e.step)]);
    }
  }
  for (std::size_t i = 1; i < steps.size(); ++i) {
    steps[i].recomputed = last[i] >= 0;
    if (last[i] >= 0) steps[std::size_t(last[i])].recomputes.push_back(int(i));
  }
}

LAMINA_INLINE bool absorber_adds(const Step& s, const std::vector<Step>& steps, std::size_t parts) {
  if (parts != 2 || !s.absorbed() || s.output.box.empty()) return false;
  const Step& by = steps[std::size_t(s.absorber)];
  // The kernel leaves the sum of the two where the gradient of what it added goes.
  return by.placement.adds_gradients && steps[std::size_t(by.inputs.back())].needs_grad;
}

namespace detail {

class ActivationPlanner {
 public:
  explicit ActivationPlanner(const std::vector<Step>& steps)
      : steps_(steps), consumers_(readers(steps)), over_(steps.size()) {
    to_.y.resize(steps.size());
    to_.dy.assign(steps.size(), -1), to_.dx.resize(steps.size()), to_.parts.resize(steps.size());
    to_.brought.resize(steps.size());
  }

  ActivationPlan plan(bool training) {
    training_ = training;
    for (int i = 0; i < count(); ++i) forward(i);
    use(to_.y[0], 0);
    use(to_.y.back(), 2 * count() + 1);  // the caller reads it
    to_.kept = to_.y;
    if (training) {
      for (int i = count() - 1; i >= 0; --i) recompute(i);
      for (int i = 0; i < count(); ++i) keep(i);
      for (int i = count() - 1; i >= 0; --i) backward(i);
    }
    to_.bytes = (pack(to_.storages) + 7) / 8 * 8;
    return std::move(to_);
  }

 private:
  int count() const { return int(steps_.size()); }
  const Step& step(int i) const { return steps_[std::size_t(i)]; }
  int time_of_backward(int i) const { return 2 * count() - i; }
  int allocate(const Form& form, int time) {
    to_.storages.push_back({form.bytes(), time, time});
    shared_.push_back(false);
    return int(to_.storages.size()) - 1;
  }
  /// The same; it is step `owner` that brings it.
  int bring(int owner, const Form& form, int time) {
    to_.brought[std::size_t(owner)] += form.bytes();
    return allocate(form, time);
  }
  void use(int storage, int time) {
    Lifetime& s = to_.storages[std::size_t(storage)];
    s.first = std::min(s.first, time), s.last = std::max(s.last, time);
  }

  /// y, over the step's input where the layer can work in place.
  void forward(int i) {
    const auto at = std::size_t(i);
    const Step& s = step(i);
    const Placement& p = s.placement;
    const int from = s.inputs.empty() ? -1 : s.inputs[0];
    if (p.in_place && from > 0) {
      const Step& producer = step(from);
      const Placement& q = producer.placement;
      over_[at] = s.output.form() == producer.output.form() && !p.reads_x && !q.reads_y &&
                  !q.alias && consumers_[std::size_t(from)].size() == 1 &&
                  (!s.recomputed || producer.recomputed);  // else x is needed again
    }
    over_[at] = over_[at] || p.alias || s.absorbed();
    to_.y[at] = over_[at]       ? to_.y[std::size_t(from)]
                : over_added(i) ? to_.y[std::size_t(s.inputs.back())]
                                : bring(i, s.output, i);
    use(to_.y[at], i);
    for (const int input : s.inputs) use(to_.y[std::size_t(input)], i);
  }

  /// Whether y may lie where what the epilogue adds lies: nobody reads that afterwards.
  bool over_added(int i) const {
    const Step& s = step(i);
    if (training_ || !s.epilogue.add || !s.placement.over_added) return false;
    const int added = s.inputs.back();
    if (step(added).output.form() != s.output.form()) return false;
    for (int k = 0; k < i; ++k) {
      if (to_.y[std::size_t(k)] != to_.y[std::size_t(added)]) continue;
      for (const Reader& r : consumers_[std::size_t(k)])
        if (r.step > i || (r.step == i && !s.adds(std::size_t(r.slot)))) return false;
    }
    return true;
  }

  /// What backward of step i sees anew, later.
  void recompute(int i) {
    const int time = time_of_backward(i);
    for (const int r : step(i).recomputes) {
      const auto at = std::size_t(r);
      const Step& again = step(r);
      // Not one more activation of the step: the first is gone when this one comes.
      to_.kept[at] =
          over_[at] ? to_.kept[std::size_t(again.inputs[0])] : allocate(again.output, time);
      for (const int input : again.inputs) use(to_.kept[std::size_t(input)], time);
    }
  }

  void keep(int i) {
    const Step& s = step(i);
    if (!s.needs_grad) return;
    if (s.placement.reads_y) use(to_.kept[std::size_t(i)], time_of_backward(i));
    if (!s.placement.reads_x) return;
    for (std::size_t k = 0; k < s.inputs.size(); ++k)
      if (!s.adds(k)) use(to_.kept[std::size_t(s.inputs[k])], time_of_backward(i));
  }

  /// A gradient per edge; those of one value are added up where it has several consumers.
  void backward(int i) {
    const auto at = std::size_t(i);
    const int time = time_of_backward(i);
    const Step& s = step(i);
    to_.dx[at].assign(s.inputs.size(), -1);
    if (!s.needs_grad) return;
    std::vector<int>& mine = to_.parts[at];
    for (const Reader& e : consumers_[at])
      if (const int part = to_.dx[std::size_t(e.step)][std::size_t(e.slot)]; part >= 0)
        mine.push_back(part);
    for (const int part : mine) use(part, time);
    if (mine.size() == 1)
      to_.dy[at] = std::exchange(mine, {})[0];
    else if (mine.size() > 1)
      to_.dy[at] = bring(i, s.output, time);
    const int given = to_.dy[at];
    if (absorber_adds(s, steps_, mine.size()))
      for (const int part : mine) use(part, time_of_backward(s.absorber));
    int passed = 0;
    for (std::size_t k = 0; k < s.inputs.size(); ++k) {
      const Step& input = step(s.inputs[k]);
      if (!input.needs_grad) continue;
      const Placement& p = s.placement;
      const bool passes = s.adds(k) ? !p.writes_added : p.alias || p.passes_gradient;
      const bool same = given >= 0 && passes;
      const bool in_place = given >= 0 && (s.adds(k) || p.in_place) &&
                            !shared_[std::size_t(given)] && input.output.form() == s.output.form();
      to_.dx[at][k] = same || in_place ? given : bring(i, input.output, time);
      passed += same;
    }
    if (passed > 1) shared_[std::size_t(given)] = true;
  }

  const std::vector<Step>& steps_;
  std::vector<std::vector<Reader>> consumers_;
  ActivationPlan to_;
  bool training_ = true;
  std::vector<bool> over_;    // by step: y lies where x lies
  std::vector<bool> shared_;  // by storage: dy that several edges pass on, to be left as it is
};

}  // namespace detail

LAMINA_INLINE ActivationPlan plan_activations(const std::vector<Step>& steps, bool training) {
  return detail::ActivationPlanner(steps).plan(training);
}

}  // namespace lamina
