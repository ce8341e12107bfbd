// What of NCCL is called. Its header gives the types; the functions are found when the first of a
// process's GPUs asks for them, so that a program also starts where NCCL is absent.
#pragma once

#include "base/shared_library.hpp"

#include <nccl.h>

#include <functional>

namespace lamina::detail {

/// The one table of them.
struct NcclCalls {
  std::function<AnyFunction(const char*)> find;

  decltype(ncclGetErrorString)* get_error_string = find("ncclGetErrorString");
  decltype(ncclGetLastError)* get_last_error = find("ncclGetLastError");
  decltype(ncclGetUniqueId)* get_unique_id = find("ncclGetUniqueId");
  decltype(ncclCommInitRankConfig)* init = find("ncclCommInitRankConfig");
  decltype(ncclCommSplit)* split = find("ncclCommSplit");
  decltype(ncclCommGetAsyncError)* get_async_error = find("ncclCommGetAsyncError");
  decltype(ncclMemAlloc)* allocate = find("ncclMemAlloc");
  decltype(ncclMemFree)* free = find("ncclMemFree");
  decltype(ncclCommRegister)* enter = find("ncclCommRegister");
  decltype(ncclCommDeregister)* strike = find("ncclCommDeregister");
  decltype(ncclCommFinalize)* finalize = find("ncclCommFinalize");
  decltype(ncclCommDestroy)* destroy = find("ncclCommDestroy");
  decltype(ncclCommAbort)* abort = find("ncclCommAbort");
  decltype(ncclAllReduce)* all_reduce = find("ncclAllReduce");
  decltype(ncclReduceScatter)* reduce_scatter = find("ncclReduceScatter");
  decltype(ncclAllGather)* all_gather = find("ncclAllGather");
  decltype(ncclBroadcast)* broadcast = find("ncclBroadcast");
  decltype(ncclSend)* send = find("ncclSend");
  decltype(ncclRecv)* receive = find("ncclRecv");
  decltype(ncclGroupStart)* group_start = find("ncclGroupStart");
  decltype(ncclGroupEnd)* group_end = find("ncclGroupEnd");
};

/// Opens the library where nobody has yet. Throws Error where it is not there, or too old.
const NcclCalls& nccl();

}  // namespace lamina::detail
