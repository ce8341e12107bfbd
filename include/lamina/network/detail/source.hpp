// Source: parameters of a placed network that are another one's.
#pragma once

#include <lamina/layers/exchange.hpp>
#include <lamina/network/placed.hpp>

#include <memory>
#include <string>
#include <vector>

namespace lamina::detail {

inline constexpr const char* of_one_worker =
    "inference: running statistics are those of the worker that ran last: expected "
    "average_kept() of the network that is trained before";

/// What lies here as it lies there is the same memory; all else is copied by refresh(), moved among
/// the ranks of the other network where blocks differ. That network may go: its memory stays.
class Source {
 public:
  /// Throws Error where a parameter is not among those of `from`, or is of another shape or dtype.
  /// Collective over the ranks of `from`, all of which place a network.
  Source(const PlacedNetwork& from, std::shared_ptr<const Backend> backend, const Parameters& to,
         std::vector<Step>& steps, Memory& total);

  /// Throws Error if that network is gone.
  void refresh();
  /// Whether nothing has changed there since.
  bool fresh() const {
    const auto changes = changes_.lock();
    return !changes || changes->count == seen_;
  }

 private:
  struct Copied {
    View theirs;                      ///< absent where this rank of theirs holds nothing
    Communicator variants;            ///< their mean is taken
    View held, wanted;                ///< plain, in buffers that all share
    bool moves = false;               ///< blocks differ:
    Exchange exchange;                ///< from one to the other
    const Parameter* mine = nullptr;  ///< null where this rank of ours holds nothing
  };
  void copy(Copied& c);
  void share_buffers(Memory& total);

  std::shared_ptr<const Backend> their_backend_, backend_;
  std::shared_ptr<const void> memory_;
  std::weak_ptr<const Parameters::Changes> changes_;
  std::int64_t seen_ = -1;
  Tensor held_, wanted_;
  std::vector<Copied> copied_;
  Stream stream_;
};

}  // namespace lamina::detail
