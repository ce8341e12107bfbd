// Pending: a collective that has been started. Keep it beside the buffer that it protects.
#pragma once

#include <lamina/comm/queue.hpp>

namespace lamina {

/// Move-only. A default one is finished. The destructor waits, and swallows the error, which the
/// next collective throws again.
class [[nodiscard]] Pending {
 public:
  Pending() = default;
  Pending(std::shared_ptr<CommQueue> queue, CommQueue::Ticket ticket, const Operation& operation)
      : queue_(std::move(queue)),
        ticket_(ticket),
        layer_(operation.layer),
        pass_(operation.pass),
        collective_(operation.collective) {}
  /// Of one that a device runs, when it is done there.
  Pending(std::shared_ptr<CommQueue> queue, Event event, const Operation& operation)
      : Pending(std::move(queue), CommQueue::Ticket(0), operation) {
    event_ = std::move(event);
  }
  ~Pending() { finish(); }
  Pending(Pending&&) = default;  // leaves the source finished
  Pending& operator=(Pending&& other) noexcept {
    finish();
    queue_ = std::move(other.queue_);
    event_ = std::move(other.event_);
    ticket_ = other.ticket_;
    layer_ = other.layer_;
    pass_ = other.pass_;
    collective_ = other.collective_;
    return *this;
  }

  bool done() const noexcept { return !queue_ || (event_.past() && queue_->done(ticket_)); }

  /// Waits for the result: of what a device runs, `stream` does, before what comes next on it; else
  /// the caller. (What lies on a device and goes by way of the host cannot be waited for there: a
  /// driver has one thread for all work of the host's, and copies may need it.) Records the wait if
  /// there was one, waking up included, under the layer and pass that started the collective.
  /// Throws what the collective threw.
  void wait(Stream& stream) {
    if (!queue_) return;
    Span span{layer_, pass_, Lane::wait, name(collective_), 0, 0, 0};
    if (event_.queue) return follow(stream, span);
    const auto queue = std::exchange(queue_, nullptr);
    if (queue->done(ticket_) || !stream.recorder()) return queue->wait(ticket_);
    span.begin = now();
    queue->wait(ticket_);
    span.end = now();
    stream.recorder()->record(span);
  }

 private:
  void follow(Stream& stream, const Span& span) {
    queue_->check_health();
    stream.time(span, [&] { stream.follow(event_); });
    queue_ = nullptr, event_ = {};
  }
  void finish() noexcept {
    if (!queue_) return;
    wait_for_event();
    queue_->wait_quietly(ticket_);
    queue_.reset();
  }
  void wait_for_event() noexcept {
    try {
      std::exchange(event_, {}).wait();
    } catch (...) {  // as said above
    }
  }

  std::shared_ptr<CommQueue> queue_;
  Event event_;                   ///< of one that a device runs
  CommQueue::Ticket ticket_ = 0;  ///< of another
  std::int32_t layer_ = -1;
  Pass pass_ = Pass::forward;
  Collective collective_ = Collective::barrier;
};

}  // namespace lamina
