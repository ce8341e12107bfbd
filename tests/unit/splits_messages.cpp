// The group that a message names is the one on which the collective runs, and its bytes are those
// of the rank that sends the most.
#include "catch.hpp"
#include "support/splits.hpp"

#include <lamina/base/random.hpp>
#include <lamina/comm/imagined.hpp>
#include <lamina/cost/group.hpp>
#include <lamina/plan/plan.hpp>

#include <functional>
#include <set>
#include <tuple>

using namespace lamina;
using namespace lamina::test;

namespace {

/// As spans have it: see Party.
std::uint64_t group_key(const std::vector<int>& ranks) {
  return key_of({reinterpret_cast<const char*>(ranks.data()), ranks.size() * sizeof(int)});
}

/// The collectives of one rank in one step of the network.
class Collectives final : public Recorder {
 public:
  void record(const Span& span) override {
    const std::lock_guard lock(mutex_);
    if (span.lane == Lane::communication) spans.push_back(span);
  }
  std::vector<Span> spans;

 private:
  std::mutex mutex_;
};

/// What went through one kind of collective on one group in a step of the network.
struct Traffic {
  std::string name;  // of the step
  Pass pass;
  std::string op;
  std::vector<int> ranks;
  auto operator<=>(const Traffic&) const = default;
};
using Bytes = std::map<Traffic, double>;

/// By the layers' costs: for each message, each of the groups along its axes.
Bytes stated(const PlacedNetwork& net, std::map<Traffic, double>& padding) {
  Bytes all;
  for (const Step& step : net.steps()) {
    if (!step.layer) continue;
    const Split split = step.split();
    const bool has_dx = std::ranges::any_of(
        step.inputs, [&](int i) { return net.steps()[std::size_t(i)].needs_grad; });
    for (const Message& m : step.layer->cost(step.input_shapes, split, DType::f64).messages) {
      if (m.bytes == 0 || split.ways(m.axes) == 1) continue;
      if (m.pass == Pass::input_grad && !has_dx) continue;
      std::set<std::vector<int>> groups;
      for (int r = 0; r < split.ways(); ++r) groups.insert(group(split, split.place(r), m.axes));
      for (const std::vector<int>& ranks : groups) {
        check(int(ranks.size()) == split.ways(m.axes), "a group of another size");
        const Traffic t{step.name, m.pass, name(m.op), ranks};
        all[t] += m.bytes;
        // Buffers in a bucket begin at cache lines.
        if (m.pass == Pass::weight_grad) padding[t] += 2 * 63;
      }
    }
  }
  return all;
}

/// What the ranks recorded; of a group, that of the rank that sends the most. Throws Error where a
/// collective ran on a group of which none of `expected` knows.
Bytes recorded(const PlacedNetwork& net, const std::vector<Collectives>& ranks,
               const Bytes& expected) {
  Bytes most;
  for (int r = 0; r < int(ranks.size()); ++r) {
    Bytes mine;
    for (const Span& span : ranks[std::size_t(r)].spans) {
      const std::string& name = net.steps()[std::size_t(span.layer)].name;
      const auto same = std::ranges::find_if(expected, [&](const auto& e) {
        const Traffic& t = e.first;
        return t.name == name && t.pass == span.pass && t.op == span.what &&
               group_key(t.ranks) == span.party.group && t.ranks[std::size_t(span.party.rank)] == r;
      });
      check(same != expected.end(), name, ": ", lamina::name(span.pass), ' ', span.what, " of ",
            span.bytes, " bytes on rank ", r, " of a group that no message names");
      mine[same->first] += span.bytes;
    }
    for (const auto& [traffic, bytes] : mine) most[traffic] = std::max(most[traffic], bytes);
  }
  return most;
}

/// Runs a step under these splits; "" where all that was sent was stated, and the other way round.
std::string wrong(const Network& net, std::int64_t batch, const std::vector<Split>& splits,
                  int ranks) {
  std::vector<Collectives> spans(static_cast<std::size_t>(ranks));
  std::string error;
  run_ranks(ranks, [&](World& world) {
    PlacedNetwork placed = net.place({.batch = batch,
                                      .backend = make_backend("reference", DType::f64),
                                      .ranks = world,
                                      .splits = splits,
                                      .dtype = DType::f64,
                                      .bucket_mb = 0,
                                      .first_bucket_mb = 0});
    placed.initialize(1);
    const Blocks rows = Blocks::of({batch, 1, 1, 1}, splits.back(), Axis::batch, ranks);
    const Tensor labels({rows.box[std::size_t(world.rank())].n.size, 1, 1, 1}, DType::i32,
                        placed.placing().backend->memory());
    Stream stream;
    Context context{stream};
    context.targets = labels;
    stream.record_to(&spans[std::size_t(world.rank())]);
    placed.forward(context), placed.backward(context);
    for (const auto& n : placed.parameters()) n.parameter->wait(stream);
    stream.wait();
    world.comm().barrier();  // each has recorded
    if (world.rank() > 0) return;
    Bytes padding;
    const Bytes said = stated(placed, padding);
    const Bytes sent = recorded(placed, spans, said);
    std::map<std::tuple<std::string, Pass, std::string, std::size_t>, double> most;
    for (const auto& [t, bytes] : said) {
      const double real = sent.contains(t) ? sent.at(t) : 0;
      double& of_all = most[{t.name, t.pass, t.op, t.ranks.size()}];
      of_all = std::max(of_all, real);
      if (real > bytes + padding[t] || real == 0)
        error = text(t.name, ": ", name(t.pass), ' ', t.op, " of ", real, " bytes, but ", bytes,
                     " were stated, on ", t.ranks.size(), " ranks");
    }
    for (const auto& [t, bytes] : said)  // groups with smaller parts send less
      if (most[{t.name, t.pass, t.op, t.ranks.size()}] < bytes)
        error = text(t.name, ": ", name(t.pass), ' ', t.op, ": no group sends the ", bytes,
                     " bytes that were stated");
  });
  return error;
}

struct Case {
  std::string name;
  std::function<void(Network&, Node)> add;  // behind this one
};

template <class L>
Case one(typename L::Options options, std::string name = {}) {
  return {name, [options](Network&, Node x) { x.add<L>(options, "it"); }};
}
template <class L>
Case two() {
  return {"", [](Network& net, Node x) { net.join<L>({x, x.add<ReLU>({}, "b")}, {}, "it"); }};
}

const Case cases[] = {
    one<AvgPool2D>({.window = 2}),
    one<BatchNorm>({}, "local"),
    one<BatchNorm>({.global = true}, "global"),
    one<BatchNorm>({.affine = false}, "plain"),
    one<Conv2D>({.channels = 6, .kernel = 3, .pad = 1}),
    one<Conv2D>({.channels = 4, .kernel = 3, .stride = 2, .pad = 1, .bias = false}, "strided"),
    one<Conv2D>({.channels = 8, .kernel = 3, .pad = 1, .groups = 4}, "grouped"),
    one<Dropout>({}),
    one<Flatten>({}),
    one<GlobalAvgPool>({}),
    one<LRN>({.size = 3}),
    one<LeakyReLU>({}),
    one<Linear>({.features = 6}),
    one<MaxPool2D>({.window = 3, .stride = 1, .pad = 1}),
    one<PadChannels>({.channels = 8}),
    one<ReLU>({}),
    one<Sigmoid>({}),
    one<Softmax>({}),
    one<Tanh>({}),
    two<Add>(),
    two<Concat>(),
};

Network network_of(const Case& c) {
  Network net({.c = 4, .h = 6, .w = 5});
  c.add(net, net.add<Conv2D>({.channels = 4, .kernel = 1}, "first"));
  net.add<Linear>({.features = 6}, "fc");
  net.add<SoftmaxCrossEntropy>({}, "loss");
  return net;
}

/// Even ones; and some in which the last part is the largest.
std::vector<Split> splits_on(int ranks) {
  std::vector<Split> all = all_splits(ranks, all_but_input | Axis::input);
  std::erase_if(all, [&](const Split& split) {
    return split.ways() != ranks && (ranks != 4 || split.ways() != 3);
  });
  if (ranks == 2) all.push_back({.height = 2, .shares = {.height = {1, 3}}});
  if (ranks != 4) return all;
  const Shares last{1, 3};
  all.push_back({.batch = 2, .channel = 2, .shares = {.batch = last, .channel = last}});
  all.push_back({.batch = 2, .height = 2, .shares = {.batch = last}});
  all.push_back({.channel = 2, .width = 2, .shares = {.channel = last}});
  all.push_back({.channel = 2, .input = 2, .shares = {.channel = last, .input = last}});
  return all;
}

int check_messages(const Network& net, const std::string& layer) {
  constexpr std::int64_t batch = 8;
  const auto& graph = net.graph();
  const auto it = std::ranges::find(graph, layer, &Network::Vertex::name);
  const auto xs = net.input_shapes(*it, batch);
  int tried = 0;
  for (const int ranks : {2, 3, 4, 6, 8})
    for (const Split& split : splits_on(ranks)) {
      if (!why_illegal(*it->layer, xs, split, ranks).empty()) continue;
      std::vector<Split> splits(graph.size(), input_split(batch, ranks));
      splits[std::size_t(it - graph.begin())] = split;
      INFO(layer << ' ' << split.text() << " on " << ranks << " ranks");
      CHECK(wrong(net, batch, splits, ranks) == "");
      ++tried;
    }
  return tried;
}

}  // namespace

TEST_CASE("nothing is sent for the gradient of what the network starts with", "[splits]") {
  Network net({.c = 4, .h = 6, .w = 5});
  net.add<BatchNorm>({.global = true}, "it").add<Linear>({.features = 6}, "fc");
  net.add<SoftmaxCrossEntropy>({}, "loss");
  CHECK(check_messages(net, "it") > 8);
}

TEST_CASE("a plan's table has no message for the gradient of what a kernel adds", "[host]") {
  Network net({.c = 4, .h = 8, .w = 8});
  const auto conv = [&](const char* name) {
    return net.input().add<Conv2D>({.channels = 4, .kernel = 3, .pad = 1}, name);
  };
  net.join<Add>({conv("a"), conv("b")}, {}, "add").add<ReLU>({}, "relu");
  net.add<Linear>({.features = 2}, "fc");
  net.add<SoftmaxCrossEntropy>({}, "loss");
  Plan plan = built_in_plan("data", net, 4, 2);
  for (const char* layer : {"a", "b", "add", "relu"}) plan.split(layer, {.channel = 2});
  const auto decisions = decide(plan, net, 4);
  for (const bool fuse : {false, true}) {
    ImaginedRanks two(2);
    const PlacedNetwork placed(net, {.batch = 4,
                                     .backend = reference_backend(),
                                     .ranks = two.as(0),
                                     .splits = splits_of(decisions),
                                     .fuse = fuse});
    CHECK(plan_table(decisions, placed).find("dx all_reduce") == std::string::npos);
    CHECK(std::ranges::any_of(placed.steps(), &Step::absorbed) == fuse);
  }
}

TEST_CASE("messages name the groups on which collectives run, under every split", "[splits]") {
  std::set<std::string_view> types;
  for (const Case& c : cases) {
    const Network net = network_of(c);
    const auto it = std::ranges::find(net.graph(), "it", &Network::Vertex::name);
    INFO(it->layer->type() << ' ' << c.name);
    types.insert(it->layer->type());
    CHECK(check_messages(net, "it") > 8);
  }
  CHECK(check_messages(network_of(one<ReLU>({})), "loss") > 8);
  CHECK(types.size() == 17);  // all but the loss, and what the network inserts
}

TEST_CASE("a group's ranks, their distance and their nodes") {
  // Input channels count first, then output channels, columns, rows and samples.
  const Split split{.batch = 2, .channel = 2, .height = 3};
  const Place last = split.place(11);
  CHECK(group(split, last, Axis::channel) == std::vector{10, 11});
  CHECK(group(split, last, Axis::height) == std::vector{7, 9, 11});
  CHECK(group(split, last, Axis::batch) == std::vector{5, 11});
  CHECK(group(split, last, Axis::batch | Axis::height) == std::vector{1, 3, 5, 7, 9, 11});
  CHECK(group(split, last, Axis::batch | Axis::channel) == std::vector{4, 5, 10, 11});
  CHECK(group(split, last, Axis::width) == std::vector{11});
  const auto stride_of = [&](Axis axes) { return stride(group(split, last, axes)); };
  CHECK(stride_of(Axis::width) == 0);
  CHECK(stride_of(Axis::channel) == 1);
  CHECK(stride_of(Axis::height) == 2);
  CHECK(stride_of(Axis::batch) == 6);
  CHECK(stride_of(Axis::batch | Axis::height) == 2);
  CHECK(stride_of(Axis::batch | Axis::channel) == 5);
  for (const Axis axes : {Axis::batch, Axis::channel, Axis::height, Axis::batch | Axis::channel})
    for (int r = 0; r < split.ways(); ++r)  // all groups are alike
      CHECK(stride(group(split, split.place(r), axes)) == stride_of(axes));
  const auto nodes_of = [&](Axis axes, int each) { return nodes(group(split, last, axes), each); };
  CHECK(nodes_of(Axis::channel, 2) == 1);
  CHECK(nodes_of(Axis::channel, 1) == 2);
  CHECK(nodes_of(Axis::height, 4) == 2);
  CHECK(nodes_of(Axis::batch, 4) == 2);
  CHECK(nodes_of(Axis::batch | Axis::height, 4) == 3);
  CHECK(nodes_of(Axis::width, 4) == 1);
  CHECK_THROWS_WITH(nodes({0, 1}, 0), "expected a rank or more on each node, got 0");
}
