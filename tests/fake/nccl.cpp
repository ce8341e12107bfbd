// A stand-in for NCCL between ranks that are threads of one process. What is called is put into the
// fake runtime's streams. A collective is done when the streams of all its ranks have come to it;
// where they called different things, all of them are told so. What ends a communicator waits until
// no graph has a collective of it.
#include "comm/nccl_calls.hpp"
#include "fake/nccl_group.hpp"
#include "fake/stream.hpp"

#include <lamina/base/text.hpp>

#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string_view>
#include <thread>

using namespace lamina::test;

namespace {

/// What is between the start and the end of a thread's group of calls.
struct Grouped {
  int depth = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  NcclMessages messages;
};
thread_local Grouped grouped;

std::string last_error;

/// With the guard.
bool ready(const ncclComm& comm) {
  for (const auto& [number, asked] : comm.group->splits)
    if (number < comm.splits && asked.size() < comm.group->members.size()) return false;
  return comm.group->complete();
}

ncclResult_t put(ncclComm_t comm, cudaStream_t stream, std::function<void()> work) {
  const std::lock_guard lock(nccl_guard);
  if (nccl_refuses) return ncclUnhandledCudaError;
  if (!comm || comm->aborted || comm->late || !ready(*comm)) return ncclInvalidUsage;
  comm->late = std::move(work), comm->into = stream, comm->asked = false;
  if (fake(stream).capture)
    comm->late = [work = std::move(comm->late), kept = comm->in_graphs] { work(); };
  return ncclInProgress;
}
ncclResult_t put(ncclComm_t comm, cudaStream_t stream, NcclCall call) {
  call.recorded = fake(stream).capture != nullptr;
  return put(comm, stream, [=] { nccl_meet(comm, call); });
}

ncclResult_t note(ncclComm_t comm, cudaStream_t stream, const NcclMessage& message) {
  if (grouped.depth == 0) return ncclInvalidUsage;  // NCCL allows it; nobody needs it here
  grouped.comm = comm, grouped.stream = stream;
  grouped.messages.push_back(std::make_shared<NcclMessage>(message));
  return ncclSuccess;
}

/// Returns when no graph has it; then it knows of no memory any more.
ncclResult_t end(ncclComm_t comm) {
  while (comm->in_graphs.use_count() > 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const std::lock_guard lock(nccl_guard);
  for (void* memory : std::exchange(comm->known, {})) --nccl_memory.at(memory);
  return ncclSuccess;
}

/// Has a stream for as long as work(stream) takes.
template <class Work>
cudaError_t by_itself(const Work& work) {
  cudaStream_t stream = nullptr;
  cudaError_t status = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (status == cudaSuccess) status = work(stream);
  cudaStreamSynchronize(stream);
  cudaStreamDestroy(stream);
  return status;
}

/// When all have asked: the groups, by color, in the order of the keys.
void finish(const std::vector<NcclGroup::Splitting>& asked) {
  std::map<int, std::map<std::pair<int, int>, NcclGroup::Splitting>> by_color;
  for (const auto& one : asked)
    if (one.color != NCCL_SPLIT_NOCOLOR) by_color[one.color].insert({{one.key, one.rank}, one});
  for (const auto& [color, members] : by_color) {
    const auto group = std::make_shared<NcclGroup>(members.size());
    int rank = 0;
    for (const auto& [order, one] : members) *one.to = nccl_join(group, rank++, one.gpu);
  }
}

}  // namespace

const char* ncclGetErrorString(ncclResult_t status) {
  return status == ncclInvalidUsage  ? "invalid usage"
         : status == ncclSystemError ? "unhandled system error"
                                     : "unhandled cuda error";
}
const char* ncclGetLastError(ncclComm_t) { return last_error.c_str(); }
ncclResult_t ncclGetUniqueId(ncclUniqueId* to) {
  static std::int64_t number = 0;
  const std::lock_guard lock(nccl_guard);
  const std::int64_t key[] = {++number, ::getpid()};
  *to = {};
  std::memcpy(to->internal, key, sizeof key);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* to, int ranks, ncclUniqueId key, int rank,
                                    ncclConfig_t* config) {
  static std::map<std::string, std::shared_ptr<NcclGroup>> by_key;
  if (config->magic != 0xcafebeef || config->blocking != 0) return ncclInvalidUsage;
  std::int64_t made[2];
  std::memcpy(made, key.internal, sizeof made);
  if (made[1] != ::getpid()) return ncclSystemError;  // as where a firewall is between hosts
  const std::lock_guard lock(nccl_guard);
  auto& group = by_key[{key.internal, sizeof key.internal}];
  if (!group) group = std::make_shared<NcclGroup>(std::size_t(ranks));
  *to = nccl_join(group, rank, chosen_gpu());
  return ncclInProgress;
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* to,
                           ncclConfig_t* config) {
  const std::lock_guard lock(nccl_guard);
  if (config->blocking != 0 || comm->late || !ready(*comm)) return ncclInvalidUsage;
  auto& asked = comm->group->splits[comm->splits++];
  asked.push_back({color, key, comm->rank, comm->gpu, to});
  if (asked.size() == comm->group->members.size()) finish(asked);
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* status) {
  const std::lock_guard lock(nccl_guard);
  NcclGroup& group = *comm->group;
  if (comm->aborted) return ncclInvalidArgument;
  *status = ready(*comm) ? ncclSuccess : ncclInProgress;
  if (!group.error.empty()) {
    last_error = group.error;
    *status = ncclInvalidUsage;
  } else if (comm->late && !std::exchange(comm->asked, true)) {
    *status = ncclInProgress;
  } else if (comm->late) {
    group.streams[std::size_t(comm->rank)] = comm->into;
    if (comm->into->put(std::exchange(comm->late, {})) != cudaSuccess)
      *status = ncclUnhandledCudaError;
    if (group.waiting > 0) hurry(comm->into);
  }
  return ncclSuccess;
}
ncclResult_t ncclMemAlloc(void** to, std::size_t bytes) {
  const auto take = [&](cudaStream_t s) { return cudaMallocAsync(to, bytes, s); };
  if (!nccl_has_memory || by_itself(take) != cudaSuccess) return ncclUnhandledCudaError;
  const std::lock_guard lock(nccl_guard);
  nccl_memory[*to] = 0;
  return ncclSuccess;
}
ncclResult_t ncclMemFree(void* memory) {
  {
    const std::lock_guard lock(nccl_guard);
    if (nccl_memory.at(memory) > 0) ++nccl_known_at_end;
    nccl_memory.erase(memory);
  }
  const auto free = [&](cudaStream_t s) { return cudaFreeAsync(memory, s); };
  return by_itself(free) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
ncclResult_t ncclCommRegister(ncclComm_t comm, void* memory, std::size_t, void** handle) {
  const std::lock_guard lock(nccl_guard);
  if (comm->aborted || comm->late || !ready(*comm) || !nccl_memory.contains(memory) ||
      !comm->known.insert(memory).second)
    return ncclInvalidArgument;
  ++nccl_memory.at(memory);
  *handle = memory;
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle) {
  const std::lock_guard lock(nccl_guard);
  if (comm->aborted || comm->known.erase(handle) == 0) return ncclInvalidArgument;
  --nccl_memory.at(handle);
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclInProgress; }
ncclResult_t ncclCommDestroy(ncclComm_t comm) { return end(comm); }
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  {
    const std::lock_guard lock(nccl_guard);
    comm->aborted = true, comm->late = {};
    nccl_changed.notify_all();
  }
  return end(comm);
}
ncclResult_t ncclAllReduce(const void* in, void* out, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return put(comm, stream, {"all_reduce", in, out, count, type, op});
}
ncclResult_t ncclReduceScatter(const void* in, void* out, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return put(comm, stream, {"reduce_scatter", in, out, count, type, op});
}
ncclResult_t ncclAllGather(const void* in, void* out, std::size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return put(comm, stream, {"all_gather", in, out, count, type});
}
ncclResult_t ncclBroadcast(const void* in, void* out, std::size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  return put(comm, stream, {"broadcast", in, out, count, type, ncclSum, root});
}
ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int to,
                      ncclComm_t comm, cudaStream_t stream) {
  return note(comm, stream, {true, const_cast<void*>(from), count, type, to});
}
ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int from, ncclComm_t comm,
                      cudaStream_t stream) {
  return note(comm, stream, {false, to, count, type, from});
}
ncclResult_t ncclGroupStart() {
  ++grouped.depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (--grouped.depth > 0 || grouped.messages.empty()) return ncclSuccess;
  const Grouped all = std::exchange(grouped, {});
  return put(all.comm, all.stream, [all] { nccl_exchange(all.comm, all.messages); });
}

namespace lamina::detail {

const NcclCalls& nccl() {
  static const NcclCalls calls{[](const char* name) -> AnyFunction {
    const auto as = [](auto* f) { return AnyFunction{reinterpret_cast<void (*)()>(f)}; };
    static const std::map<std::string_view, AnyFunction> all = {
        {"ncclGetErrorString", as(ncclGetErrorString)},
        {"ncclGetLastError", as(ncclGetLastError)},
        {"ncclGetUniqueId", as(ncclGetUniqueId)},
        {"ncclCommInitRankConfig", as(ncclCommInitRankConfig)},
        {"ncclCommSplit", as(ncclCommSplit)},
        {"ncclCommGetAsyncError", as(ncclCommGetAsyncError)},
        {"ncclMemAlloc", as(ncclMemAlloc)},
        {"ncclMemFree", as(ncclMemFree)},
        {"ncclCommRegister", as(ncclCommRegister)},
        {"ncclCommDeregister", as(ncclCommDeregister)},
        {"ncclCommFinalize", as(ncclCommFinalize)},
        {"ncclCommDestroy", as(ncclCommDestroy)},
        {"ncclCommAbort", as(ncclCommAbort)},
        {"ncclAllReduce", as(ncclAllReduce)},
        {"ncclReduceScatter", as(ncclReduceScatter)},
        {"ncclAllGather", as(ncclAllGather)},
        {"ncclBroadcast", as(ncclBroadcast)},
        {"ncclSend", as(ncclSend)},
        {"ncclRecv", as(ncclRecv)},
        {"ncclGroupStart", as(ncclGroupStart)},
        {"ncclGroupEnd", as(ncclGroupEnd)}};
    return all.at(name);
  }};
  return calls;
}

}  // namespace lamina::detail
