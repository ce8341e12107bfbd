// Site: where a layer is placed. Spec: what flows along an edge of the network before any buffer
// is.
#pragma once

#include <lamina/comm/communicator.hpp>
#include <lamina/cost/split.hpp>
#include <lamina/kernels/backend.hpp>

namespace lamina {

/// The form of this rank's part, the shape across all ranks, and how the one is cut from the other.
struct Spec : Form {
  Shape whole;
  Split split;

  const Form& form() const { return *this; }
};

/// A layer's split, the ranks that take part in it, and the back end that computes.
class Site {
 public:
  Site(const Backend& backend, Split split, Communicator ranks)
      : backend_(&backend), split_(split), ranks_(std::move(ranks)) {
    check(split_.ways() == ranks_.size(), "split ", split_, " has ", split_.ways(),
          " parts, but there are ", ranks_.size(), " ranks");
    check(split_.batch == split_.ways(), "split ", split_,
          " is not supported: expected batch only");
  }

  const Backend& backend() const { return *backend_; }
  const Split& split() const { return split_; }

  /// The ranks that differ from this one in their coordinate along `axes` and agree in all others.
  /// One rank (whose collectives do nothing) if none of them is split.
  Communicator along(Axis axes) const {
    return contains(axes, Axis::batch) ? ranks_ : Communicator();
  }

 private:
  const Backend* backend_;
  Split split_;
  Communicator ranks_;
};

}  // namespace lamina
