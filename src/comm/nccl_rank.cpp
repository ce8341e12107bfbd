#include "comm/nccl_rank.hpp"

#include <lamina/base/clock.hpp>

#include <algorithm>
#include <chrono>
#include <thread>

namespace lamina::detail {

namespace {

void pause() { std::this_thread::sleep_for(std::chrono::microseconds(20)); }

/// In words: what a communicator does, or nothing.
struct Doing {
  const Operation* op;
  bool recorded;
  std::string text() const {
    return !op ? "between collectives" : recorded ? "a recorded step" : op->text();
  }
};

/// Throws Error where that status of a call for `what` is one of failure.
template <class What>
void check_nccl(ncclResult_t status, ncclComm_t comm, const What& what) {
  if (status == ncclSuccess || status == ncclInProgress) return;
  const char* const more = nccl().get_last_error(comm);
  throw Error(text("NCCL: ", what, ": ", nccl().get_error_string(status),
                   more && *more ? text(" (", more, ')') : "; NCCL_DEBUG=WARN says why"));
}

}  // namespace

NcclRank::NcclRank(std::shared_ptr<Transport> peers, int device)
    : peers_(std::move(peers)), device_(device) {
  nccl();
}

/// Nobody looks after the peers any more: those that are gone are not waited for.
NcclRank::~NcclRank() {
  const double limit = now() + 5;
  cudaSetDevice(device_);
  for (; first_ != next_ && now() < limit; pause()) drop_past();
  for (ncclComm_t comm : comms_) {
    if (error_ || !comm) continue;
    const bool well = first_ == next_ && ended_well(comm, limit);
    well ? void(nccl().destroy(comm)) : abort(comm);
  }
  for (std::thread& thread : aborts_) thread.join();
  for (void* memory : late_) nccl().free(memory);
}

bool NcclRank::ended_well(ncclComm_t comm, double limit) const {
  ncclResult_t status = nccl().finalize(comm);
  while (status == ncclInProgress && now() < limit) {
    pause();
    if (nccl().get_async_error(comm, &status) != ncclSuccess) return false;
  }
  return status == ncclSuccess;
}

bool NcclRank::reaches(const MemorySpace& space) const {
  const auto* const memory = dynamic_cast<const cuda::Memory*>(&space);
  return memory && memory->device() == device_;
}

ncclComm_t NcclRank::make(const char* what, ncclComm_t of,
                          const std::function<ncclResult_t(ncclComm_t*)>& begin) {
  cuda::ok(cudaSetDevice(device_), "choose a GPU");
  wait_for_all();
  ncclComm_t* comm = nullptr;  // is filled in later, and perhaps when this has thrown
  ncclResult_t status = ncclSuccess;
  {
    const std::lock_guard lock(mutex_);
    check_going();
    comm = &comms_.emplace_back(nullptr);
    status = begin(comm);
  }
  until_ready(of ? of : *comm, status, what, true);
  if (of && *comm) until_ready(*comm, ncclSuccess, what, true);
  const std::lock_guard lock(mutex_);
  if (*comm)
    for (Known& memory : known_) tell(*comm, memory);
  return *comm;
}

std::shared_ptr<void> NcclRank::allocate(MemorySpace& space, std::size_t bytes) {
  if (bytes == 0) return nullptr;
  cuda::ok(cudaSetDevice(device_), "choose a GPU");
  void* memory = nullptr;
  {
    const std::lock_guard lock(mutex_);
    check_going();
    if (nccl().allocate(&memory, bytes) != ncclSuccess) return nullptr;
  }
  const auto end = [rank = weak_from_this()](void* p) {
    const auto here = rank.lock();
    here ? here->give_back(p) : void(nccl().free(p));
  };
  auto owned = static_cast<cuda::Memory&>(space).own(memory, end);
  space.zero(memory, bytes);
  const std::lock_guard lock(mutex_);
  known_.push_back({memory, bytes, {}});
  for (ncclComm_t comm : comms_)
    if (comm) tell(comm, known_.back());
  return owned;
}

/// Where one refuses, collectives copy, as they do elsewhere.
void NcclRank::tell(ncclComm_t comm, Known& memory) {
  void* name = nullptr;
  if (nccl().enter(comm, memory.data, memory.bytes, &name) == ncclSuccess && name)
    memory.names.emplace_back(comm, name);
}

/// A communicator that is being aborted has no use for the names any more, but for the memory.
void NcclRank::give_back(void* memory) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (error_) return late_.push_back(memory);
    const auto known = std::ranges::find(known_, memory, &Known::data);
    if (known != known_.end()) {
      for (const auto& [comm, name] : known->names) nccl().strike(comm, name);
      known_.erase(known);
    }
  }
  nccl().free(memory);
}

/// A communicator from which another one is made must have nothing to do.
void NcclRank::wait_for_all() {
  for (double look = now() + 0.1;; pause()) {
    std::unique_lock lock(mutex_);
    check_going();
    drop_past();
    if (first_ == next_) return;
    lock.unlock();
    if (now() < look) continue;
    peers_->poll();
    poll();
    look = now() + 0.1;
  }
}

template <class What>
void NcclRank::until_ready(ncclComm_t comm, ncclResult_t status, const What& what,
                           bool look_around) {
  const double begin = now();
  check_nccl(status, comm, what);
  for (double look = begin + 0.1;;) {
    {
      const std::lock_guard lock(mutex_);
      check_going();
      const ncclResult_t asked = nccl().get_async_error(comm, &status);
      check_nccl(asked, comm, what);
      check_nccl(status, comm, what);
    }
    if (status == ncclSuccess) return;
    const double time = now();
    check(time - begin < peers_->time_limit(), what, ": not all ranks came within ",
          peers_->time_limit(), " s");
    time - begin < 1e-3 ? std::this_thread::yield() : pause();
    if (!look_around || time < look) continue;
    peers_->poll();
    look = time + 0.1;
  }
}

cuda::Queue& NcclRank::prepare(const Operation& op) {
  cuda::Queue& queue = static_cast<cuda::Memory&>(*op.space).queue_of(stream_);
  for (const auto& each : {stream_.queue(), op.after.queue}) {
    const auto known = std::dynamic_pointer_cast<cuda::Queue>(each);
    const std::lock_guard lock(mutex_);
    const auto same = [&](const auto& q) {
      return !q.owner_before(known) && !known.owner_before(q);
    };
    if (!known || std::ranges::any_of(queues_, same)) continue;
    std::erase_if(queues_, [](const auto& q) { return q.expired(); });
    queues_.push_back(known);
  }
  queue.follow(op.after);
  return queue;
}

/// Until NCCL says that it is ready, it may still be about to put something into the stream.
Event NcclRank::finish(ncclComm_t comm, const Operation& op, ncclResult_t status,
                       cuda::Timings::Taken* timed) {
  until_ready(comm, status, op, false);
  auto& queue = static_cast<cuda::Queue&>(*stream_.queue());
  if (timed) cuda::Timings::end(*timed, queue.stream());
  Event done = stream_.event();
  if (timed) {
    const std::lock_guard lock(mutex_);
    timed->mark = done.mark;
  }
  const auto played = [weak = weak_from_this()](const Event& before, const Event& end) {
    Operation all;
    all.after = before;
    if (const auto rank = weak.lock()) rank->look_after({.op = all, .done = end, .recorded = true});
  };
  if (!queue.watch_recording(this, played)) look_after({.op = op, .done = done});
  return done;
}

std::optional<std::pair<double, double>> NcclRank::times(const Event& done) {
  cuda::ok(cudaSetDevice(device_), "choose a GPU");
  const std::lock_guard lock(mutex_);
  last_.span.reset();
  timings_.tell(done.mark);
  if (!last_.span) return {};
  return std::pair(last_.span->begin, last_.span->end);
}

/// From now on, until it is done.
void NcclRank::look_after(Underway what) {
  wait_for_room();
  const std::lock_guard lock(mutex_);
  at(next_++) = std::move(what);
}

void NcclRank::wait_for_room() {
  while (true) {
    std::unique_lock lock(mutex_);
    check_going();
    if (next_ - first_ < capacity) return;
    const Event oldest = at(first_).done;
    lock.unlock();
    oldest.wait();
    lock.lock();
    drop_past();
  }
}

void NcclRank::drop_past() {
  for (; first_ != next_ && at(first_).done.past(); ++first_) at(first_) = {};
}

void NcclRank::poll() {
  const std::lock_guard lock(mutex_);
  check_going();
  drop_past();
  const Doing doing{first_ == next_ ? nullptr : &at(first_).op, at(first_).recorded};
  for (ncclComm_t comm : comms_) {
    if (!comm) continue;
    ncclResult_t status = ncclSuccess;
    check_nccl(nccl().get_async_error(comm, &status), comm, doing);
    check_nccl(status, comm, doing);
  }
  if (!doing.op || !doing.op->after.past()) return;
  double& since = at(first_).since;
  if (since == 0) since = now();
  check(now() - since < peers_->time_limit(), doing, ": not all ranks came within ",
        peers_->time_limit(), " s");
}

void NcclRank::give_up(const std::exception_ptr& error) noexcept {
  const std::lock_guard lock(mutex_);
  if (error_) return;
  error_ = error;
  // First the streams know of the error, then what they wait for ends.
  for (const auto& weak : queues_)
    if (const auto queue = weak.lock()) queue->fail(error);
  for (ncclComm_t comm : comms_)
    if (comm) abort(comm);
}

/// On a thread of its own: kernels end at once, but NCCL does not return before the graphs are gone
/// that have collectives of this communicator. They go where the error is thrown.
void NcclRank::abort(ncclComm_t comm) noexcept {
  try {
    aborts_.emplace_back([comm, device = device_] {
      cudaSetDevice(device);
      nccl().abort(comm);
    });
  } catch (...) {  // no thread can be had: its kernels are left to the peers' time limits
  }
}

}  // namespace lamina::detail
