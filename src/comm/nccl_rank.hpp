// What all groups of a rank share: its GPU, its stream for collectives, and what is under way
// there.
#pragma once

#include "comm/nccl_calls.hpp"
#include "cuda/memory.hpp"
#include "cuda/timings.hpp"

#include <lamina/comm/transport.hpp>

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace lamina::detail {

/// NCCL is called from one thread at a time, and no call of it waits: its communicators are asked
/// again and again, so that the time limit ends it, or a peer that has failed.
class NcclRank : public std::enable_shared_from_this<NcclRank> {
 public:
  NcclRank(std::shared_ptr<Transport> peers, int device);
  /// When no recording has its collectives any more: those who made one hold a Communicator longer.
  ~NcclRank();
  NcclRank(const NcclRank&) = delete;
  NcclRank& operator=(const NcclRank&) = delete;

  /// Whether operands that lie there can be put in.
  bool reaches(const MemorySpace& space) const;

  /// The communicator that begin(&comm) begins to make, from another one where `of` is not null;
  /// null where this rank has no part in it. Collective, on the thread that calls `peers`.
  ncclComm_t make(const char* what, ncclComm_t of,
                  const std::function<ncclResult_t(ncclComm_t*)>& begin);

  /// Zeros on the GPU that all of this rank's communicators know of, those that are made later,
  /// too: NCCL need not copy what lies there. Null where it has no such memory, or for 0 bytes.
  std::shared_ptr<void> allocate(MemorySpace& space, std::size_t bytes);

  /// begin(stream) puts it into the stream for collectives, which first waits for what it is to
  /// follow. On the thread that starts collectives.
  template <class Begin>
  Event put(ncclComm_t comm, const Operation& op, const Begin& begin) {
    cuda::Queue& queue = prepare(op);
    ncclResult_t status = ncclSuccess;
    cuda::Timings::Taken* timed = nullptr;
    {
      const std::lock_guard lock(mutex_);
      check_going();
      timed = op.timed ? &timings_.begin(queue.stream(), last_, {}) : nullptr;
      status = begin(queue.stream());
    }
    return finish(comm, op, status, timed);
  }
  /// As Transport's; on any thread.
  std::optional<std::pair<double, double>> times(const Event& done);

  /// Throws if a communicator has failed, or what is under way takes too long.
  void poll();
  /// What is under way ends, and whoever waits for its streams gets this error. Waits for nothing.
  void give_up(const std::exception_ptr& error) noexcept;

 private:
  struct Underway {
    Operation op;
    Event done;
    bool recorded = false;  ///< a whole step that was, with all its collectives
    double since = 0;       ///< when it was first seen to have nothing before it; 0 = not yet
  };
  /// Memory that communicators know of, and what each of them calls it.
  struct Known {
    void* data;
    std::size_t bytes;
    std::vector<std::pair<ncclComm_t, void*>> names;
  };
  struct Last final : Recorder {
    ~Last() override { retire(); }
    void record(const Span& told) override { span = told; }
    std::optional<Span> span;
  };
  static constexpr std::size_t capacity = 1024;  // more than the collectives of a step

  cuda::Queue& prepare(const Operation& op);
  Event finish(ncclComm_t comm, const Operation& op, ncclResult_t status,
               cuda::Timings::Taken* timed);
  void look_after(Underway what);
  void wait_for_room();
  void wait_for_all();
  template <class What>
  void until_ready(ncclComm_t comm, ncclResult_t status, const What& what, bool look_around);
  bool ended_well(ncclComm_t comm, double limit) const;

  void give_back(void* memory) noexcept;

  // These need the mutex.
  void check_going() const {
    if (error_) std::rethrow_exception(error_);
  }
  void drop_past();
  static void tell(ncclComm_t comm, Known& memory);
  void abort(ncclComm_t comm) noexcept;
  Underway& at(std::uint64_t number) { return underway_[number % capacity]; }

  std::shared_ptr<Transport> peers_;
  int device_;
  Stream stream_;                 // for collectives
  std::mutex mutex_;              // of what follows, and of all calls of NCCL
  std::deque<ncclComm_t> comms_;  // stay where they are; null where this rank has no part
  std::vector<Underway> underway_{capacity};  // a ring
  std::uint64_t first_ = 0, next_ = 0;
  std::vector<std::weak_ptr<cuda::Queue>> queues_;  // that one, and those it takes from
  Last last_;                                       // what timings_ has told
  cuda::Timings timings_;
  std::exception_ptr error_;
  std::vector<std::thread> aborts_;
  std::vector<Known> known_;
  std::vector<void*> late_;  // given back when communicators that know of it are being aborted
};

}  // namespace lamina::detail
