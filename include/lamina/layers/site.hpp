// Site: where a layer is placed. Spec: what flows along an edge of the network before any buffer
// is.
#pragma once

#include <lamina/comm/communicator.hpp>
#include <lamina/cost/group.hpp>
#include <lamina/kernels/backend.hpp>

#include <utility>
#include <vector>

namespace lamina {

/// The form of this rank's block, the shape across all ranks, and which block it is.
struct Spec : Form {
  Shape whole;
  Split split;               ///< of the layer that makes or takes it
  Box box;                   ///< empty on a rank that holds nothing
  bool has_gradient = true;  ///< backward asks for that of the loss with respect to it

  const Form& form() const { return *this; }
};

/// A layer's split, the ranks that take part in it, and the back end that computes.
class Site {
 public:
  /// Collective over `ranks`: makes a group for every set of axes that are cut. Throws Error where
  /// the split has more parts than there are ranks.
  Site(const Backend& backend, const Split& split, Communicator ranks, bool training = true,
       const Precision& precision = {}, bool fuse = false, bool plain_weights = false);

  const Backend& backend() const { return *backend_; }
  const Split& split() const { return split_; }
  /// What flows in is of its `compute`; layers choose the types of their parameters by it.
  const Precision& precision() const { return precision_; }
  /// False where the network is for inference alone.
  bool training() const { return training_; }
  /// Whether weights never change while the network runs, so that they can be prepared for it.
  bool constant_weights() const { return !training_ && fuse_; }
  /// Whether weights lie plain, whatever kernels want.
  bool plain_weights() const { return plain_weights_; }
  /// Where this rank stands; all zero where it takes no part.
  const Place& place() const { return place_; }
  /// Which part of `extent` along one axis this rank has.
  Part part(Axis axis, std::int64_t extent) const { return split_.part(axis, extent, place_); }
  /// Whether this rank takes part.
  bool active() const { return ranks_.rank() < split_.ways(); }
  /// All ranks of the network.
  const Communicator& ranks() const { return ranks_; }

  /// World ranks of along(axes), in its order.
  std::vector<int> members(Axis axes) const { return group(split_, place_, axes); }

  /// The ranks that differ from this one in their place along `axes` and agree in all others. One
  /// rank (whose collectives do nothing) if none of them is cut.
  Communicator along(Axis axes) const;

 private:
  const Backend* backend_;
  Split split_;
  Communicator ranks_;
  Place place_;
  bool training_, fuse_, plain_weights_;
  Precision precision_;
  std::vector<std::pair<Axis, Communicator>> groups_;
};

}  // namespace lamina
