// Cluster: the machine that a plan is made for, as data, and what collectives take on it. Needs
// neither devices nor ranks.
#pragma once

#include <lamina/cost/collective.hpp>
#include <lamina/profile/machine.hpp>
#include <lamina/tensor/dtype.hpp>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lamina {

/// What one rank computes with: a GPU, or the processors of a node.
struct DeviceModel {
  /// FLOP/s that kernels reach, a multiply-add as 2.
  struct Flops {
    DType dtype = DType::f32;
    double gemm = 0, conv = 0;
  };

  std::string name = {};
  double memory = 0;     ///< bytes
  double bandwidth = 0;  ///< bytes/s that kernels get of it
  std::vector<Flops> flops = {};
  double launch = 0;     ///< seconds of a kernel with next to nothing to do
  double reduction = 0;  ///< bytes/s of what arrives that it adds up; 0: behind the transfers

  /// Of a type that is not listed: bf16 and f16 as f32, in which they are computed then. Throws
  /// Error, which names device and type, where that is not listed either.
  const Flops& flops_of(DType dtype) const;
};

/// What a message takes: latency + bytes / bandwidth.
struct Link {
  double latency = 0;    ///< seconds
  double bandwidth = 0;  ///< bytes/s one way, of one device while it is alone
};

/// Equal nodes.
struct Nodes {
  int count = 1;
  DeviceModel device = {};  ///< each of a node's
};

/// Ranks number the devices node by node, and the nodes in the order of their groups.
struct Cluster {
  std::string name = {};
  std::vector<Nodes> nodes = {};  ///< unequal devices are several groups
  int devices_per_node = 1;       ///< the same on all
  Link inside = {};               ///< between devices of one node
  Link across = {};               ///< between those of two
  /// That many neighbours in a node share one link across: while k of them send at once, each has
  /// 1/k of its bandwidth.
  int sharers = 1;
  double contention = 1;  ///< how many times as long kernels take while communication goes on
  /// Points that were measured here; for each operation, number of ranks and stride by bytes.
  std::vector<CommCeiling> measured = {};

  /// How many there are.
  int node_count() const;
  int devices() const { return node_count() * devices_per_node; }
  /// Throws Error for a rank that is not there.
  const DeviceModel& device_of(int rank) const;
  /// Bytes of the one that has the least of the first so many devices.
  double least_memory(int devices) const;
  /// A device's part of its link across while so many of its node send at once.
  Link across_with(int senders) const;
  /// The first so many devices of this cluster, or with so many: nodes like the last one are added.
  /// What was measured stays. Throws Error unless these are whole nodes, or a part of the first.
  Cluster of(int devices) const;
};

/// Throws Error, in a line that names the member, for the first value that cannot be.
void check_cluster(const Cluster& cluster);

/// `v100-100g`, `h100-ndr`, `h200-ndr`, `cpu-1g`, `cpu-10g`, `cpu-100g`; docs/planning.md says what
/// they are, and their sources stand beside the numbers.
std::vector<std::string_view> cluster_names();
/// One node of it; of() makes it larger. Throws Error for an unknown name, with the nearest one.
Cluster ready_cluster(std::string_view name);

/// Seconds of a collective over these ranks, of which there is one at least, while the other groups
/// of its kind run it, too: those that the ranks between two of these belong to (cost/group.hpp).
/// `bytes` are those of Operation::bytes, of a halo what the rank that sends the most sends to all
/// of its neighbours. Nothing for one rank. Throws Error for a rank that is not there or comes
/// twice, and for bytes below 0.
///
/// Where undisturbed points of the operation were measured, at this number of ranks and this
/// stride(), they count and nothing else does: between two of them the logarithm of time is linear
/// in that of bytes, below the smallest its time holds, above the largest time is proportional to
/// bytes; a point that took less than a smaller one is taken to have taken as long.
///
/// All else follows formulas of p ranks, m bytes and links of α seconds and β seconds per byte;
/// γ are those of the slowest device's reduction, and lg p is rounded up:
///
///   all_reduce      the least of a ring, 2(p-1)α + 2(p-1)/p mβ + (p-1)/p mγ, Rabenseifner's,
///                   2 lg p α + the same, and recursive doubling, lg p (α + mβ + mγ)
///   reduce_scatter  the less of a ring, (p-1)α + (p-1)/p m(β + γ), and recursive halving,
///                   lg p α + the same
///   all_gather      the less of a ring, (p-1)α + (p-1)/p mβ, and recursive doubling, lg p α +
///                   the same
///   all_to_all      (p-1)α + (p-1)/p mβ, each message on its own link
///   broadcast       the less of a binomial tree, lg p (α + mβ), and scatter with all-gather,
///                   lg p α + (p-1)/p mβ + that of all_gather
///   halo            a rank sends and receives at once: α + mβ, and 2α + mβ where p > 2
///   barrier         lg p α
///
/// (Thakur, Rabenseifner and Gropp, 2005). MPI libraries have all of these. NCCL's reduce_scatter
/// and all_gather are rings, and take (p-1)α, unless its version 2.23 or later takes its parallel
/// aggregated trees, which are logarithmic, for groups with one rank on each node.
///
/// A group within a node has the links inside, one with a rank per node those across, of which each
/// rank has the part that its node's groups leave. Of others the less of two counts. Flat: rings
/// use all links across of their ranks, a halo and a scatter one for each group, and whatever else
/// the link of every rank; the slower of inside and across counts. Hierarchical, with g ranks on
/// each of q nodes: all_reduce is reduce_scatter of m inside, all_reduce of m/g across, and
/// all_gather inside; reduce_scatter, all_gather, broadcast and barrier go in two levels likewise.
/// With unlike numbers on the nodes, g is the largest inside, and the smallest across.
double collective_time(const Cluster& cluster, Collective op, double bytes,
                       const std::vector<int>& ranks);

/// Of redistributions among more ranks, only what some of them get, and some give, is looked at.
constexpr int most_looked_at = 16;

/// What one rank sends to another in a redistribution.
struct Sent {
  int from = 0, to = 0;
  double bytes = 0;
};
/// Seconds of a redistribution among the first `ranks` ranks, as Exchange runs it: in round i each
/// rank sends to the i-th after it, around the ring, once both are done with the rounds before. A
/// message takes α + bytes β of its link; devices that share a link across all use it at once.
/// Where all links are of one kind, what was measured counts: of a single round exchanges between
/// neighbours, and of several the part of an all_to_all of so many rounds, or of the next power of
/// two ranks, since messages meet there. Among more than most_looked_at ranks each gets its
/// messages one after the other, and gives its own so, whoever is at the other end. Throws Error
/// for ranks and bytes that cannot be.
double redistribution_time(const Cluster& cluster, int ranks, std::span<const Sent> sent);

/// A cluster as JSON; docs/planning.md describes it. Numbers have up to 15 digits there; what has
/// no more comes back as it was. Throws Error, naming the member, for what is damaged or cannot be.
Cluster parse_cluster(const std::string& json);
std::string cluster_json(const Cluster& cluster);
/// The same from and to a file, which is named in messages.
Cluster read_cluster(const std::string& path);
void write_cluster(const std::string& path, const Cluster& cluster);
/// A ready-made one, or that of a file: what has a `.` or `/` in it, or else is the name of a file
/// that exists. Ready-made names win. Throws Error for what is neither, with the nearest name.
Cluster find_cluster(const std::string& name_or_file);

}  // namespace lamina
