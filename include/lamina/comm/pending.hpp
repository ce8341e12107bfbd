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
  ~Pending() { finish(); }
  Pending(Pending&&) = default;  // leaves the source finished
  Pending& operator=(Pending&& other) noexcept {
    finish();
    queue_ = std::move(other.queue_);
    ticket_ = other.ticket_;
    layer_ = other.layer_;
    pass_ = other.pass_;
    collective_ = other.collective_;
    return *this;
  }

  bool done() const noexcept { return !queue_ || queue_->done(ticket_); }

  /// Waits for the result, and records the wait on `stream` if there was one, waking up included,
  /// under the layer and pass that started the collective. Throws what the collective threw.
  void wait(Stream& stream) {
    if (!queue_) return;
    const auto queue = std::move(queue_);
    if (queue->done(ticket_) || !stream.recorder()) return queue->wait(ticket_);
    const double begin = now();
    queue->wait(ticket_);
    stream.recorder()->record({layer_, pass_, Lane::wait, name(collective_), begin, now(), 0});
  }

 private:
  void finish() noexcept {
    if (queue_) queue_->wait_quietly(ticket_);
    queue_.reset();
  }

  std::shared_ptr<CommQueue> queue_;
  CommQueue::Ticket ticket_ = 0;
  std::int32_t layer_ = -1;
  Pass pass_ = Pass::forward;
  Collective collective_ = Collective::barrier;
};

}  // namespace lamina
