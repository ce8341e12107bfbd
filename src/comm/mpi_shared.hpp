// Collectives between the processes of one node, through memory that they share.
//
// Each rank has a segment of two slots. A collective is a row of steps: in a step a rank writes to
// one of its own slots and reads the other slot of anybody, and all ranks of the group end it
// together. What a slot holds is thus complete before it is read, and read before it is written
// over, with one meeting per step; long buffers go through in pieces, whose steps overlap. Where
// all ranks' buffers are in memory that all can reach (mpi_buffers.hpp), only their places go
// through the slots: each rank reads and writes its part of all buffers in place, between two
// meetings. All sums are by rank: their bits depend on nothing else.
//
// There is one segment per rank, not one per group: a rank's collectives run one after the other.
// Nor do the ranks of a group share any state: each pair of ranks counts its own meetings.
#pragma once

#include "comm/mpi_buffers.hpp"

#include <memory>
#include <string>
#include <vector>

namespace lamina::detail {

/// The segments of the ranks of one node. Made once per process.
class SharedNode {
 public:
  /// Collective over `world`. LAMINA_SHM=0, or a node without enough memory to share, leaves each
  /// rank alone. LAMINA_NODE_SIZE=2 takes each two ranks for a node of their own: for tests.
  /// `hosts`, where MPI cannot tell since some ranks came later: the first rank on each one's host.
  /// `former`: without those. It shares its buffers: whose ranks were there have the same places.
  SharedNode(MPI_Comm world, Lookout& lookout, const std::vector<int>& hosts,
             const SharedNode* former);

  /// By rank of the world: the lowest rank on the same node.
  const std::vector<int>& nodes() const { return nodes_; }
  /// Why ranks of this node do not share memory; empty where they do, or where there is one only.
  const std::string& reason() const { return reason_; }

 private:
  friend class SharedGroup;
  struct Flag;
  struct Slot;

  void add_segments(MPI_Comm node, Lookout* lookout);
  std::vector<char*> window(MPI_Comm node, std::size_t bytes);
  std::vector<char*> buffers(MPI_Comm node, std::size_t bytes, Lookout& lookout);
  Slot& slot(int place, unsigned parity) const;
  Flag& flag(int from, int to) const;
  /// Counts a meeting with the rank at that place of the node, and says that we are there.
  void arrive(int place);
  /// Waits until the rank at that place has arrived as often as we have.
  void await(int place, const Operation&, Lookout&, double patience) const;

  int place_ = 0, size_ = 1;         // among the ranks of the node
  std::vector<int> nodes_, places_;  // by rank of the world
  std::string reason_;
  std::vector<char*> segments_;    // by place
  std::shared_ptr<void> segment_;  // ours, where it is in no window
  std::vector<unsigned> met_;      // by place
  std::size_t slot_bytes_ = 0;
  int groups_ = 0, last_group_ = 0;  // made; the last one that met
  std::vector<int> last_places_;     // whose ranks may still read our slots
  std::shared_ptr<SharedBuffers> buffers_ = std::make_shared<SharedBuffers>();
};

/// The ranks of a group that are on this node.
class SharedGroup {
 public:
  /// `members`: the group's ranks, by their rank in the world.
  SharedGroup(SharedNode& node, Lookout& lookout, const std::vector<int>& members, int rank);

  /// Whether all members are on this node, and whether any two are on one node.
  bool whole() const { return whole_; }
  bool useful() const { return useful_; }
  /// As many members of each node as the node with the fewest has: those that send between nodes.
  int owners() const { return owners_; }
  /// How many members are on this node; our number among them, by rank.
  int size() const { return size_; }
  int number() const { return me_; }

  /// False where MPI should do it: it is another group's, or MPI does it better.
  bool run(const Operation&);
  /// A buffer for collectives of this group, and of groups made from it, in place; see
  /// SharedBuffers::make(). `comm`: of the group.
  std::shared_ptr<void> allocate(MPI_Comm comm, std::size_t bytes, bool touched) {
    return node_.buffers_->make(comm, lookout_, ranks_, places_, bytes, touched);
  }

  /// The two halves of an all-reduce on this node, for buffers of `count` elements, of which each
  /// of the first `parts` members has a part that begins at begin_of(). In the first, `part`
  /// becomes its part of the sum of all `whole`s, and may lie at its own place there; in the
  /// second, the parts become `whole` everywhere. Members without a part pass any `part`.
  void reduce_scatter(const Operation&, std::size_t count, int parts, const char* whole,
                      char* part);
  /// False, with nothing done, where more than `most` bytes would have to be copied twice.
  bool all_gather(const Operation&, std::size_t count, int parts, const char* part, char* whole,
                  std::size_t most = -1);
  static std::size_t begin_of(std::size_t count, std::size_t part, std::size_t parts) {
    return count * part / parts;
  }

 private:
  using Slot = SharedNode::Slot;
  struct Cut;

  template <class... Stage>
  void steps(const Operation&, std::size_t pieces, const Stage&... stage);
  void meet(const Operation&, bool first);
  void compare() const;
  void begin(const Operation&);
  bool reach(const Operation&, const Cut&, const char* whole);
  void in_place(const Operation&, const Cut&, const char* from, char* to);

  void all_reduce_small(const Operation&, char* data);
  void all_reduce(const Operation&, char* data);

  char* mine(std::size_t offset = 0) const;
  const char* theirs(int member, std::size_t offset = 0) const;
  Cut cut(DType, std::size_t count, int parts, bool all) const;
  void put(const Cut&, const char* whole, std::size_t piece) const;
  void get(const Cut&, char* whole, std::size_t piece) const;
  void reduce(const Operation&, const Cut&, const char* whole, char* part, std::size_t piece,
              bool share);

  SharedNode& node_;
  Lookout& lookout_;
  std::vector<int> places_, ranks_;  // of the members on this node: place there, rank in the group
  int me_ = 0, size_ = 0;            // our index among those; how many they are
  int id_, owners_ = 0, ranks_of_group_;
  bool whole_ = true, useful_ = false;
  unsigned parity_ = 0;         // of the slots that are written in this step
  std::vector<char*> reached_;  // everybody's buffer, by member
  std::vector<const char*> sources_;
  std::vector<char*> targets_;
};

}  // namespace lamina::detail
