// Repeated: what a stream is given again and again, the same each time but for what lies in memory.
#pragma once

#include <lamina/base/naming.hpp>
#include <lamina/tensor/stream.hpp>

#include <memory>
#include <utility>

namespace lamina {

/// Work that is recorded once, where a device can do so, and from then on put in as a whole. What
/// it does on the host besides must leave that as it was: it is not done again.
class Repeated {
 public:
  /// Runs work(), or what has been recorded of it; records it first if told to. While somebody
  /// records spans or listens, and while collectives are silent, it runs piece by piece.
  template <class Work>
  void run(Stream& stream, bool record, Work&& work) {
    StreamQueue* const queue = stream.queue().get();
    const bool watched = stream.recorder() || stream.listener() || stream.silent();
    if (!queue || !queue->records() || watched) return std::forward<Work>(work)();
    if (!recording_ && !record) {
      queue->why_only_once();
      std::forward<Work>(work)();
      why_not_ = queue->why_only_once();
      return;
    }
    if (!recording_)
      naming("recording a step", [&] { recording_ = queue->record(std::forward<Work>(work)); });
    recording_->play(stream);
  }
  bool recorded() const { return recording_ != nullptr; }
  /// What the last run has had that cannot be recorded, to be read as "a step has ..."; null where
  /// there was nothing.
  const char* why_not() const { return why_not_; }

 private:
  std::unique_ptr<Recording> recording_;
  const char* why_not_ = "not run yet";
};

}  // namespace lamina
