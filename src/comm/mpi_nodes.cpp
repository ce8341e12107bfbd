// Collectives of a group with several ranks on some of several nodes.
#include "comm/mpi_nodes.hpp"

#include <algorithm>
#include <numeric>

namespace lamina::detail {
namespace {

int rank_in(MPI_Comm comm) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  return rank;
}

}  // namespace

NodeGroup::NodeGroup(SharedNode& node, Lookout& lookout, MPI_Comm comm,
                     const std::vector<int>& members)
    : shared_(node, lookout, members, rank_in(comm)), order_(members.size()) {
  const auto node_of = [&](int r) { return node.nodes()[std::size_t(members[std::size_t(r)])]; };
  std::iota(order_.begin(), order_.end(), 0);
  std::stable_sort(order_.begin(), order_.end(),
                   [&](int a, int b) { return node_of(a) < node_of(b); });
  in_order_ = std::is_sorted(order_.begin(), order_.end());
  const int ours = node_of(rank_in(comm));
  for (std::size_t i = 0; i < order_.size(); ++i) {
    const int each = node_of(order_[i]);
    if (i > 0 && each == node_of(order_[i - 1])) continue;
    if (each == ours) here_ = firsts_.size();
    firsts_.push_back(i);
  }
  firsts_.push_back(order_.size());
  const std::size_t nodes = firsts_.size() - 1;
  by_halves_ = in_order_ && (nodes & (nodes - 1)) == 0;
  for (std::size_t i = 0; i < nodes; ++i)
    by_halves_ = by_halves_ && firsts_[i + 1] - firsts_[i] == order_.size() / nodes;

  MPI_Comm owners = MPI_COMM_NULL;
  const int number = shared_.number();
  check_mpi(
      MPI_Comm_split(comm, number < shared_.owners() ? number : MPI_UNDEFINED, int(here_), &owners),
      "MPI_Comm_split");
  if (owners == MPI_COMM_NULL) return;
  owners_ = std::make_unique<MpiGroup>(kept(owners), lookout);
  parts_.resize(firsts_.size() - 1);
}

/// Node by node an ordered sum is taken where nodes are halves, or halves of halves, of the ranks.
bool NodeGroup::carries(const Operation& op) const {
  const std::size_t nodes = firsts_.size() - 1;
  const bool scatter = op.collective == Collective::reduce_scatter;  // by a ring, in its own order
  if (op.ordered && op.reduces() && (!by_halves_ || (scatter && nodes > 2))) return false;
  return op.collective == Collective::all_reduce || op.collective == Collective::reduce_scatter ||
         op.collective == Collective::all_gather;
}

void NodeGroup::run(const Operation& op) {
  if (op.collective == Collective::all_reduce) return all_reduce(op);
  return op.collective == Collective::reduce_scatter ? reduce_scatter(op) : all_gather(op);
}

NodeGroup::Range NodeGroup::range(std::size_t node, std::size_t count) const {
  return {firsts_[node] * count, (firsts_[node + 1] - firsts_[node]) * count};
}

/// Nothing, where we own nothing.
NodeGroup::Range NodeGroup::our_part(const Range& whole) const {
  if (!owners_) return {whole.begin, 0};
  const auto me = std::size_t(shared_.number()), all = std::size_t(shared_.owners());
  const std::size_t begin = SharedGroup::begin_of(whole.count, me, all);
  return {whole.begin + begin, SharedGroup::begin_of(whole.count, me + 1, all) - begin};
}

void NodeGroup::all_reduce(const Operation& op) {
  auto* const data = static_cast<char*>(op.out);
  const Range ours = our_part({0, op.count});
  Operation part = op;
  part.count = ours.count;
  part.in = part.out = data + ours.begin * size_of(op.dtype);
  auto* const own = static_cast<char*>(part.out);
  shared_.reduce_scatter(op, op.count, shared_.owners(), data, own);
  if (owners_) owners_->run(part);
  shared_.all_gather(op, op.count, shared_.owners(), own, data);
}

void NodeGroup::reduce_scatter(const Operation& op) {
  const std::size_t element = size_of(op.dtype), bytes = op.count * element;
  const auto* whole = static_cast<const char*>(op.in);
  if (!in_order_) {
    ordered_.resize(std::max(ordered_.size(), order_.size() * bytes));
    for (std::size_t i = 0; i < order_.size(); ++i)
      std::memcpy(ordered_.data() + i * bytes, whole + std::size_t(order_[i]) * bytes, bytes);
    whole = ordered_.data();
  }
  std::size_t begin = 0;
  for (std::size_t node = 0; node + 1 < firsts_.size(); ++node) {
    const Range all = range(node, op.count);
    const std::size_t count = our_part(all).count;
    sums_.resize(std::max(sums_.size(), (begin + count) * element));
    shared_.reduce_scatter(op, all.count, shared_.owners(), whole + all.begin * element,
                           sums_.data() + begin * element);
    if (owners_) parts_[node] = {begin, count};
    begin += count;
  }
  auto* const out = static_cast<char*>(op.out);
  if (shared_.size() == shared_.owners())  // our part as an owner is what is to be ours
    return owners_->reduce_scatter(op, sums_.data(), out, parts_);
  const Range here = range(here_, op.count);
  ordered_.resize(std::max(ordered_.size(), order_.size() * bytes));
  char* const gathered = ordered_.data() + here.begin * element;
  char* const own = ordered_.data() + our_part(here).begin * element;
  if (owners_) owners_->reduce_scatter(op, sums_.data(), own, parts_);
  shared_.all_gather(op, here.count, shared_.owners(), own, gathered);
  std::memcpy(out, gathered + std::size_t(shared_.number()) * bytes, bytes);
}

void NodeGroup::all_gather(const Operation& op) {
  const std::size_t element = size_of(op.dtype), bytes = op.count * element;
  auto* whole = static_cast<char*>(op.out);
  if (!in_order_) {
    ordered_.resize(std::max(ordered_.size(), order_.size() * bytes));
    whole = ordered_.data();
  }
  const Range here = range(here_, op.count);
  shared_.all_gather(op, here.count, shared_.size(), static_cast<const char*>(op.in),
                     whole + here.begin * element);
  if (owners_) {
    for (std::size_t node = 0; node < parts_.size(); ++node)
      parts_[node] = our_part(range(node, op.count));
    owners_->ring().all_gather(op, whole, parts_);
  }
  for (std::size_t node = 0; node + 1 < firsts_.size(); ++node) {
    const Range all = range(node, op.count);
    if (node != here_)
      shared_.all_gather(op, all.count, shared_.owners(), whole + our_part(all).begin * element,
                         whole + all.begin * element);
  }
  if (in_order_) return;
  for (std::size_t i = 0; i < order_.size(); ++i)
    std::memcpy(static_cast<char*>(op.out) + std::size_t(order_[i]) * bytes,
                ordered_.data() + i * bytes, bytes);
}

}  // namespace lamina::detail
