#include "cuda/queue.hpp"

#include <algorithm>
#include <utility>

namespace lamina::cuda {

Queue::Queue(int device) : device_(device) {
  ok(cudaSetDevice(device_), "choose a GPU");
  ok(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "make a stream");
  ok(cudaMallocAsync(&room_, room_bytes, stream_), "allocate memory for a stream");
}

Queue::~Queue() {
  settle();
  kept_.reset();
  cudaFreeAsync(room_, stream_);
  if (scratch_) cudaFreeAsync(scratch_, stream_);
  for (const auto& mark : marks_) cudaEventDestroy(mark->event);
  cudaStreamDestroy(stream_);
}

void* Queue::scratch(std::size_t bytes) {
  if (bytes <= scratch_bytes_) return scratch_;
  const cudaStream_t into = stream();
  if (scratch_) ok(cudaFreeAsync(std::exchange(scratch_, nullptr), into), "free memory");
  scratch_bytes_ = 0;
  ok(cudaMallocAsync(&scratch_, bytes, into), "allocate scratch memory for kernels");
  scratch_bytes_ = bytes;
  return scratch_;
}

void Queue::settle() {
  cudaSetDevice(device_);
  cudaStreamSynchronize(stream_);
}

void Queue::run(void* data) {
  const std::unique_ptr<Job> job(static_cast<Job*>(data));
  {
    const std::lock_guard lock(job->queue->mutex_);
    if (job->queue->error_) return;
  }
  try {
    job->work->run();
  } catch (...) {
    job->queue->fail(std::current_exception());
  }
}

void Queue::push(std::unique_ptr<Work> work) {
  auto job = std::make_unique<Job>(Job{this, std::move(work)});
  ok(cudaLaunchHostFunc(stream(), run, job.get()), "put work of the host into a stream");
  job.release();  // run() owns it now
}

std::uint64_t Queue::mark() {
  const std::lock_guard lock(mutex_);
  if (marked_) return count_;
  ok(cudaSetDevice(device_), "choose a GPU");
  std::unique_ptr<Mark> mark;
  if (!marks_.empty() && marks_.front()->waiting == 0 &&
      cudaEventQuery(marks_.front()->event) == cudaSuccess) {
    mark = std::move(marks_.front());
    marks_.erase(marks_.begin());
  } else {
    mark = std::make_unique<Mark>();
    ok(cudaEventCreateWithFlags(&mark->event, cudaEventDisableTiming), "make an event");
  }
  ok(cudaEventRecord(mark->event, stream_), "record an event");
  mark->number = ++count_;
  marks_.push_back(std::move(mark));
  marked_ = true;
  return count_;
}

void Queue::run_to(std::uint64_t number) {
  Mark* mark = nullptr;
  {
    const std::lock_guard lock(mutex_);
    mark = find(number);
    if (mark) ++mark->waiting;
  }
  if (mark) {
    ok(cudaSetDevice(device_), "choose a GPU");
    const cudaError_t status = cudaEventSynchronize(mark->event);
    {
      const std::lock_guard lock(mutex_);
      --mark->waiting;
    }
    ok(status, "wait for an event");
  }
  rethrow();
}

bool Queue::past(std::uint64_t number) noexcept {
  const std::lock_guard lock(mutex_);
  const Mark* const mark = find(number);
  if (!mark) return true;
  cudaSetDevice(device_);
  return cudaEventQuery(mark->event) != cudaErrorNotReady;
}

void Queue::follow(const Event& event) {
  auto* const other = dynamic_cast<Queue*>(event.queue.get());
  if (!other) return StreamQueue::follow(event);
  if (other == this) return;
  const cudaStream_t mine = stream();
  const std::lock_guard lock(other->mutex_);
  const Mark* const mark = other->find(event.mark);
  if (!mark) return;
  ok(cudaSetDevice(device_), "choose a GPU");
  ok(cudaStreamWaitEvent(mine, mark->event, 0), "have a stream wait for an event");
}

void Queue::fail(const std::exception_ptr& error) {
  const std::lock_guard lock(mutex_);
  if (!error_) error_ = error;
}

/// Null where it is past, and its event used again.
Queue::Mark* Queue::find(std::uint64_t number) const {
  const auto at = std::ranges::find(marks_, number, [](const auto& m) { return m->number; });
  return at == marks_.end() ? nullptr : at->get();
}

void Queue::rethrow() {
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

}  // namespace lamina::cuda
