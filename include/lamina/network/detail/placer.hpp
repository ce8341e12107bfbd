// Placer: makes the steps of a network, in forward order.
#pragma once

#include <lamina/network/placed.hpp>

#include <memory>
#include <string_view>
#include <vector>

namespace lamina::detail {

/// Layouts propagate along the edges: a layer gets the Spec of its inputs and says what it makes of
/// them. Where a layer wants other blocks, or another layout, than there are, it inserts a Reshard
/// or a Reorder.
class Placer {
 public:
  /// Layers that it inserts and sites that it makes go to `inserted` and `sites`.
  Placer(const Network& network, const PlaceOptions& options, const Fusion& fusion,
         std::vector<std::unique_ptr<Layer>>& inserted, std::vector<std::unique_ptr<Site>>& sites)
      : network_(network), options_(options), fusion_(fusion), inserted_(inserted), sites_(sites) {}

  /// Collective.
  std::vector<Step> steps();

 private:
  Step place_input();
  static void check_parameters(const Step& step, bool trained);
  static void check_placement(const Step& step, const std::vector<Spec>& xs, const Shape& y);
  Step place_vertex(int vertex);
  Step place_absorbed(int vertex);
  void take_no_part(Step& step) const;
  void freeze(Step& step) const;
  const Site& site_of(const Split& split);
  Spec spec_of(const Form& form, const Blocks& blocks, const Split& split) const;
  int insert_reshard(const Step& step, std::size_t input, const Blocks& wanted);
  void insert_reorders(Step& step, const Site& site);
  int insert_step(const Step& step, std::size_t input, Step::Kind kind,
                  std::unique_ptr<Layer> layer, Blocks blocks, Split split, const Site& site);

  const Network& network_;
  const PlaceOptions& options_;
  const Fusion& fusion_;
  std::vector<std::unique_ptr<Layer>>& inserted_;
  std::vector<std::unique_ptr<Site>>& sites_;
  std::vector<Step> steps_;
  std::vector<int> step_of_;  // by vertex
};

}  // namespace lamina::detail
