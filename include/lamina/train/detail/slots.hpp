// Slots: what of a network goes on when the training does, whole, and which blocks of it ranks
// hold.
#pragma once

#include <lamina/network/placed.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lamina::detail {

inline constexpr std::string_view local_prefix = "local/";

/// A tensor of the network as files hold it: whole. Ranks hold blocks of it.
struct Slot {
  std::string name;
  std::vector<std::int64_t> dims;
  Form whole;               ///< plain
  std::vector<Box> blocks;  ///< by rank; {} where a rank holds nothing of it
  View mine;                ///< this rank's block; absent where it holds nothing
  /// What is set, with its master weights, where those are `mine`; null of a state.
  const Parameter* value = nullptr;
  /// Of a state that ranks with the same block keep in parts: `mine` is then but a form.
  const Parameter* in_parts = nullptr;
  std::size_t state = 0;
  /// Of which ranks have values of their own: files hold their mean, and in another slot each.
  const Parameter* averaged = nullptr;
  bool local = false;     ///< that other slot: a row for each of them
  bool together = false;  ///< rank 0 cannot write it alone

  bool held(int rank) const { return !blocks[std::size_t(rank)].empty(); }
  bool held_whole(int rank) const { return blocks[std::size_t(rank)] == Box::of(whole.shape); }
};

/// The same list on all ranks of the network. Of a parameter with master weights, those are held.
/// Collective over these ranks.
std::vector<Slot> slots_of(const PlacedNetwork& network, bool with_states);

/// This rank's blocks, to be read slot by slot, in the same order on all ranks of the network.
class SlotReader {
 public:
  explicit SlotReader(const PlacedNetwork& network) : network_(network) {}

  /// Of a slot that all have values of their own of, their mean. `plain`, on the host, has the
  /// shape of this rank's block, and is absent where it has none. Collective where Slot::together.
  void read(const Slot& slot, const View& plain);
  /// Bytes of states in parts that this rank got from those with whom it shares them, so far.
  double gathered() const { return gathered_; }

 private:
  void see(const Slot& slot);
  View of(const Slot& slot) const;

  const PlacedNetwork& network_;
  const Bucket* bucket_ = nullptr;
  std::size_t state_ = 0;
  Tensor all_;  // the last state that ranks keep in parts, of the whole bucket
  double gathered_ = 0;
};

/// This rank's block becomes `plain`, which lies on the host.
void write_slot(const Slot& slot, const PlacedNetwork& network, const View& plain);

}  // namespace lamina::detail
