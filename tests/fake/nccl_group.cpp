#include "fake/nccl_group.hpp"

#include "fake/runtime.hpp"

#include <lamina/base/text.hpp>
#include <lamina/tensor/dtype.hpp>

#include <algorithm>
#include <cstring>

namespace lamina::test {

namespace {

template <class F>
void with_type(ncclDataType_t type, const F& f) {
  switch (type) {
    case ncclFloat16:
      return f(F16());
    case ncclBfloat16:
      return f(BF16());
    case ncclFloat32:
      return f(float());
    case ncclFloat64:
      return f(double());
    case ncclInt32:
      return f(std::int32_t());
  }
}
std::size_t size_of(ncclDataType_t type) {
  std::size_t size = 0;
  with_type(type, [&](auto one) { size = sizeof one; });
  return size;
}

/// By rank, rounded once.
template <class T>
void reduce(const std::map<int, NcclCall>& calls, bool scatter) {
  const NcclCall& first = calls.at(0);
  const std::size_t total = first.count * (scatter ? calls.size() : 1);
  for (std::size_t i = 0; i < total; ++i) {
    Wide<T> sum(static_cast<const T*>(first.in)[i]);
    for (auto at = std::next(calls.begin()); at != calls.end(); ++at) {
      const Wide<T> mine(static_cast<const T*>(at->second.in)[i]);
      sum = first.op == ncclSum   ? Wide<T>(sum + mine)
            : first.op == ncclMax ? std::max(sum, mine)
                                  : std::min(sum, mine);
    }
    for (const auto& [rank, call] : calls)
      if (!scatter || i / first.count == std::size_t(rank))
        static_cast<T*>(call.out)[scatter ? i % first.count : i] = T(sum);
  }
}

void run(const std::map<int, NcclCall>& calls) {
  const NcclCall& first = calls.at(0);
  const std::size_t bytes = first.count * size_of(first.type);
  if (first.what == "all_reduce" || first.what == "reduce_scatter")
    with_type(first.type, [&]<class T>(T) { reduce<T>(calls, first.what == "reduce_scatter"); });
  for (const auto& [rank, call] : calls) {
    if (call.what == "broadcast") std::memmove(call.out, calls.at(call.root).in, bytes);
    if (call.what == "all_gather")
      for (const auto& [from, part] : calls)
        std::memmove(static_cast<char*>(call.out) + std::size_t(from) * bytes, part.in, bytes);
  }
}

/// Holds a stream until ready(), or until its rank gives up. What the others have put in runs
/// meanwhile: a GPU does not ask whether somebody waits for it.
template <class Ready>
void wait(std::unique_lock<std::mutex>& lock, const ncclComm& comm, const Ready& ready) {
  NcclGroup& g = *comm.group;
  if (ready()) return;
  ++g.waiting;
  for (std::size_t r = 0; r < g.streams.size(); ++r)
    if (g.streams[r] && int(r) != comm.rank) hurry(g.streams[r]);
  nccl_changed.wait(lock, [&] { return ready() || comm.aborted; });
  --g.waiting;
}

/// Between GPUs of one process NCCL reads and writes operands of the peers where they lie.
void check_reach(NcclGroup& g, int rank, int peer, const void* operand) {
  const int gpu = g.members[std::size_t(rank)]->gpu, other = gpu_of(operand);
  if (other >= 0 && !reaches(gpu, other))
    g.fail(text("rank ", rank, " on GPU ", gpu, " cannot reach what rank ", peer, " has on GPU ",
                other));
}
void check_reach(NcclGroup& g, const std::map<int, NcclCall>& calls) {
  for (const auto& [rank, mine] : calls)
    for (const auto& [peer, call] : calls)
      check_reach(g, rank, peer, call.in), check_reach(g, rank, peer, call.out);
}

void take(NcclGroup& g, NcclMessage& from, int sender, const NcclMessage& to, int receiver) {
  check_reach(g, sender, receiver, to.at);
  if (from.count == to.count && from.type == to.type)
    std::memmove(to.at, from.at, to.count * size_of(to.type));
  else
    g.fail(text("rank ", sender, " sent ", from.count, " to rank ", receiver, ", which expects ",
                to.count));
  from.taken = true;
  nccl_changed.notify_all();
}

}  // namespace

std::string NcclCall::text() const {
  return lamina::text(what, " of ", count, " of type ", int(type), ", operation ", int(op),
                      ", root ", root, recorded ? ", recorded" : "");
}

bool NcclGroup::complete() const { return std::ranges::count(members, nullptr) == 0; }

void NcclGroup::fail(const std::string& why) {
  if (error.empty()) error = why;
}

ncclComm_t nccl_join(const std::shared_ptr<NcclGroup>& group, int rank, int gpu) {
  static std::deque<ncclComm> all;  // they stay: works of theirs may come late
  all.push_back({group, rank, gpu});
  ++nccl_made;
  return group->members[std::size_t(rank)] = &all.back();
}

void nccl_meet(ncclComm_t comm, const NcclCall& mine) {
  std::unique_lock lock(nccl_guard);
  if (comm->aborted) return;
  NcclGroup& g = *comm->group;
  NcclGroup::Meeting& meeting = g.meetings[comm->meetings++];
  meeting.come.emplace(comm->rank, mine);
  for (const auto& [rank, call] : meeting.come)
    if (!call.matches(mine))
      g.fail(text("rank ", rank, " called ", call, ", but rank ", comm->rank, " called ", mine));
  const bool all = meeting.come.size() == g.members.size();
  if (all) check_reach(g, meeting.come);
  if (all && g.error.empty()) {
    run(meeting.come);
    meeting.done = true;
    nccl_changed.notify_all();
  }
  wait(lock, *comm, [&] { return meeting.done; });
  if (!meeting.done) meeting.come.erase(comm->rank);  // its memory may go
}

void nccl_exchange(ncclComm_t comm, const NcclMessages& called) {
  std::unique_lock lock(nccl_guard);
  if (comm->aborted) return;
  NcclMessages all;
  for (const auto& message : called) all.push_back(std::make_shared<NcclMessage>(*message));
  NcclGroup& g = *comm->group;
  for (const auto& message : all)
    if (message->sent) g.messages[{comm->rank, message->peer}].push_back(message);
  nccl_changed.notify_all();
  for (const auto& message : all) {
    if (message->sent) continue;
    auto& from = g.messages[{message->peer, comm->rank}];
    wait(lock, *comm, [&] { return !from.empty(); });
    if (from.empty()) break;
    take(g, *from.front(), message->peer, *message, comm->rank);
    from.pop_front();
  }
  wait(lock, *comm, [&] {
    return std::ranges::all_of(all, [](const auto& m) { return !m->sent || m->taken; });
  });
  for (auto& [ranks, left] : g.messages)
    std::erase_if(left, [&](const auto& m) { return std::ranges::count(all, m) > 0; });
}

}  // namespace lamina::test
