// How a profile is made.
#include <lamina/profile/measure.hpp>

#include <cmath>

namespace lamina {

namespace {

/// What one rank measured, in seconds per step.
struct RankRow {
  std::uint64_t key = 0;  ///< of layer name and pass: ranks may differ in their reorders
  double time = 0, comm = 0, exposed = 0;
};

/// All ranks' lists of plain structs, by rank.
template <class T>
std::vector<std::vector<T>> gather(const Communicator& ranks, const std::vector<T>& mine) {
  std::string bytes(mine.size() * sizeof(T), '\0');
  if (!mine.empty()) std::memcpy(bytes.data(), mine.data(), bytes.size());
  std::vector<std::vector<T>> all;
  for (const std::string& s : ranks.all_gather_text(bytes)) {
    all.emplace_back(s.size() / sizeof(T));
    if (!s.empty()) std::memcpy(all.back().data(), s.data(), s.size());
  }
  return all;
}

Spread spread(const std::vector<double>& by_rank) {
  Spread s{by_rank[0], 0, by_rank[0], 0};
  for (std::size_t r = 0; r < by_rank.size(); ++r) {
    s.min = std::min(s.min, by_rank[r]);
    s.mean += by_rank[r] / double(by_rank.size());
    if (by_rank[r] > s.max) s.max = by_rank[r], s.slowest = int(r);
  }
  return s;
}

/// Minimum, median and standard deviation over the steps; those without a span count as zero.
void spread_over_steps(ProfileRow& row, std::vector<double> values, int steps) {
  values.resize(std::size_t(steps));
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  double mean = 0, square = 0;
  for (const double v : values) mean += v / double(n);
  for (const double v : values) square += (v - mean) * (v - mean);
  row.step_min = values[0];
  row.step_median = (values[(n - 1) / 2] + values[n / 2]) / 2;
  row.step_std = n > 1 ? std::sqrt(square / double(n - 1)) : 0;
}

/// What the arithmetic says about a pass of a step; all rows of a step share the description.
ProfileRow describe_row(const Step& step, int index, Pass pass, const UpdateRule& rule) {
  ProfileRow row;
  row.layer = index, row.pass = pass;
  row.name = step.name, row.type = step.layer->type(), row.describe = step.layer->describe();
  row.split = step.output.split.text();
  row.algorithm = step.placement.algorithm;
  row.workspace = double(step.placement.workspace + step.placement.scratch);
  // What flows in says how wide an element is: the loss writes its few sums as f64.
  const DType t = step.x.empty() ? step.output.dtype : step.x[0].dtype;
  const Cost cost = step.layer->cost(step.input_shapes, step.output.split, t);
  row.work = pass == Pass::forward       ? cost.forward
             : pass == Pass::input_grad  ? cost.input_grad
             : pass == Pass::weight_grad ? cost.weight_grad
                                         : update_work(rule, cost.parameters, t);
  return row;
}

std::string describe(const UpdateRule& rule) {
  if (rule.kind != UpdateRule::Kind::sgd)
    return rule.kind == UpdateRule::Kind::adam ? "adam" : "adamw";
  std::string s = "sgd";
  if (rule.momentum != 0) append(s, text(" momentum ", rule.momentum));
  return rule.nesterov ? s + " nesterov" : s;
}

}  // namespace

Profile make_profile(const Network& network, const Profiler& profiler, const UpdateRule& rule,
                     const Communicator& ranks) {
  check(network.placed(), "profile: the network is not placed");
  check(profiler.steps() > 0, "profile: no step was measured");
  const PlaceOptions& placing = network.placing();
  Profile p;
  p.backend = placing.backend->description();
  p.dtype = name(placing.dtype);
  p.optimizer = describe(rule);
  p.ranks = ranks.size(), p.steps = profiler.steps(), p.batch = placing.batch;

  // Candidates in the network's order, with what this rank measured.
  const double steps = profiler.steps();
  double wall = 0, compute = 0, waiting = 0;
  for (const double s : profiler.seconds()) wall += s / steps;
  std::vector<RankRow> mine;
  for (int i = -1; i < int(network.steps().size()); ++i) {
    const Step* step = i > 0 ? &network.steps()[std::size_t(i)] : nullptr;
    for (int k = 0; k < pass_count; ++k) {
      const Pass pass = Pass(k);
      const Profiler::Cell& cell = profiler.cell(i, pass);
      ProfileRow row;
      if (step)
        row = describe_row(*step, i, pass, rule);
      else
        row.name = i < 0 ? outside_layers : "input", row.layer = i, row.pass = pass;
      const auto of = [&](Lane lane) { return cell.seconds[std::size_t(lane)] / steps; };
      mine.push_back({key_of(text(row.name, '\n', name(pass))), of(Lane::compute),
                      of(Lane::communication), of(Lane::wait)});
      compute += mine.back().time, waiting += mine.back().exposed;
      row.comm_bytes = cell.bytes / steps;
      spread_over_steps(row, cell.steps, profiler.steps());
      for (const auto& kernel : cell.kernels)
        row.kernels.push_back({kernel.what, kernel.lane, double(kernel.calls) / steps,
                               kernel.seconds / steps, kernel.bytes / steps});
      p.rows.push_back(std::move(row));
    }
  }

  const auto all = gather(ranks, mine);
  for (std::size_t i = 0; i < mine.size(); ++i) {
    std::vector<double> time, comm, exposed;
    for (const auto& rows : all) {
      RankRow found;
      const auto same = [&](const RankRow& r) { return r.key == mine[i].key; };
      if (i < rows.size() && same(rows[i]))
        found = rows[i];
      else if (const auto it = std::find_if(rows.begin(), rows.end(), same); it != rows.end())
        found = *it;
      time.push_back(found.time), comm.push_back(found.comm), exposed.push_back(found.exposed);
    }
    ProfileRow& row = p.rows[i];
    row.time = spread(time);
    row.comm = spread(comm);
    row.exposed = spread(exposed);
  }
  std::erase_if(p.rows, [](const ProfileRow& r) {
    return r.time.max <= 0 && r.comm.max <= 0 && r.exposed.max <= 0;
  });
  // Work outside of layers last: it has no place in the network's order.
  std::stable_partition(p.rows.begin(), p.rows.end(),
                        [](const ProfileRow& r) { return r.layer >= 0; });

  p.compute = spread(ranks.all_gather_value(compute));
  p.sum_layers = spread(ranks.all_gather_value(compute + waiting));
  p.end_to_end = spread(ranks.all_gather_value(wall));
  return p;
}

Profile profile(Network& network, const Communicator& ranks, ProfileOptions options) {
  if (!network.placed()) {
    check(options.batch > 0, "profile: the network is not placed, so a batch is needed");
    network.place({.batch = options.batch,
                   .backend = make_backend(options.backend, options.dtype),
                   .ranks = ranks,
                   .dtype = options.dtype});
    network.initialize(0);
  }
  const Step& loss = network.steps().back();
  check(loss.layer->type() == "SoftmaxCrossEntropy", "profile: the network ends in ", loss.name,
        " (", loss.layer->type(), "): expected a loss, SoftmaxCrossEntropy");

  const Random random(1, std::uint64_t(ranks.rank()));
  const View x = network.x();
  for (std::int64_t i = 0; i < x.shape.size(); ++i)
    if (x.dtype == DType::f64)
      x.as<double>()[i] = random.uniform(std::uint64_t(i)) - 0.5;
    else
      x.as<float>()[i] = random.uniform(std::uint64_t(i)) - 0.5f;
  const Tensor labels({x.shape.n, 1, 1, 1}, DType::i32);
  for (std::int64_t i = 0; i < x.shape.n; ++i)
    labels.as<std::int32_t>()[i] = std::int32_t(i % loss.input_shapes[0].c);

  // Running averages would move towards those of the made-up samples.
  std::vector<std::pair<const View*, std::string>> kept;
  for (const auto& named : network.parameters())
    if (const View& v = named.parameter->value; !named.parameter->trained)
      kept.emplace_back(&v, std::string(v.as<char>(), v.bytes()));

  Stream stream;
  Context context{.stream = stream,
                  .first = network.rows().begin,
                  .rows = double(network.placing().batch),
                  .labels = labels};
  const auto step = [&] {
    network.forward(context);
    network.backward(context);
    for (const auto& named : network.parameters())
      if (named.parameter->trained) named.parameter->wait(stream);
    ++context.step;
  };
  Profile result = profile_steps(network, stream, ranks, {}, options, step);
  for (const auto& [view, bytes] : kept) std::memcpy(view->data, bytes.data(), bytes.size());
  return result;
}

}  // namespace lamina
