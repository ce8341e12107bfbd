// How a profile is made of what the ranks recorded.
#pragma once

#include <lamina/base/host.hpp>
#include <lamina/base/inline.hpp>
#include <lamina/base/median.hpp>
#include <lamina/base/random.hpp>
#include <lamina/base/threads.hpp>
#include <lamina/layers/add.hpp>
#include <lamina/profile/detail/denied.hpp>
#include <lamina/profile/detail/late.hpp>
#include <lamina/profile/detail/own_part.hpp>
#include <lamina/profile/detail/pack.hpp>
#include <lamina/profile/profile.hpp>

#include <cmath>
#include <map>
#include <tuple>

namespace lamina {

namespace detail::making {

/// What one rank measured, per step.
struct RankRow {
  std::uint64_t key = 0;  ///< of layer name and pass: ranks may differ in their reorders
  double time = 0, comm = 0, exposed = 0;  // seconds
  double comm_bytes = 0, wire_bytes = 0;
  double late = 0, transfer = 0;  // seconds of `exposed`
  Work work = {};
};

/// Seconds of each step: of this rank's rows, and of all of them together.
struct StepTimes {
  explicit StepTimes(const std::vector<double>& wall)
      : unaccounted(wall), kernels(wall.size()), waiting(wall.size()) {}

  std::vector<std::vector<double>> row_kernels, row_waits;  // each as many as there are steps
  std::vector<double> unaccounted, kernels, waiting;

  void add(const Profiler::Cell& cell) {
    for (const auto& [from, rows, sum] :
         {std::tie(cell.steps, row_kernels, kernels), std::tie(cell.waits, row_waits, waiting)}) {
      std::vector<double>& its = rows.emplace_back(from);
      its.resize(sum.size());
      for (std::size_t s = 0; s < its.size(); ++s) sum[s] += its[s], unaccounted[s] -= its[s];
    }
  }

  double deviation_of(std::size_t row) const {
    std::vector<double> both = row_kernels[row];
    for (std::size_t s = 0; s < both.size(); ++s) both[s] += row_waits[row][s];
    return deviation(both);
  }
};

inline std::uint64_t key_of_row(const std::string& layer, Pass pass) {
  return key_of(text(layer, '\n', name(pass)));
}

/// The rows of all ranks that have the same key as row i of `all[rank]`, by rank; empty ones where
/// a rank has none.
inline std::vector<RankRow> same_row(const std::vector<std::vector<RankRow>>& all,
                                     std::uint64_t key, std::size_t i) {
  std::vector<RankRow> rows;
  for (const auto& theirs : all) {
    const auto same = [&](const RankRow& r) { return r.key == key; };
    if (i < theirs.size() && same(theirs[i])) {
      rows.push_back(theirs[i]);
    } else {
      const auto it = std::find_if(theirs.begin(), theirs.end(), same);
      rows.push_back(it != theirs.end() ? *it : RankRow());
    }
  }
  return rows;
}

inline Spread spread(const std::vector<RankRow>& rows, double RankRow::*member) {
  std::vector<double> values;
  for (const RankRow& r : rows) values.push_back(r.*member);
  return Spread::of(values);
}

inline Work mean_work(const std::vector<RankRow>& rows) {
  Work sum;
  for (const RankRow& r : rows) sum += r.work;
  for (double* all : {&sum.flops, &sum.bytes, &sum.padding}) *all /= double(rows.size());
  return sum;
}

/// Minimum, median and standard deviation over the steps; those without a span count as zero.
inline void spread_over_steps(ProfileRow& row, std::vector<double> values, int steps) {
  values.resize(std::size_t(steps));
  row.step_min = *std::min_element(values.begin(), values.end());
  row.step_median = median(values);
  row.step_std = std::max(0.0, deviation(values));
}

/// What the arithmetic says about a pass of a step on this rank, which but for the update runs once
/// for each micro-batch; all rows of a step share the description.
inline ProfileRow describe_row(const Step& step, int index, Pass pass, const UpdateRule& rule,
                               const PlaceOptions& placing) {
  ProfileRow row;
  row.layer = index, row.pass = pass, row.output = step.output.whole;
  row.name = step.name, row.type = step.layer->type(), row.describe = step.layer->describe();
  row.split = step.output.split.text();
  row.algorithm = step.placement.algorithm;
  row.workspace = double(step.placement.workspace + step.placement.scratch);
  const OwnPart own = own_part(step, placing);
  Cost cost = step.cost(placing.dtype, own.samples);
  const auto& dx = step.buffers.dx;
  bool has_dx = false;  // what it adds is none of its own
  for (std::size_t i = 0; i < dx.size(); ++i) has_dx |= !step.adds(i) && bool(dx[i]);
  if (!has_dx) cost.input_grad = {};  // nobody needs it: the network starts here
  const auto adding = [&](std::size_t count) {
    std::vector<Shape> parts(count, step.output.whole);
    for (Shape& part : parts) part.n = own.samples * step.output.split.batch;
    Split alike = step.output.split;
    alike.shares.batch = {};
    return Add({}).cost(parts, alike, placing.dtype.compute).forward;
  };
  // Several layers read y: their gradients are added up in this pass, or, where a kernel that reads
  // dy does so, one operand more is read.
  if (step.buffers.sum) cost.input_grad += adding(step.buffers.parts.size());
  if (step.buffers.more) {
    const Work two = adding(2);
    cost.weight_grad += Work{two.flops, two.bytes / 3};
  }
  row.work = pass == Pass::forward       ? cost.forward
             : pass == Pass::recompute   ? cost.recompute
             : pass == Pass::input_grad  ? cost.input_grad
             : pass == Pass::weight_grad ? cost.weight_grad
                                         : update_work(rule, updated_by(step), placing.dtype);
  if (pass == Pass::update) return row;
  const double times = placing.turns() * own.of_sample;
  for (double* all : {&row.work.flops, &row.work.bytes, &row.work.padding}) *all *= times;
  return row;
}

inline std::string describe(const UpdateRule& rule) {
  if (rule.kind == UpdateRule::Kind::custom) return rule.custom_name;
  if (rule.kind != UpdateRule::Kind::sgd)
    return rule.kind == UpdateRule::Kind::adam ? "adam" : "adamw";
  std::string s = "sgd";
  if (rule.momentum != 0) append(s, text(" momentum ", rule.momentum));
  return rule.nesterov ? s + " nesterov" : s;
}

/// Of the layers whose parameters are in a bucket, by step, the part of its bytes that each has.
using Shares = std::map<int, double>;

inline std::size_t row_of(int step, Pass pass) {
  return std::size_t(step + 1) * pass_count + std::size_t(pass);
}

/// Those of buckets in which there are several layers.
inline std::map<const Bucket*, Shares> shares_of(const PlacedNetwork& network) {
  std::map<const Bucket*, Shares> buckets;
  for (const auto& n : network.parameters())
    if (n.parameter->bucket)
      buckets[n.parameter->bucket][n.step] += double(n.parameter->form.bytes());
  std::erase_if(buckets, [](const auto& b) { return b.second.size() < 2; });
  for (auto& [bucket, layers] : buckets) {
    double total = 0;
    for (const auto& [step, bytes] : layers) total += bytes;
    for (auto& [step, bytes] : layers) bytes /= total;
  }
  return buckets;
}

/// Takes the kernels of these lanes out of a row, and gives each layer its part of them.
template <class OfLane>
void share_kernels(const Shares& layers, Pass pass, std::vector<ProfileRow>& rows,
                   const OfLane& ours) {
  // Backward runs from last to first, and so does the update: this layer completes the bucket.
  std::vector<ProfileKernel>& from = rows[row_of(layers.begin()->first, pass)].kernels;
  const std::vector<ProfileKernel> all = from;
  std::erase_if(from, [&](const ProfileKernel& k) { return ours(k.lane); });
  for (const auto& [step, part] : layers)
    for (ProfileKernel k : all) {
      if (!ours(k.lane)) continue;
      k.calls *= part, k.seconds *= part, k.bytes *= part;
      rows[row_of(step, pass)].kernels.push_back(std::move(k));
    }
}

/// What a collective of a bucket took is booked under the layer that started it, but belongs to all
/// whose parameters it carries: each gets its part.
inline void share_collective(const Shares& layers, Pass pass, std::vector<ProfileRow>& rows,
                             std::vector<RankRow>& mine, StepTimes& times) {
  const std::size_t starter = row_of(layers.begin()->first, pass);
  const double comm_bytes = rows[starter].comm_bytes, wire_bytes = rows[starter].wire_bytes;
  const RankRow sum = mine[starter];
  const std::vector<double> waits =
      std::exchange(times.row_waits[starter], std::vector<double>(times.waiting.size()));
  rows[starter].comm_bytes = rows[starter].wire_bytes = 0;
  mine[starter].comm = mine[starter].exposed = 0;
  mine[starter].late = mine[starter].transfer = 0;
  share_kernels(layers, pass, rows, [](Lane lane) { return lane != Lane::compute; });
  for (const auto& [step, part] : layers) {
    const std::size_t row = row_of(step, pass);
    RankRow& its = mine[row];
    rows[row].comm_bytes += part * comm_bytes, rows[row].wire_bytes += part * wire_bytes;
    its.comm += part * sum.comm, its.exposed += part * sum.exposed;
    its.late += part * sum.late, its.transfer += part * sum.transfer;
    for (std::size_t s = 0; s < waits.size(); ++s) times.row_waits[row][s] += part * waits[s];
  }
}

/// The layers of a bucket are updated at once, and the time is booked under the one that completes
/// it: each gets its part. False where they were updated one by one, by a loop of one's own.
inline bool share_update_time(const Shares& layers, std::vector<RankRow>& mine) {
  const int by = layers.begin()->first;
  for (const auto& [step, part] : layers)
    if (step != by && mine[row_of(step, Pass::update)].time > 0) return false;
  const double time = mine[row_of(by, Pass::update)].time;
  for (const auto& [step, part] : layers) mine[row_of(step, Pass::update)].time = part * time;
  return true;
}

/// The same with all that is known of it.
inline void share_update(const Shares& layers, std::vector<ProfileRow>& rows,
                         std::vector<RankRow>& mine, StepTimes& times) {
  if (!share_update_time(layers, mine)) return;
  const std::size_t by = row_of(layers.begin()->first, Pass::update);
  const std::vector<double> seconds = times.row_kernels[by];
  const std::optional<Counts> counts = rows[by].counts;
  share_kernels(layers, Pass::update, rows, [](Lane lane) { return lane == Lane::compute; });
  for (const auto& [step, part] : layers) {
    const std::size_t row = row_of(step, Pass::update);
    std::vector<double>& its = times.row_kernels[row] = seconds;
    for (double& s : its) s *= part;
    spread_over_steps(rows[row], its, int(its.size()));
    if (counts) rows[row].counts = *counts / (1 / part);
  }
}

/// What buckets have in common: the sums of gradients, the update, and with a sharded optimizer the
/// gathering of new weights.
inline void share_buckets(const PlacedNetwork& network, std::vector<ProfileRow>& rows,
                          std::vector<RankRow>& mine, StepTimes& times) {
  for (const auto& [bucket, layers] : shares_of(network)) {
    share_collective(layers, Pass::weight_grad, rows, mine, times);
    share_update(layers, rows, mine, times);
    if (bucket->sharded) share_collective(layers, Pass::update, rows, mine, times);
  }
}

/// Splits this rank's waiting into that for late ranks and that for transfer. Returns how far apart
/// the clocks may be, in seconds. Collective.
inline double tell_apart(const Profiler& profiler, const Communicator& ranks,
                         std::vector<RankRow>& mine) {
  const auto offsets = detail::clock_offsets(ranks);
  const auto runs =
      detail::unpack<Profiler::Run>(ranks.all_gather_text(detail::pack(profiler.runs())));
  const auto came = detail::all_had_come(runs, std::size_t(ranks.rank()), offsets);
  for (const Profiler::Wait& wait : profiler.waits()) {
    const std::size_t i = row_of(wait.layer, wait.pass);
    if (i >= mine.size()) continue;
    // The sample's steps stand for all.
    const Profiler::Cell& cell = profiler.cell(wait.layer, wait.pass);
    const double scale = cell.sampled > 0 ? mine[i].exposed / cell.sampled : 0;
    const double late = std::clamp(came[wait.run] - wait.begin, 0.0, wait.end - wait.begin);
    mine[i].late += late * scale, mine[i].transfer += (wait.end - wait.begin - late) * scale;
  }
  double error = 0;
  for (const auto& offset : offsets) error = std::max(error, offset.error);
  return error;
}

/// What a rank had of its processors in a step, and how far apart the clocks of others may be.
struct RankUse {
  double time, denied, switches, stolen, clock_error;
};

/// `busy`: seconds of a step that this rank, of `ranks`, did not wait.
inline RankUse use_of(const Profiler& profiler, double busy, int ranks) {
  const double steps = profiler.steps();
  const Usage& used = profiler.used();
  RankUse use{used.processor / steps, detail::denied(used, busy * steps, ranks) / steps,
              used.switches / steps, 0, 0};
  if (used.processors > 0) use.stolen = used.stolen / used.processors;
  return use;
}

inline void put_together(const std::vector<RankUse>& ranks, Profile& p) {
  const auto spread = [&](double RankUse::*member) {
    std::vector<double> values;
    for (const RankUse& r : ranks) values.push_back(r.*member);
    return Spread::of(values);
  };
  p.processor = {spread(&RankUse::time), spread(&RankUse::denied), spread(&RankUse::switches),
                 spread(&RankUse::stolen).max};
  p.clock_error = spread(&RankUse::clock_error).max;
}

/// The states that an optimizer has attached to a step's parameters, in bytes.
inline std::size_t states_of(const Step& step) {
  std::size_t bytes = 0;
  for (const Parameter* p : step.parameters())
    if (!p->states.empty())
      bytes += p->state_bytes(int(p->states.size()) - p->bucket->keeps_master());
  return bytes;
}

/// A span on its way to another rank; the names of its layer and its work follow.
struct PackedSpan {
  Pass pass;
  Lane lane;
  double begin, end, bytes;
  std::size_t layer, what;  ///< lengths of the names
};

inline std::string pack_timeline(const PlacedNetwork& network, const Profiler& profiler) {
  std::string s;
  for (const Span& span : profiler.last_step()) {
    const std::string_view what = span.what;
    const std::string layer =
        span.layer >= 0 ? network.steps()[std::size_t(span.layer)].name : std::string();
    const PackedSpan packed{span.pass,
                            span.lane,
                            span.begin - profiler.last_begin(),
                            span.end - profiler.last_begin(),
                            span.bytes,
                            layer.size(),
                            what.size()};
    s.append(reinterpret_cast<const char*>(&packed), sizeof packed);
    s.append(layer).append(what);
  }
  return s;
}

/// `layers` are the names by index of the rank that asks: ranks may differ in their reorders.
inline std::vector<TimelineSpan> unpack_timeline(const std::string& s,
                                                 const std::vector<std::string>& layers) {
  std::map<std::string_view, int> index;
  for (std::size_t i = 0; i < layers.size(); ++i) index.emplace(layers[i], int(i));
  std::vector<TimelineSpan> spans;
  for (std::size_t at = 0; at < s.size();) {
    PackedSpan packed;
    std::memcpy(&packed, &s[at], sizeof packed);
    at += sizeof packed;
    const auto layer = index.find(std::string_view(s).substr(at, packed.layer));
    at += packed.layer;
    spans.push_back({layer != index.end() ? layer->second : -1, packed.pass, packed.lane,
                     s.substr(at, packed.what), packed.begin, packed.end, packed.bytes});
    at += packed.what;
  }
  return spans;
}

}  // namespace detail::making

LAMINA_INLINE Spread Spread::of(const std::vector<double>& by_rank) {
  Spread s{by_rank[0], 0, by_rank[0], 0};
  for (std::size_t r = 0; r < by_rank.size(); ++r) {
    s.min = std::min(s.min, by_rank[r]);
    s.mean += by_rank[r] / double(by_rank.size());
    if (by_rank[r] > s.max) s.max = by_rank[r], s.slowest = int(r);
  }
  return s;
}

LAMINA_INLINE Profile make_profile(const PlacedNetwork& network, const Profiler& profiler,
                                   const UpdateRule& rule, const Communicator& ranks) {
  check(network.allocated(), "profile: the network is not placed");
  check(profiler.steps() > 0, "profile: no step was measured");
  const PlaceOptions& placing = network.placing();
  Profile p;
  p.backend = placing.backend->description();
  p.dtype = name(placing.dtype.compute);
  p.arithmetic = placing.backend->arithmetic(placing.dtype.compute);
  p.optimizer = detail::making::describe(rule);
  p.ranks = ranks.size(), p.steps = profiler.steps(),
  p.batch = placing.batch * placing.micro_batches;
  p.hosts = ranks.all_gather_text(
      text(host_name(), ", ", threads(), threads() == 1 ? " thread" : " threads"));

  // Candidates in the network's order, with what this rank measured.
  const double steps = profiler.steps();
  double wall = 0, compute = 0, waiting = 0;
  for (const double s : profiler.seconds()) wall += s / steps;
  std::vector<detail::making::RankRow> mine;
  detail::making::StepTimes times(profiler.seconds());
  for (int i = -1; i < int(network.steps().size()); ++i) {
    const Step* step = i > 0 ? &network.steps()[std::size_t(i)] : nullptr;
    for (int k = 0; k < pass_count; ++k) {
      const Pass pass = Pass(k);
      const Profiler::Cell& cell = profiler.cell(i, pass);
      ProfileRow row;
      if (step)
        row = detail::making::describe_row(*step, i, pass, rule, placing);
      else
        row.name = i < 0 ? outside_layers : "input", row.layer = i, row.pass = pass;
      if (step && step->absorbed() && pass == Pass::forward)
        row.fused_into = network.steps()[std::size_t(step->absorber)].name;
      const auto of = [&](Lane lane) { return cell.seconds[std::size_t(lane)] / steps; };
      mine.push_back({detail::making::key_of_row(row.name, pass), of(Lane::compute),
                      of(Lane::communication), of(Lane::wait)});
      compute += mine.back().time, waiting += mine.back().exposed;
      row.comm_bytes = cell.bytes / steps, row.wire_bytes = cell.wire / steps;
      if (cell.counts) row.counts = *cell.counts / steps;
      detail::making::spread_over_steps(row, cell.steps, profiler.steps());
      times.add(cell);
      for (const auto& kernel : cell.kernels)
        row.kernels.push_back({kernel.what, kernel.lane, double(kernel.calls) / steps,
                               kernel.seconds / steps, kernel.bytes / steps});
      p.rows.push_back(std::move(row));
    }
  }
  detail::making::RankUse use = detail::making::use_of(profiler, wall - waiting, ranks.size());
  use.clock_error = detail::making::tell_apart(profiler, ranks, mine);
  detail::making::share_buckets(network, p.rows, mine, times);
  for (std::size_t i = 0; i < mine.size(); ++i) {
    mine[i].comm_bytes = p.rows[i].comm_bytes, mine[i].wire_bytes = p.rows[i].wire_bytes;
    mine[i].work = p.rows[i].work;
    p.rows[i].step_total_std = times.deviation_of(i);
  }
  p.step_spread = {.kernels = deviation(times.kernels),
                   .waiting = deviation(times.waiting),
                   .unaccounted = deviation(times.unaccounted),
                   .end_to_end = deviation(profiler.seconds())};

  const auto all =
      detail::unpack<detail::making::RankRow>(ranks.all_gather_text(detail::pack(mine)));
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const auto rows = detail::making::same_row(all, mine[i].key, i);
    p.rows[i].time = detail::making::spread(rows, &detail::making::RankRow::time);
    p.rows[i].comm = detail::making::spread(rows, &detail::making::RankRow::comm);
    p.rows[i].exposed = detail::making::spread(rows, &detail::making::RankRow::exposed);
    p.rows[i].late = detail::making::spread(rows, &detail::making::RankRow::late);
    p.rows[i].transfer = detail::making::spread(rows, &detail::making::RankRow::transfer);
    p.rows[i].comm_bytes = detail::making::spread(rows, &detail::making::RankRow::comm_bytes).max;
    p.rows[i].wire_bytes = detail::making::spread(rows, &detail::making::RankRow::wire_bytes).max;
    p.rows[i].work = detail::making::mean_work(rows);
  }
  std::erase_if(p.rows, [](const ProfileRow& r) {
    return r.time.max <= 0 && r.comm.max <= 0 && r.exposed.max <= 0 && r.fused_into.empty();
  });
  // Work outside of layers last: it has no place in the network's order.
  std::stable_partition(p.rows.begin(), p.rows.end(),
                        [](const ProfileRow& r) { return r.layer >= 0; });

  p.compute = Spread::of(ranks.all_gather_value(compute));
  p.sum_layers = Spread::of(ranks.all_gather_value(compute + waiting));
  p.end_to_end = Spread::of(ranks.all_gather_value(wall));
  detail::making::put_together(ranks.all_gather_value(use), p);

  p.memory = network.memory();
  for (const Step& step : network.steps()) {
    p.layers.push_back(step.name);
    LayerMemory its{step.name, step.layer ? std::string(step.layer->type()) : "", step.memory};
    p.memory.optimizer += its.memory.optimizer = detail::making::states_of(step);
    if (its.memory.total() > 0) p.layer_memory.push_back(std::move(its));
  }
  for (const std::string& s :
       ranks.all_gather_text(detail::making::pack_timeline(network, profiler)))
    p.timeline.push_back(detail::making::unpack_timeline(s, p.layers));
  return p;
}

LAMINA_INLINE void add_alone(Profile& profile, const PlacedNetwork& network, const Profiler& alone,
                             const Communicator& ranks) {
  check(alone.steps() > 0, "profile: no step without communication was measured");
  std::vector<detail::making::RankRow> mine;
  for (int i = -1; i < int(network.steps().size()); ++i)
    for (int k = 0; k < pass_count; ++k) {
      const std::string layer = i > 0 ? network.steps()[std::size_t(i)].name
                                      : std::string(i < 0 ? outside_layers : "input");
      mine.push_back({detail::making::key_of_row(layer, Pass(k)),
                      alone.cell(i, Pass(k)).seconds[int(Lane::compute)] / alone.steps()});
    }
  for (const auto& [bucket, layers] : detail::making::shares_of(network))
    detail::making::share_update_time(layers, mine);
  const auto all =
      detail::unpack<detail::making::RankRow>(ranks.all_gather_text(detail::pack(mine)));
  for (ProfileRow& row : profile.rows)
    row.alone = detail::making::spread(
        detail::making::same_row(all, detail::making::key_of_row(row.name, row.pass),
                                 detail::making::row_of(row.layer, row.pass)),
        &detail::making::RankRow::time);
}

}  // namespace lamina
