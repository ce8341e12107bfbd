// How layers with one kernel are placed.
#include <lamina/layers/unary.hpp>

#include <utility>

namespace lamina {

Placement UnaryLayer::place(std::span<const Spec> xs, const Site& site) {
  return finish(site, make(site.backend(), xs[0]));
}

Placement UnaryLayer::finish(const Site& site, std::unique_ptr<UnaryKernel> kernel) {
  kernel_ = std::move(kernel);
  halo_.prepare(site.backend(), kernel_->inputs[0], false);
  Placement p = placed(*kernel_);
  p.inputs = {halo_.outside()};
  p.reads_x = kernel_->reads_x && !halo_.keeps(), p.reads_y = kernel_->reads_y;
  p.in_place = kernel_->in_place && !halo_.keeps();
  p.workspace += halo_.workspace(), p.messages += halo_.waiting();
  return p;
}

}  // namespace lamina
