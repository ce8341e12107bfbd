#include "cuda/queue.hpp"

#include <algorithm>
#include <utility>

namespace lamina::cuda {

Queue::Queue(int device) : device_(device) {
  ok(cudaSetDevice(device_), "choose a GPU");
  ok(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "make a stream");
}

Queue::~Queue() {
  settle();
  kept_.reset(), uploads_.reset();
  if (scratch_) cudaFreeAsync(scratch_, stream_);
  for (void* scratch : former_scratch_) cudaFreeAsync(scratch, stream_);
  for (const Marks* marks : {&marks_, &unused_})
    for (const auto& mark : *marks) cudaEventDestroy(mark->event);
  cudaStreamDestroy(stream_);
}

void* Queue::scratch(std::size_t bytes) {
  if (bytes <= scratch_bytes_) return scratch_;
  only_once("memory allocated");
  const cudaStream_t into = stream();
  if (scratch_ && has_graphs_)
    former_scratch_.push_back(std::exchange(scratch_, nullptr));
  else if (scratch_)
    ok(cudaFreeAsync(std::exchange(scratch_, nullptr), into), "free memory");
  scratch_bytes_ = 0;
  ok_memory(cudaMallocAsync(&scratch_, bytes, into), "scratch memory of kernels", bytes);
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
    const std::lock_guard lock(job->queue->error_mutex_);
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

/// Others may ask what is past while this waits for room in the stream.
std::uint64_t Queue::mark() {
  std::unique_lock lock(mutex_);
  const std::uint64_t first = capture_ ? recorded : 0;
  if (marked_) return first + count_;
  ok(cudaSetDevice(device_), "choose a GPU");
  std::unique_ptr<Mark> mark = free_mark();
  lock.unlock();
  ok(cudaEventRecord(mark->event, stream_), "record an event");
  lock.lock();
  mark->number = first + ++count_;
  (capture_ ? recorded_marks_ : marks_).push_back(std::move(mark));
  marked_ = true;
  return first + count_;
}

/// While this is recorded, no event can be asked whether it is past.
std::unique_ptr<Queue::Mark> Queue::free_mark() {
  std::unique_ptr<Mark> mark;
  const auto take = [&](Marks& from, Marks::iterator at) {
    mark = std::move(*at);
    from.erase(at);
  };
  if (!unused_.empty()) {
    take(unused_, unused_.end() - 1);
  } else if (!capture_ && !marks_.empty() && marks_.front()->waiting == 0 &&
             cudaEventQuery(marks_.front()->event) == cudaSuccess) {
    take(marks_, marks_.begin());
  } else {
    mark = std::make_unique<Mark>();
    ok(cudaEventCreateWithFlags(&mark->event, cudaEventDisableTiming), "make an event");
  }
  return mark;
}

void Queue::run_to(std::uint64_t number) {
  Mark* mark = nullptr;
  {
    const std::lock_guard lock(mutex_);
    check(!of_recording(number), "CUDA: the host cannot wait for a part of a recording");
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
  if (mine()) timings_.tell(number);
}

void Queue::time(Recorder& recorder, Span span, const std::function<void()>& work) {
  Timings::Taken& taken = timings_.begin(stream(), recorder, span);
  try {
    work();
    Timings::end(taken, stream());
    taken.mark = count_ + 1;
  } catch (...) {
    Timings::drop(taken);
    throw;
  }
}

bool Queue::past(std::uint64_t number) noexcept {
  if (of_recording(number)) return false;
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
  std::unique_lock lock(other->mutex_);
  Mark* const mark = other->find(event.mark);
  check(mark || !of_recording(event.mark), "CUDA: a stream waits for a part of a recording");
  if (!mark) return;
  ok(cudaSetDevice(device_), "choose a GPU");
  ++mark->waiting;
  lock.unlock();  // this stream may have no room
  const cudaError_t status = cudaStreamWaitEvent(mine, mark->event, 0);
  lock.lock();
  --mark->waiting;
  ok(status, "have a stream wait for an event");
  if (of_recording(event.mark)) take_part(other->capture_);
}

void Queue::fail(const std::exception_ptr& error) {
  const std::lock_guard lock(error_mutex_);
  if (!error_) error_ = error;
}

/// Null where it is past, and its event used again.
Queue::Mark* Queue::find(std::uint64_t number) const {
  const Marks& marks = of_recording(number) ? recorded_marks_ : marks_;
  const auto at = std::ranges::find(marks, number, [](const auto& m) { return m->number; });
  return at == marks.end() ? nullptr : at->get();
}

void Queue::rethrow() {
  const std::lock_guard lock(error_mutex_);
  if (error_) std::rethrow_exception(error_);
}

class Queue::Graph final : public Recording {
 public:
  Graph(cudaGraph_t graph, std::shared_ptr<const Capture> capture) : of_(std::move(capture)) {
    const cudaError_t status = cudaGraphInstantiate(&graph_, graph, 0);
    cudaGraphDestroy(graph);
    ok(status, "make a graph");
  }
  ~Graph() override { cudaGraphExecDestroy(graph_); }
  Graph(const Graph&) = delete;

  void play(Stream& stream) override {
    auto& queue = static_cast<Queue&>(*stream.queue());
    queue.rethrow();
    ok(cudaSetDevice(queue.device_), "choose a GPU");
    const Event before = of_->watchers.empty() ? Event() : stream.event();
    ok(cudaGraphLaunch(graph_, queue.stream()), "launch a graph");
    for (const auto& [who, watcher] : of_->watchers) watcher(before, stream.event());
  }

 private:
  std::shared_ptr<const Capture> of_;
  cudaGraphExec_t graph_ = nullptr;
};

bool Queue::watch_recording(const void* who, const Watcher& watcher) {
  const std::lock_guard lock(mutex_);
  if (!capture_) return false;
  auto& watchers = capture_->watchers;
  if (std::ranges::find(watchers, who, [](const auto& w) { return w.first; }) == watchers.end())
    watchers.emplace_back(who, watcher);
  return true;
}

void Queue::take_part(const std::shared_ptr<Capture>& capture) {
  const std::lock_guard lock(mutex_);
  if (capture_) return;
  capture_ = capture, marked_ = false;
  capture->queues.push_back(this);
}

/// Other threads go on calling CUDA meanwhile, as those that look after collectives do.
void Queue::begin_recording() {
  ok(cudaSetDevice(device_), "choose a GPU");
  ok(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "record a graph");
  take_part(std::make_shared<Capture>());
}

std::unique_ptr<Recording> Queue::end_recording() {
  cudaGraph_t graph = nullptr;
  const cudaError_t status = cudaStreamEndCapture(stream_, &graph);
  auto capture = end_capture();
  ok(status, "record a graph");
  has_graphs_ = true;
  return std::make_unique<Graph>(graph, std::move(capture));
}

void Queue::drop_recording() noexcept {
  cudaGraph_t graph = nullptr;
  if (cudaStreamEndCapture(stream_, &graph) == cudaSuccess) cudaGraphDestroy(graph);
  end_capture();
}

std::shared_ptr<Queue::Capture> Queue::end_capture() noexcept {
  std::shared_ptr<Capture> capture = capture_;
  for (Queue* queue : capture->queues) {
    const std::lock_guard lock(queue->mutex_);
    for (auto& mark : queue->recorded_marks_) queue->unused_.push_back(std::move(mark));
    queue->recorded_marks_.clear();
    queue->capture_ = nullptr, queue->marked_ = false;
  }
  return capture;
}

}  // namespace lamina::cuda
