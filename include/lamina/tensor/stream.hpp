// Stream: where the kernels of a rank run, and where their times are taken. Timing is no business
// of a layer or a kernel: whoever runs work names it, and the stream records a span if somebody
// asked.
#pragma once

#include <lamina/base/clock.hpp>
#include <lamina/base/error.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>

namespace lamina {

/// `recompute` is forward once more, in backward.
enum class Pass : std::uint8_t { forward, input_grad, weight_grad, update, recompute };
inline constexpr int pass_count = 5;

constexpr std::string_view name(Pass p) {
  constexpr std::string_view names[] = {"forward", "input_grad", "weight_grad", "update",
                                        "recompute"};
  return names[int(p)];
}

/// A kernel's algorithm in this pass, of those of forward, input and weight gradient, "a|b|c"; all
/// of it where it is no such row.
constexpr std::string_view algorithm_of(std::string_view all, Pass pass) {
  const std::size_t first = all.find('|'), last = all.rfind('|');
  const bool three = first != all.npos && all.find('|', first + 1) == last && first != last;
  if (!three || pass == Pass::update) return all;
  if (pass == Pass::input_grad) return all.substr(first + 1, last - first - 1);
  return pass == Pass::weight_grad ? all.substr(last + 1) : all.substr(0, first);
}

/// Where a span of time was spent: computing, moving bytes on the communication thread, or on the
/// compute thread for a collective: handing it over, waiting for it, waking up (what is exposed).
enum class Lane : std::uint8_t { compute, communication, wait };

/// Which ranks a collective joins: what it takes to find the same one among another rank's spans.
struct Party {
  std::uint64_t group = 0;  ///< made of the group's ranks, alike on all of them; 0 = not known
  std::int32_t rank = 0;    ///< this one's number in the group
  std::int32_t to = -1, from = -1;  ///< numbers of a halo's peers, of a broadcast's root; or -1
};

/// One piece of work, in seconds of now(). `what` is a string with static storage, or one that
/// lives as long as the kernel.
struct Span {
  std::int32_t layer = -1;  ///< index in the network; -1 outside of any layer
  Pass pass = Pass::forward;
  Lane lane = Lane::compute;
  const char* what = "";
  double begin = 0, end = 0;
  double bytes = 0;  ///< payload of a collective, per rank; 0 for kernels
  double wire = 0;   ///< bytes that each rank's link carries for it, in one direction
  Party party = {};  ///< of a collective on the communication thread
};

class Recorder;

/// A recorder, for threads that may come with a span when it is gone: then nobody is told.
class WeakRecorder {
 public:
  explicit WeakRecorder(Recorder& recorder) : recorder_(&recorder) {}
  void record(const Span& span);
  /// When this returns, nobody is at the recorder, or comes to it any more.
  void forget() {
    const std::lock_guard lock(mutex_);
    recorder_ = nullptr;
  }
  void expect() { coming_.fetch_add(1, std::memory_order_relaxed); }
  void no_longer_expect() { coming_.fetch_sub(1, std::memory_order_release); }
  bool expects() const { return coming_.load(std::memory_order_acquire) > 0; }

 private:
  std::mutex mutex_;
  Recorder* recorder_;
  std::atomic<int> coming_ = 0;
};

/// A span that is still to come: of a collective that has been started.
class [[nodiscard]] ComingSpan {
 public:
  ComingSpan() = default;
  explicit ComingSpan(std::shared_ptr<WeakRecorder> to) : to_(std::move(to)) { to_->expect(); }
  ComingSpan(ComingSpan&&) = default;
  ComingSpan& operator=(ComingSpan&& other) noexcept {
    std::swap(to_, other.to_);
    return *this;
  }
  ~ComingSpan() {
    if (to_) to_->no_longer_expect();
  }
  explicit operator bool() const { return to_ != nullptr; }
  void record(const Span& span) const { to_->record(span); }

 private:
  std::shared_ptr<WeakRecorder> to_;
};

/// Takes spans. `record` is called from the compute and the communication thread at once.
class Recorder {
 public:
  Recorder() = default;
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;
  virtual ~Recorder() { retire(); }
  virtual void record(const Span&) = 0;
  /// For whoever comes with a span later.
  ComingSpan coming() const { return ComingSpan(weak_); }
  /// Returns when none is still to come: collectives that have been started are recorded, or have
  /// failed.
  void await_all() const {
    while (weak_->expects()) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }

 protected:
  /// Collectives that are under way are no longer recorded. To be called in the destructor of the
  /// class that has record(): when this one's runs, that is gone.
  void retire() { weak_->forget(); }

 private:
  const std::shared_ptr<WeakRecorder> weak_ = std::make_shared<WeakRecorder>(*this);
};

inline void WeakRecorder::record(const Span& span) {
  const std::lock_guard lock(mutex_);
  if (recorder_) recorder_->record(span);
}

/// A layer at work in a step.
struct LayerRun {
  enum class Phase : std::uint8_t { forward, recompute, backward, update };
  std::int32_t layer = -1;  ///< index in the network
  const char* name = "";
  Phase phase = Phase::forward;
  double begin = 0, end = 0;  ///< seconds of now(); `end` only when it has ended
};

constexpr const char* name(LayerRun::Phase p) {
  constexpr const char* names[] = {"forward", "recompute", "backward", "update"};
  return names[int(p)];
}

/// Is told of every layer as it begins and ends, on the thread that runs it: named ranges for a
/// profiler of the platform (NVTX), or a callback of the user's.
class Listener {
 public:
  virtual ~Listener() = default;
  virtual void begin(const LayerRun&) {}
  virtual void end(const LayerRun&) {}
};

struct Event;
class Stream;

/// What came to a queue while it was recorded, to run again as a whole.
class Recording {
 public:
  virtual ~Recording() = default;
  /// Puts it into the stream once more.
  virtual void play(Stream& stream) = 0;
};

/// What a device has been asked to run and may run behind its caller, in this order.
class StreamQueue {
 public:
  class Work {
   public:
    virtual ~Work() = default;
    virtual void run() = 0;
  };

  virtual ~StreamQueue() = default;  ///< returns when all of it has run
  virtual void push(std::unique_ptr<Work> work) = 0;
  /// Puts in a function.
  template <class F>
  void put(F&& work) {
    struct Task final : Work {
      explicit Task(F&& f) : f_(std::forward<F>(f)) {}
      void run() override { f_(); }
      std::decay_t<F> f_;
    };
    push(std::make_unique<Task>(std::forward<F>(work)));
  }
  /// Calls work(), which may put something in, and has `recorder` told how long `span` took here:
  /// from when all was done that was there before, until all is that is there then.
  virtual void time(Recorder& recorder, Span span, const std::function<void()>& work) {
    const auto timed = std::make_shared<Span>(span);
    put([timed] { timed->begin = now(); });
    work();
    put([timed, &recorder] { timed->end = now(), recorder.record(*timed); });
  }
  /// How much has been put in by now.
  virtual std::uint64_t mark() = 0;
  /// Whether that much has run, well or not; waits for nothing.
  virtual bool past(std::uint64_t mark) noexcept = 0;
  /// What is put in from now on runs when `event` is past. Here the host waits for it, in the
  /// queue; a device does better where the event is its own.
  virtual void follow(const Event& event);
  /// Returns when that much has run; throws what any of it threw.
  void wait(std::uint64_t mark) {
    if (mine() && mark > begun_) {
      only_once("the host wait");
      ++stalls_;
    }
    run_to(mark);
  }

  /// Whether it was made by the calling thread, which is the one that fills it.
  bool mine() const { return owner_ == this_thread(); }
  /// Whether it can be recorded.
  virtual bool records() const { return false; }
  /// What work() puts in here, and what follows that in other queues of the device, does not run
  /// but is kept. All of it must have come back here at the end; nobody can wait for a part of it.
  /// Throws Error where the device cannot keep it.
  template <class Work>
  std::unique_ptr<Recording> record(Work&& work) {
    begin_recording();
    recording_ = true;
    try {
      work();
    } catch (...) {
      recording_ = false, drop_recording();
      throw;
    }
    recording_ = false;
    return end_recording();
  }
  /// What is put in now would be wrong, or missing, if it were recorded and ran again: `why` is to
  /// be read as "a step has ...".
  void only_once(const char* why) {
    check(!recording_, "it has ", why, ", which cannot be recorded");
    if (!once_) once_ = why;
  }
  /// The reason of the first such call since the last time this was asked; null where there was
  /// none.
  const char* why_only_once() { return std::exchange(once_, nullptr); }

  /// What is put in from now on is of another step.
  void begin_step() { begun_ = mark(); }
  /// How often the thread that fills it has waited for work of the step that was under way. Each
  /// time the device runs dry.
  std::uint64_t stalls() const { return stalls_; }

 protected:
  virtual void run_to(std::uint64_t mark) = 0;
  virtual void begin_recording() {}
  virtual std::unique_ptr<Recording> end_recording() { return nullptr; }
  /// Ends one that has gone wrong.
  virtual void drop_recording() noexcept {}

 private:
  /// One address per thread.
  static const void* this_thread() {
    static thread_local const char here = 0;
    return &here;
  }

  const void* owner_ = this_thread();
  std::uint64_t begun_ = 0, stalls_ = 0;
  const char* once_ = nullptr;
  bool recording_ = false;
};

/// A point in a queue: what was put in before it. A default one is past.
struct Event {
  std::shared_ptr<StreamQueue> queue;
  std::uint64_t mark = 0;

  /// Holds the calling thread until this is past; throws what went wrong before it.
  void wait() const {
    if (queue) queue->wait(mark);
  }
  bool past() const noexcept { return !queue || queue->past(mark); }
};

inline void StreamQueue::follow(const Event& event) {
  if (event.past()) return;
  only_once("waits of the host");
  put([event] { event.wait(); });
}

/// An ordered sequence of kernels. On the CPU it runs each at once, on the calling thread. A device
/// may give it a queue, when the first of its kernels comes, and run behind the caller.
class Stream {
 public:
  Stream() = default;
  Stream(const Stream&) = default;
  Stream& operator=(const Stream&) = default;
  /// Returns when all has run: what follows may free what it works on.
  ~Stream() {
    try {
      wait();
    } catch (...) {  // whoever wanted to know has asked
    }
  }

  const std::shared_ptr<StreamQueue>& queue() const { return queue_; }
  /// Work comes to the queue from now on; with none it runs at once.
  void put_into(std::shared_ptr<StreamQueue> queue) { queue_ = std::move(queue); }
  /// Runs `work()` on the host when all that came before it has run.
  template <class F>
  void then(F&& work) {
    if (!queue_) return std::forward<F>(work)();
    only_once("work of the host in it");
    queue_->put(std::forward<F>(work));
  }
  /// That all that has come by now has run.
  Event event() const { return {queue_, queue_ ? queue_->mark() : 0}; }
  /// What comes from now on runs when `event` is past, and only if that went well.
  void follow(const Event& event) const { queue_ ? queue_->follow(event) : event.wait(); }
  /// Returns when all has run; throws what any of it threw.
  void wait() const { event().wait(); }

  /// See StreamQueue::only_once().
  void only_once(const char* why) const {
    if (queue_) queue_->only_once(why);
  }
  /// A step begins: see StreamQueue::stalls().
  void begin_step() const {
    if (queue_) queue_->begin_step();
  }
  /// How often the host has waited for what it had put in during a step: 0 where work runs at once,
  /// and where a step is as it should be.
  std::uint64_t stalls() const { return queue_ ? queue_->stalls() : 0; }

  void record_to(Recorder* recorder) { recorder_ = recorder; }
  Recorder* recorder() const { return recorder_; }
  void listen_with(Listener* listener) { listener_ = listener; }
  Listener* listener() const { return listener_; }

  /// While set, collectives on views that are started from this stream do nothing: what a step
  /// would take if communication were free. Results are wrong on purpose.
  void silence(bool silent) { silent_ = silent; }
  bool silent() const { return silent_; }

  /// The layer under which the following spans are recorded; `name` is for messages and must
  /// outlive the work. With `all`, they are of this pass, whatever pass the kernels are made for.
  void enter(std::int32_t layer, const char* name = "", std::optional<Pass> all = {}) {
    layer_ = layer, layer_name_ = name, all_ = all;
  }
  /// Does `work`, all of which is recorded under this pass, whatever pass its kernels are made for.
  template <class Work>
  void under(Pass all, Work&& work) {
    const std::optional<Pass> before = std::exchange(all_, pass(all));
    std::forward<Work>(work)();
    all_ = before;
  }
  /// Under which pass work of `pass` is recorded.
  Pass pass(Pass pass) const { return all_.value_or(pass); }
  std::int32_t layer() const { return layer_; }
  const char* layer_name() const { return layer_name_; }

  template <class Work>
  void run(Pass pass, const char* what, Work&& work) {
    time({layer_, this->pass(pass), Lane::compute, what, 0, 0, 0}, std::forward<Work>(work));
  }
  /// The same, where all but the times of `span` is known.
  template <class Work>
  void time(Span span, Work&& work) {
    if (!recorder_) return std::forward<Work>(work)();
    if (queue_) return queue_->time(*recorder_, span, [&] { std::forward<Work>(work)(); });
    span.begin = now();
    std::forward<Work>(work)();
    span.end = now();
    recorder_->record(span);
  }

 private:
  std::shared_ptr<StreamQueue> queue_;
  Recorder* recorder_ = nullptr;
  Listener* listener_ = nullptr;
  bool silent_ = false;
  std::int32_t layer_ = -1;
  const char* layer_name_ = "";
  std::optional<Pass> all_;
};

/// Between two listeners' calls, a layer's part of a phase; nothing where nobody listens.
class LayerScope {
 public:
  LayerScope(Stream& stream, std::int32_t layer, const char* name, LayerRun::Phase phase)
      : listener_(stream.listener()) {
    if (!listener_) return;
    run_ = {layer, name, phase, now(), 0};
    listener_->begin(run_);
  }
  ~LayerScope() {
    if (!listener_) return;
    run_.end = now();
    listener_->end(run_);
  }
  LayerScope(const LayerScope&) = delete;
  LayerScope& operator=(const LayerScope&) = delete;

 private:
  Listener* listener_;
  LayerRun run_;
};

}  // namespace lamina
