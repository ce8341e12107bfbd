// Graphs of the stand-in for CUDA's runtime: works that run one after the other, in any order by
// chance that what was recorded allows. What does not come back to the stream where recording began
// is refused.
#include "fake/stream.hpp"

using namespace lamina::test;

struct CUgraph_st {
  std::vector<FakeCapture::Node> nodes;
  std::vector<FakeStream*> streams;
};
struct CUgraphExec_st {
  std::shared_ptr<const CUgraph_st> graph;
};

namespace {

/// Whether all nodes are among those that `tail` comes after, or are `tail`.
bool joined(const FakeCapture& capture, const FakeCapture::Nodes& tail) {
  std::vector<bool> reached(capture.nodes.size());
  for (const std::size_t node : tail) reached[node] = true;
  for (std::size_t i = reached.size(); i-- > 0;)  // a node comes after earlier ones
    if (reached[i])
      for (const std::size_t before : capture.nodes[i].after) reached[before] = true;
  return std::ranges::all_of(reached, [](bool r) { return r; });
}

void run(const CUgraph_st& graph) {
  static std::atomic<std::uint64_t> runs = 0;
  const lamina::Random random(lamina::test::device_seed(), runs++);
  std::vector<std::vector<std::size_t>> next(graph.nodes.size());
  std::vector<std::size_t> missing(graph.nodes.size()), ready;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    missing[i] = graph.nodes[i].after.size();
    for (const std::size_t before : graph.nodes[i].after) next[before].push_back(i);
    if (missing[i] == 0) ready.push_back(i);
  }
  for (std::uint64_t draws = 0; !ready.empty();) {
    std::swap(ready[std::size_t(random.uniform(draws++) * double(ready.size()))], ready.back());
    const std::size_t node = ready.back();
    ready.pop_back();
    graph.nodes[node].work();
    for (const std::size_t i : next[node])
      if (--missing[i] == 0) ready.push_back(i);
  }
}

}  // namespace

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (const cudaError_t why = refused()) return why;
  if (fake(stream).capture || recorded) return cudaErrorInvalidValue;
  recorded = fake(stream).capture = std::make_shared<FakeCapture>();
  fake(stream).tail.clear();
  recorded->streams.push_back(&fake(stream));
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* to) {
  const std::shared_ptr<FakeCapture> capture = fake(stream).capture;
  *to = nullptr;
  if (!capture || capture->streams[0] != &fake(stream)) return cudaErrorStreamCaptureUnmatched;
  const bool whole = joined(*capture, fake(stream).tail);
  auto nodes = std::exchange(capture->nodes, {});  // events know of the capture for longer
  for (FakeStream* s : capture->streams) s->capture = nullptr;
  recorded = nullptr;
  if (capture->broken) return cudaErrorStreamCaptureInvalidated;
  if (!whole) return cudaErrorStreamCaptureUnjoined;
  *to = new CUgraph_st{std::move(nodes), capture->streams};
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* to, cudaGraph_t graph, unsigned long long) {
  if (const cudaError_t why = refused_in_capture()) return why;
  count(&FakeCounts::allocations);
  *to = new CUgraphExec_st{std::make_shared<const CUgraph_st>(*graph)};
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  count(&FakeCounts::launches);
  for (FakeStream* s : graph->graph->streams) s->launched_in = &fake(stream);
  return stream->put([of = graph->graph] { run(*of); });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

/// What has been launched still runs.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete graph;
  return cudaSuccess;
}
