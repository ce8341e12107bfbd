// What of NCCL is used, declared: with its names and numbers, so that the same sources compile with
// it and without.
#pragma once

#include "emulated/runtime.hpp"

#include <climits>
#include <cstddef>

using ncclComm_t = struct ncclComm*;
struct ncclUniqueId {
  char internal[128];
};
enum ncclResult_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7
};
enum ncclDataType_t {
  ncclInt32 = 2,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9
};
enum ncclRedOp_t { ncclSum = 0, ncclMax = 2, ncclMin = 3 };
#define NCCL_SPLIT_NOCOLOR -1

struct ncclConfig_t {
  unsigned magic;
  int blocking;
};
#define NCCL_CONFIG_INITIALIZER \
  { 0xcafebeef, INT_MIN }

const char* ncclGetErrorString(ncclResult_t);
const char* ncclGetLastError(ncclComm_t);
ncclResult_t ncclGetUniqueId(ncclUniqueId*);
ncclResult_t ncclCommInitRankConfig(ncclComm_t*, int ranks, ncclUniqueId, int rank, ncclConfig_t*);
ncclResult_t ncclCommSplit(ncclComm_t, int color, int key, ncclComm_t*, ncclConfig_t*);
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t*);
ncclResult_t ncclMemAlloc(void** to, std::size_t bytes);
ncclResult_t ncclMemFree(void*);
ncclResult_t ncclCommRegister(ncclComm_t, void* memory, std::size_t bytes, void** handle);
ncclResult_t ncclCommDeregister(ncclComm_t, void* handle);
ncclResult_t ncclCommFinalize(ncclComm_t);
ncclResult_t ncclCommDestroy(ncclComm_t);
ncclResult_t ncclCommAbort(ncclComm_t);
ncclResult_t ncclAllReduce(const void* in, void* out, std::size_t count, ncclDataType_t,
                           ncclRedOp_t, ncclComm_t, cudaStream_t);
ncclResult_t ncclReduceScatter(const void* in, void* out, std::size_t count, ncclDataType_t,
                               ncclRedOp_t, ncclComm_t, cudaStream_t);
ncclResult_t ncclAllGather(const void* in, void* out, std::size_t count, ncclDataType_t, ncclComm_t,
                           cudaStream_t);
ncclResult_t ncclBroadcast(const void* in, void* out, std::size_t count, ncclDataType_t, int root,
                           ncclComm_t, cudaStream_t);
ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t, int to, ncclComm_t,
                      cudaStream_t);
ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t, int from, ncclComm_t,
                      cudaStream_t);
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
