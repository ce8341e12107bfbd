// Pending: a collective that has been started. Keep it beside the buffer that it protects.
#pragma once

#include <lamina/comm/queue.hpp>

namespace lamina {

/// Move-only. A default one is finished. The destructor waits, and swallows the error, which the
/// next collective throws again.
class [[nodiscard]] Pending {
 public:
  Pending() = default;
  /// `by_device`: that it runs in a stream of a device's, and the queue looks after it there.
  Pending(std::shared_ptr<CommQueue> queue, CommQueue::Ticket ticket, const Operation& operation,
          bool by_device)
      : queue_(std::move(queue)),
        ticket_(ticket),
        layer_(operation.layer),
        pass_(operation.pass),
        collective_(operation.collective),
        by_device_(by_device) {}
  /// Of one that is done at `event`.
  Pending(std::shared_ptr<CommQueue> queue, Event event)
      : queue_(std::move(queue)), event_(std::move(event)) {}
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
    by_device_ = other.by_device_;
    return *this;
  }

  bool done() const noexcept {
    return !queue_ || (event_.queue ? event_.past() : queue_->done(ticket_));
  }

  /// Waits for the result: of what a device runs, `stream` does, before what comes next on it; else
  /// the caller. (What lies on a device and goes by way of the host cannot be waited for there: a
  /// driver has one thread for all work of the host's, and copies may need it.) Records the wait if
  /// there was one, waking up included, under the layer and pass that started the collective.
  /// Throws what the collective threw.
  void wait(Stream& stream) {
    if (!queue_) return;
    if (event_.queue) {
      queue_->check_health();
      stream.follow(event_);
      event_ = {};
      queue_.reset();
      return;
    }
    const auto wait = [queue = queue_, recorder = stream.recorder(), ticket = ticket_,
                       layer = layer_, pass = pass_, what = name(collective_)] {
      if (queue->done(ticket) || !recorder) return queue->wait(ticket);
      const double begin = now();
      queue->wait(ticket);
      recorder->record({layer, pass, Lane::wait, what, begin, now(), 0});
    };
    by_device_ ? stream.then(wait) : wait();
    queue_.reset();
  }

 private:
  void finish() noexcept {
    if (queue_ && event_.queue)
      wait_for_event();
    else if (queue_)
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
  Event event_;  ///< of one that a device runs
  CommQueue::Ticket ticket_ = 0;
  std::int32_t layer_ = -1;
  Pass pass_ = Pass::forward;
  Collective collective_ = Collective::barrier;
  bool by_device_ = false;
};

}  // namespace lamina
