// Collectives of a group with several ranks on some of several nodes: within a node through shared
// memory, between nodes each number once.
//
// As many ranks of each node as the node with the fewest has are owners: owner k owns part k of
// each buffer, and sends to and receives from the owners k of the other nodes.
//
//   all-reduce      a part becomes the sum over its owner's node; then over the nodes; all on a
//                   node take all parts
//   reduce-scatter  the same for what each node is to get, which then is shared out on that node
//   all-gather      the ranks of a node gather what is theirs; its owners send their parts of that
//                   to the other nodes; all on a node take the parts that came
#pragma once

#include "comm/mpi_group.hpp"
#include "comm/mpi_shared.hpp"

namespace lamina::detail {

class NodeGroup {
 public:
  /// Collective over `comm`. `members`: its ranks, by their rank in the world.
  NodeGroup(SharedNode& node, Lookout& lookout, MPI_Comm comm, const std::vector<int>& members);

  bool carries(const Operation&) const;
  void run(const Operation&);
  /// Our part of the group that is on this node.
  SharedGroup& shared() { return shared_; }

 private:
  /// What the ranks of one node have of a buffer that is in the order of the nodes, in elements.
  using Range = Ring::Range;

  void all_reduce(const Operation&);
  void reduce_scatter(const Operation&);
  void all_gather(const Operation&);
  Range range(std::size_t node, std::size_t count) const;
  Range our_part(const Range&) const;

  SharedGroup shared_;
  std::unique_ptr<MpiGroup> owners_;  // of our number, one of each node; null where we own nothing
  std::vector<int> order_;            // the ranks, node by node
  std::vector<std::size_t> firsts_;   // of each node, where its ranks begin in order_; and the end
  std::size_t here_ = 0;              // number of this node
  bool in_order_ = true;              // ranks are numbered node by node
  bool by_halves_ = false;            // and added_first() adds up nodes by themselves
  std::vector<char> ordered_, sums_;  // a buffer node by node; our parts, summed over this node
  std::vector<Range> parts_;
};

}  // namespace lamina::detail
