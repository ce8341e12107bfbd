// MeasuredTimes: kernel times that were measured on this machine. Pure data, which needs no ranks.
#pragma once

#include <lamina/plan/layer_times.hpp>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lamina {

/// What a layer's kernels depend on: the layer, its blocks on the rank that makes the most, and
/// the types. Splits that leave a rank the same blocks are the same to it.
struct LocalLayer {
  std::string type = {}, options = {};
  std::string precision = {};  ///< Precision::text()
  std::vector<Shape> xs = {};  ///< blocks of the inputs, without what other ranks send
  Shape y = {};                ///< block of the output
  Axis halo = Axis::none;      ///< of height and width, those that are cut
  bool operator==(const LocalLayer&) const = default;
  /// In one line, unlike that of any other.
  std::string text() const;
};
LocalLayer local_layer(const Layer& layer, std::span<const Shape> xs, const Split& split,
                       const Precision& precision);

/// Which update it is, as far as its rate goes: "sgd 1 f32 2^20" has one state beside each weight,
/// and up to 2^20 of them. Fewer may lie in caches; from 2^24 on they are all alike.
std::string update_name(const UpdateRule& rule, const Precision& precision,
                        std::int64_t parameters);

/// More parameters take longer to update, at the same rate.
inline constexpr std::int64_t most_updated = 1 << 24;

/// A local layer that was measured takes as long as measured. Of any other, each pass takes what
/// FormulaTimes says, times measured / formula of the nearest local layer of the same type whose
/// pass was measured: that which differs least in the logarithms of the extents of x and y, where
/// other options count as if one extent was 8 times as large. Without one, the formula alone.
/// Recomputation, which is never measured, is the formula's times forward's measured / formula. An
/// update goes at the rate that was measured of its rule, its types and as many parameters as a
/// whole network has, or else at that of the formula.
class MeasuredTimes final : public LayerTimes {
 public:
  struct Entry {
    LocalLayer layer = {};
    /// Of forward, input_grad and weight_grad; below 0 where a pass was not measured. With reorders
    /// of its inputs between layouts of the back end.
    LayerSeconds seconds = {};
    LayerSeconds formula = {};  ///< what FormulaTimes said of it then
  };

  /// `cluster` is that of the formulas.
  explicit MeasuredTimes(Cluster cluster) : formulas_(std::move(cluster)) {}

  using LayerTimes::of;
  LayerSeconds of(const Layer& layer, std::span<const Shape> xs, const Split& split,
                  const Cost& cost, const Precision& precision,
                  const UpdateRule& rule) const override;

  const FormulaTimes& formulas() const { return formulas_; }
  const std::vector<Entry>& entries() const { return entries_; }
  /// Null where it was not measured.
  const Entry* find(const LocalLayer& layer) const;
  /// Adds what is new: a pass that was measured before stays as it is. Throws Error for times that
  /// are no numbers, and for a layer without a type or inputs.
  void add(Entry entry);

  /// From now on updates are of a network with so many; of 2^24 or more from the start.
  void updates_are_of(std::int64_t parameters) { parameters_ = parameters; }
  /// Bytes/s, of update_work(), by update_name().
  const std::map<std::string, double>& updates() const { return updates_; }
  /// Likewise: the first one stays. Throws Error unless it is above 0.
  void add_update(const std::string& name, double bytes_per_second);

 private:
  const Entry* nearest(const LocalLayer& layer, double LayerSeconds::*pass) const;

  FormulaTimes formulas_;
  std::vector<Entry> entries_;
  std::map<std::string, std::size_t> by_text_;
  std::map<std::string, double> updates_;
  std::int64_t parameters_ = most_updated;
};

/// What was measured, as JSON. Numbers come back as they were.
std::string measured_json(const MeasuredTimes& times);
/// Adds what such a file has. Throws Error, naming the member, for what is damaged or cannot be;
/// then nothing is added.
void add_measured_json(MeasuredTimes& times, const std::string& json);

}  // namespace lamina
