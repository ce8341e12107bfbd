// LayerCallback: a function of the user's that is called for every layer, as it runs.
#pragma once

#include <lamina/tensor/stream.hpp>

#include <functional>
#include <utility>

namespace lamina {

/// Calls `done` whenever a layer has gone forward or backward, or a bucket been updated, under the
/// name of the layer that completes it, on the thread that ran it. The time of a run includes what
/// it waited for.
///
///   LayerCallback each([](const LayerRun& run) { use(run.name, run.end - run.begin); });
///   trainer.stream().listen_with(&each);
class LayerCallback final : public Listener {
 public:
  explicit LayerCallback(std::function<void(const LayerRun&)> done) : done_(std::move(done)) {}
  void end(const LayerRun& run) override { done_(run); }

 private:
  std::function<void(const LayerRun&)> done_;
};

}  // namespace lamina
