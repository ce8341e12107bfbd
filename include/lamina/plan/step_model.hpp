// StepModel: what a training step takes under any splits, by a model of the machine.
#pragma once

#include <lamina/network/network.hpp>
#include <lamina/network/placed.hpp>
#include <lamina/plan/cluster.hpp>
#include <lamina/plan/layer_times.hpp>
#include <lamina/plan/search.hpp>

#include <memory>
#include <string>
#include <vector>

namespace lamina {

namespace detail {
struct StepParts;
}

/// What a layer adds to a step, in seconds; all layers together are the step.
struct PredictedLayer {
  std::string name = {};
  Split split = {};
  LayerSeconds kernels = {};  ///< slowed down by what is communicated meanwhile
  // Waiting, where no kernels run:
  double collectives = 0;     ///< for sums of activations and of their gradients
  double halo = 0;            ///< for rows and columns of other ranks
  double redistribution = 0;  ///< for inputs, and back for their gradients
  double gradients = 0;       ///< for the sum of its parameters' gradients, where the rest of
                              ///< backward does not hide it
  double reduction = 0;       ///< that this sum takes, hidden or not: not part of seconds()
  /// Of collectives, halo and gradients, what each pass waits for. The sum of gradients is one of
  /// weight_grad, whenever it is waited for; that of a sharded optimizer's weights one of update.
  LayerSeconds waiting = {};

  double kernel_seconds() const { return kernels.total(); }
  double seconds() const {
    return kernel_seconds() + collectives + halo + redistribution + gradients;
  }
};

struct PredictedStep {
  std::vector<PredictedLayer> layers = {};  ///< of each vertex, the input first
  double seconds = 0;

  /// The sum of all layers: its seconds() are `seconds`.
  PredictedLayer total() const;
};

/// Predicts steps of a network, placed as `options` say, on the first `ranks` devices of a cluster.
/// Of the options, communicator, splits and back end do not count; fusion is not modelled.
///
/// A step is simulated in the order in which PlacedNetwork runs it, on two lanes: kernels, and
/// collectives in program order. Forward waits for redistributions and collectives; the halo of a
/// convolution travels beside its kernel; parts of dx or its halo beside the kernel of dw;
/// gradients in buckets, as PlaceOptions::bucket_mb cuts them, beside the rest of backward. Kernels
/// take Cluster::contention times as long while something travels. All ranks are taken to be as
/// busy as the one that takes longest.
class StepModel {
 public:
  /// Throws Error where the cluster is impossible or has not so many devices, and where a device
  /// does not say how fast it is in this dtype.
  StepModel(Network network, PlaceOptions options, UpdateRule rule, Cluster cluster, int ranks,
            std::shared_ptr<const LayerTimes> times);
  ~StepModel();
  StepModel(StepModel&&) noexcept;
  StepModel& operator=(StepModel&&) noexcept;

  const Network& network() const;
  const PlaceOptions& options() const;
  const Cluster& cluster() const;
  int ranks() const;

  /// The splits of a vertex that one can choose among. At first the one that is as the input's:
  /// `data`, or what is next to that.
  const std::vector<Split>& splits(int vertex) const;
  /// Adds the splits that are worth a try: those over all ranks, in whole parts of their number,
  /// and those over fewer ranks along one axis. Where there are more than `most` for a layer, those
  /// that take longest by themselves are left out.
  void add_splits(int most = 64);
  /// The numbers of these splits, one for each vertex; a split that is not among a vertex's is
  /// added. Throws Error, naming the layer, where one is illegal.
  Selection select(const std::vector<Split>& splits);
  std::vector<Split> splits_of(const Selection& selection) const;

  /// What all splits cost, for searches: a sum, with none of the overlap that a step has. Bytes are
  /// those of parameters, gradients, the optimizer's states and kept activations, for comparing
  /// one with another (predict_memory() says what a rank takes).
  CostGraph graph() const;
  /// Groups of vertices that repeat: the same layers of the same shapes with the same ones around
  /// them.
  std::vector<int> repeated() const;

  /// Of a step.
  double seconds(const Selection& selection) const;
  PredictedStep predict(const Selection& selection) const;

 private:
  std::unique_ptr<detail::StepParts> parts_;
};

}  // namespace lamina
