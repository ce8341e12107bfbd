// Parameters of a placed network: who holds which block of them, and where they lie.
#pragma once

#include <lamina/network/step.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace lamina {

/// A parameter under its full name ("conv1.weight") and the step it belongs to.
struct NamedParameter {
  std::string name;
  Parameter* parameter;
  int step;
  int number = 0;      ///< in Parameters::all
  bool counts = true;  ///< no rank before this one holds the same block: a sum over all counts it
};

/// A parameter across all ranks.
struct WholeParameter {
  std::string name;
  int vertex = 0;                       ///< of the graph, whose layer has it
  std::vector<std::int64_t> dims = {};  ///< as files hold it
  Shape whole = {};
  DType dtype = DType::f32;
  bool trained = true, frozen = false;  ///< see Parameter
  std::vector<Box> blocks = {};         ///< by rank; {} where a rank holds nothing of it
  int variants = 1;                     ///< how many ranks have values of their own of each element
  std::vector<int> variant = {};        ///< by rank: which of them it holds
  Parameter* mine = nullptr;            ///< null where this rank holds nothing of it

  bool held_whole(int rank) const { return blocks[std::size_t(rank)] == Box::of(whole); }
  /// Whether every rank has all of it.
  bool everywhere() const {
    return std::count(blocks.begin(), blocks.end(), Box::of(whole)) ==
           std::ptrdiff_t(blocks.size());
  }
};

/// Gradients and values lie in buckets, in the order in which backward finishes them. Values that
/// are not trained follow, in forward order.
class Parameters {
 public:
  Parameters() = default;
  /// Those of the placed layers, without memory yet: adds to `steps` and to `total` what they will
  /// take. Collective.
  Parameters(std::vector<Step>& steps, const PlaceOptions& options, Memory& total);
  void allocate(const PlaceOptions& options, const Memory& total, Tensor gradients);
  /// Room for what stands open between turns, at so many places, where there is not enough.
  void make_room(const PlaceOptions& options, int places);
  /// How many bytes that will be.
  std::size_t lacks(const PlaceOptions& options, int places) const;
  /// Gives back what only steps need: values and states stay.
  void end() { gradients = parts = unread = Tensor(), held.clear(); }
  /// Says where it is, for the turns that buckets have now.
  void hold(const PlaceOptions& options);
  /// Before the layers' backward.
  void begin_turn(int turn);
  /// After it: each gradient that is summed over ranks was complete, once. Or else ranks would go
  /// on with gradients of their own.
  void check_reduced() const;
  /// Of all gradients in buckets.
  Form gradient_form(const PlaceOptions& options) const;

  /// Those of which this rank holds a block.
  std::vector<NamedParameter> mine;
  /// All parameters, in the order of the graph: the same list on all ranks.
  std::vector<WholeParameter> all;
  /// f64, for sums of squares over whole parameters: of the gradient of each of all, and then of
  /// their values. In training only.
  Tensor squares;
  /// Whether such sums need what other ranks have.
  bool scattered = false;
  Tensor values, gradients, parts, unread;
  std::vector<Tensor> held;  ///< as large as `gradients` each
  /// Behind the memory: one that goes waits for what is on its way.
  std::vector<Bucket> buckets;
  /// Where others that have the values can see it.
  struct Changes {
    std::int64_t count = 0;      ///< of times that the values have changed
    bool of_one_worker = false;  ///< what is not trained is what a worker of this rank had last
  };
  std::shared_ptr<Changes> changes = std::make_shared<Changes>();

 private:
  void spread(const std::vector<Step>& steps, const PlaceOptions& options);
  void check_replicas(const std::vector<Step>& steps, const Communicator& ranks) const;
  Form squares_form(const PlaceOptions& options) const;
  void plan_squares(std::vector<Step>& steps, const PlaceOptions& options, Memory& total);
  void check_frozen(const std::vector<std::string>& patterns) const;
  void plan_unread(std::vector<Step>& steps, const PlaceOptions& options, Memory& total);
  void plan_buckets(std::vector<Step>& steps, const PlaceOptions& options, Memory& total);
  void plan_bucket(Bucket& bucket, std::vector<Step>& steps, const PlaceOptions& options,
                   Memory& total);

  std::vector<Parameter*> written_;  // frozen, but their layers write their gradients: `unread`
};

namespace detail {

/// See PlacedNetwork::set_value(), which is to be told of it.
void set_value(const Backend& backend, const Parameter& p, const View& plain);

/// The same for a state of the optimizer, of which `own` is what this rank keeps.
void set_own(const Backend& backend, const Parameter& p, const View& plain, const View& own);

}  // namespace detail

}  // namespace lamina
