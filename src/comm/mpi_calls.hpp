// The words of MPI for ours, and its errors.
#pragma once

#include "comm/mpi_combine.hpp"

#include <lamina/base/clock.hpp>
#include <lamina/comm/detail/gather_values.hpp>
#include <lamina/comm/transport.hpp>

#include <mpi.h>
#include <sched.h>
#include <signal.h>

#include <chrono>
#include <cstring>
#include <numeric>
#include <span>
#include <string_view>
#include <thread>
#include <type_traits>
#include <vector>

namespace lamina::detail {

inline void check_mpi(int status, const char* call) {
  if (status == MPI_SUCCESS) return;
  char reason[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(status, reason, &length);
  throw Error(text(call, ": ", std::string_view(reason, std::size_t(length))));
}

/// Of bf16 and f16, which MPI does not know, one as wide: they can be moved, but not summed.
inline MPI_Datatype type_of(const Operation& op) {
  const bool narrow = is_narrow(op.dtype);
  if (narrow && op.reduces()) refuse(op);
  return narrow                   ? MPI_UINT16_T
         : op.dtype == DType::f32 ? MPI_FLOAT
         : op.dtype == DType::f64 ? MPI_DOUBLE
                                  : MPI_INT32_T;
}
inline MPI_Op op_of(ReduceOp op) {
  return op == ReduceOp::sum ? MPI_SUM : op == ReduceOp::max ? MPI_MAX : MPI_MIN;
}

/// Each collective as one blocking call of MPI: what others are compared with.
std::shared_ptr<Transport> plain_mpi(MPI_Comm comm);

/// Looks around for a rank that waits, about ten times a second.
class Lookout {
 public:
  virtual ~Lookout() = default;
  /// Throws if a peer has failed or is gone, or if `operation` has been waited for too long.
  virtual void look(const Operation& operation, double waited) = 0;
};

/// What a rank is about to call, as the others of its group can read it, in their own processes.
struct Called {
  Collective collective = Collective::barrier;
  ReduceOp reduce = ReduceOp::sum;
  DType dtype = DType::f32;
  Pass pass = Pass::forward;
  bool narrow = false;
  std::int32_t layer = -1;
  int to = -1, from = -1;
  std::size_t count = 0, received = 0;
  char layer_name[64] = "";

  void set(const Operation& op) {
    collective = op.collective, reduce = op.reduce, dtype = op.dtype, pass = op.pass;
    narrow = op.narrow, layer = op.layer, to = op.to, from = op.from;
    count = op.count, received = op.received;
    std::strncpy(layer_name, op.layer_name, sizeof layer_name - 1);
  }
  Operation get() const {
    return {.collective = collective,
            .reduce = reduce,
            .dtype = dtype,
            .pass = pass,
            .layer = layer,
            .layer_name = layer_name,
            .to = to,
            .from = from,
            .count = count,
            .received = received,
            .narrow = narrow};
  }
};

/// Throws where two ranks of a group of `size` are about to call different things.
inline void check_same(const Called& first, int first_rank, const Called& other, int other_rank,
                       int size) {
  check(other.get().matches(first.get()), "rank ", first_rank, " called ", first.get(),
        ", but rank ", other_rank, " called ", other.get(), " (ranks of a group of ", size, ')');
}

/// The members of `group`, which is freed, by their ranks in `comm`.
inline std::vector<int> ranks_in(MPI_Comm comm, MPI_Group group) {
  MPI_Group all = MPI_GROUP_NULL;
  int size = 0;
  MPI_Comm_group(comm, &all);
  MPI_Group_size(group, &size);
  std::vector<int> numbers(static_cast<std::size_t>(size)), ranks = numbers;
  std::iota(numbers.begin(), numbers.end(), 0);
  MPI_Group_translate_ranks(group, size, numbers.data(), all, ranks.data());
  MPI_Group_free(&group);
  MPI_Group_free(&all);
  return ranks;
}

/// Notes a communicator, which is freed before MPI ends where ranks came later.
MPI_Comm kept(MPI_Comm comm);
/// Whoever waits in that one, or in one that was noted after it, gets an error.
void revoke_from(MPI_Comm first);

/// From now on a message to a process that is gone is no end of this one, on this thread.
inline void block_broken_pipes() {
  thread_local const bool blocked = [] {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGPIPE);
    return pthread_sigmask(SIG_BLOCK, &signals, nullptr) == 0;
  }();
  (void)blocked;
}

inline void pause(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

/// MPI moves data only while somebody calls it. So this thread asks again and again, and gives up
/// its core between two questions: the kernels' threads may need it.
template <class Ready>
void wait_until(const Operation& op, Lookout& lookout, const Ready& ready) {
  const double begin = now();
  double look = begin + 0.1;
  for (unsigned n = 0;; ++n) {
    if (ready()) return;
    if (n % 16 != 15) continue;
    const double time = now();
    if (time > look) {
      lookout.look(op, time - begin);
      look = time + 0.1;
    }
    if (time - begin < 2e-3) {  // longer than a piece takes
      sched_yield();
    } else {  // a peer is late: no hurry
      pause(50e-6);
    }
  }
}

inline void wait(MPI_Request& request, const Operation& op, Lookout& lookout,
                 MPI_Status* status = MPI_STATUS_IGNORE) {
  wait_until(op, lookout, [&] {
    int done = 0;
    check_mpi(MPI_Test(&request, &done, status), name(op.collective));
    return done != 0;
  });
}

/// Nothing arrives any more in memory that is about to go. What is in the middle of arriving is
/// waited for, as long as a peer that lives needs. (MPI's own collectives cannot be given up.)
inline void give_up(std::span<MPI_Request> receives) noexcept {
  for (MPI_Request& r : receives)
    if (r != MPI_REQUEST_NULL) MPI_Cancel(&r);
  int done = 0;
  for (const double end = now() + 1; !done && now() < end; pause(1e-4))
    if (MPI_Testall(int(receives.size()), receives.data(), &done, MPI_STATUSES_IGNORE)) return;
}

/// All ranks' values, by rank; for set-up.
template <class T>
std::vector<T> gather(MPI_Comm comm, const T& mine, const Operation& op, Lookout& lookout) {
  static_assert(std::is_trivially_copyable_v<T>);
  int size = 1;
  MPI_Comm_size(comm, &size);
  return gather_held(size, mine, [&](const T& in, T* all) {
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Iallgather(&in, int(sizeof(T)), MPI_BYTE, all, int(sizeof(T)), MPI_BYTE, comm,
                             &request),
              "MPI_Iallgather");
    wait(request, op, lookout);
  });
}

}  // namespace lamina::detail
