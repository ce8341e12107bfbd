// Ranks of the stand-in for NCCL: threads that meet in the works of their streams.
#pragma once

#include <nccl.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace lamina::test {

/// Of all that is there, and told of each change.
inline std::mutex nccl_guard;
inline std::condition_variable nccl_changed;

/// Communicators that there have been, counted by rank.
inline std::atomic<int> nccl_made = 0;

/// Whether calls of this thread that put something into a stream fail.
inline thread_local bool nccl_refuses = false;

/// Whether NCCL has memory of its own to give out.
inline std::atomic<bool> nccl_has_memory = true;
/// Memory that NCCL has given out, and how many communicators know of it.
inline std::map<const void*, int> nccl_memory;
/// That which was given back while one did.
inline std::atomic<int> nccl_known_at_end = 0;

/// One collective, as one rank calls it.
struct NcclCall {
  std::string what;
  const void* in;
  void* out;
  std::size_t count;
  ncclDataType_t type;
  ncclRedOp_t op = ncclSum;
  int root = -1;
  bool recorded = false;  ///< in a graph: then on all ranks

  bool matches(const NcclCall& other) const {
    return what == other.what && count == other.count && type == other.type && op == other.op &&
           root == other.root && recorded == other.recorded;
  }
  std::string text() const;
};

/// To a peer, or from one.
struct NcclMessage {
  bool sent;
  void* at;
  std::size_t count;
  ncclDataType_t type;
  int peer;
  bool taken = false;
};
using NcclMessages = std::vector<std::shared_ptr<NcclMessage>>;

struct NcclGroup {
  struct Meeting {
    std::map<int, NcclCall> come;  ///< by rank
    bool done = false;
  };
  struct Splitting {  ///< what one rank asks for
    int color, key, rank, gpu;
    ncclComm_t* to;
  };

  explicit NcclGroup(std::size_t size) : members(size), streams(size) {}

  std::vector<ncclComm_t> members;    ///< null until it has joined
  std::vector<cudaStream_t> streams;  ///< in which each was last
  std::map<std::uint64_t, Meeting> meetings;
  std::map<std::uint64_t, std::vector<Splitting>> splits;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<NcclMessage>>> messages;
  int waiting = 0;  ///< streams that wait for others
  std::string error;

  bool complete() const;
  void fail(const std::string& why);
};

/// The rank joins, with this GPU of the process.
ncclComm_t nccl_join(const std::shared_ptr<NcclGroup>& group, int rank, int gpu);

/// In a stream: returns when all ranks have come and it is done, or this one has given up. What has
/// been recorded meets again whenever it runs.
void nccl_meet(ncclComm_t comm, const NcclCall& mine);
/// The same for messages: all of them are sent and received at once.
void nccl_exchange(ncclComm_t comm, const NcclMessages& all);

}  // namespace lamina::test

struct ncclComm {
  std::shared_ptr<lamina::test::NcclGroup> group;
  int rank, gpu;
  bool aborted = false;
  std::uint64_t meetings = 0, splits = 0;
  // What was called last is put into its stream only when somebody asks for the second time whether
  // it has been: a call that does not wait may do so.
  std::function<void()> late = {};
  cudaStream_t into = nullptr;
  bool asked = false;
  std::set<void*> known = {};  ///< of nccl_memory
  // Shared by all that has been recorded, for as long as a graph has it.
  std::shared_ptr<const bool> in_graphs = std::make_shared<bool>();
};
