// Ranks that are not there, for whoever plans: what is placed on one of them is placed as on that
// rank of so many, alone and in this thread, and never runs.
#pragma once

#include <lamina/comm/communicator.hpp>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace lamina {

namespace detail {

/// Others say what this rank says. But in a collective over all ranks, what rank 0 says is what it
/// did say when it was there.
class ImaginedTransport final : public Transport {
 public:
  /// What rank 0 said in one collective over all ranks after the other.
  using Said = std::vector<std::string>;

  /// Without `said`, a group of some of the ranks.
  ImaginedTransport(int size, int rank, std::shared_ptr<Said> said)
      : size_(size), rank_(rank), said_(std::move(said)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string carrier() const override { return "nothing: its ranks are imagined"; }
  bool imagined() const override { return true; }

  void run(const Operation& op) override {
    if (op.collective == Collective::barrier) return;
    const bool gather = op.collective == Collective::all_gather;
    const bool from_first = op.collective == Collective::broadcast && op.from == 0;
    check((gather || from_first) && !op.space, op, ": what is placed on imagined ranks never runs");
    const std::size_t bytes = op.bytes_in(size());
    auto* out = static_cast<char*>(op.out);
    if (gather)
      for (int r = 0; r < size_; ++r) std::memmove(out + std::size_t(r) * bytes, op.in, bytes);
    if (said_ && rank_ == 0) said_->emplace_back(out, bytes);
    if (!said_ || rank_ == 0 || round_ == said_->size()) return;
    const std::string& first = (*said_)[round_++];
    std::memset(out, 0, bytes);  // texts are as long as the longest
    std::memcpy(out, first.data(), std::min(bytes, first.size()));
  }

  std::shared_ptr<Transport> group(const std::vector<int>& members) override {
    if (members.empty()) return nullptr;
    const auto me = std::find(members.begin(), members.end(), rank_) - members.begin();
    return std::make_shared<ImaginedTransport>(int(members.size()), int(me), nullptr);
  }

 private:
  int size_ = 1, rank_ = 0;
  std::shared_ptr<Said> said_;
  std::size_t round_ = 0;
};

}  // namespace detail

/// So many of them. Others agree with the one that asks, and what they gather from rank 0 is what
/// that said: so rank 0, which takes part in every layer, comes first, and the others do the same
/// as it did. What else they would say is not known.
class ImaginedRanks {
 public:
  /// Throws Error unless there is a rank or more.
  explicit ImaginedRanks(int size) : size_(size) {
    check(size > 0, "the number of ranks must be positive, got ", size);
  }

  int size() const { return size_; }
  /// All of them as this one sees them: groups can be made of it and values gathered, but nothing
  /// else is sent (Communicator::imagined). Rank 0 anew forgets what it said before.
  Communicator as(int rank) {
    check(0 <= rank && rank < size_, "expected a rank from 0 to ", size_ - 1, ", got ", rank);
    if (rank == 0) said_ = std::make_shared<detail::ImaginedTransport::Said>();
    return {std::make_shared<detail::ImaginedTransport>(size_, rank, said_), nullptr};
  }

 private:
  int size_;
  std::shared_ptr<detail::ImaginedTransport::Said> said_ =
      std::make_shared<detail::ImaginedTransport::Said>();
};

}  // namespace lamina
