// Measures what the machine can do.
#include "machine/measure.hpp"

#include "cpu/rate_in.hpp"
#include "machine/json.hpp"
#include "machine/time_collective.hpp"

#include <lamina/base/host.hpp>
#include <lamina/base/threads.hpp>
#include <lamina/profile/usage.hpp>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <set>

namespace lamina {

namespace detail {

namespace {

/// What one round of measuring gave, and whether it was left in peace.
struct Round {
  std::vector<double> rates;
  bool quiet = true;
};

struct BestRates {
  std::vector<double> rates;
  bool disturbed = true;  // no two quiet rounds agree on every best
};

/// The best of what round() gives, element by element. A machine that others use too may be busy
/// all through one round: goes on until two of them agree, but not beyond `most` rounds.
template <class Measure>
BestRates best_of_rounds(int most, const Measure& round) {
  std::vector<std::vector<double>> quiet;
  BestRates best;
  for (int n = 0; best.disturbed && n < most; ++n) {
    const Round latest = round();
    best.rates.resize(latest.rates.size());
    for (std::size_t k = 0; k < best.rates.size(); ++k)
      best.rates[k] = std::max(best.rates[k], latest.rates[k]);
    if (latest.quiet) quiet.push_back(latest.rates);
    best.disturbed = false;
    for (std::size_t k = 0; k < best.rates.size(); ++k) {
      const auto near = [&](const auto& r) { return r[k] > 0.97 * best.rates[k]; };
      best.disturbed |= std::count_if(quiet.begin(), quiet.end(), near) < 2;
    }
  }
  return best;
}

struct Found {
  std::vector<Rate> rates;
  bool disturbed = false;
};

/// Rates of measure(slices): while the other ranks sleep, then of all ranks at once, the slowest
/// one's. The nodes are taken to be alike, so that one rank's turn is enough.
///
/// Of one rank the fastest slices count, for which it had its processor, or they would not be the
/// fastest. Of all ranks at once the middle ones do: there, a rank that lacked its processor for
/// a fifth of the time has spoilt the round.
template <class Measure>
Found in_turn(const World& world, const Effort& effort, const Measure& measure) {
  const Communicator& ranks = world.comm();
  const int most = patient(world, effort) ? 6 : 2;
  BestRates alone;
  ranks.barrier();
  if (ranks.rank() == 0)
    alone = best_of_rounds(most, [&] { return Round{measure(Slices{.seconds = effort.loop})}; });
  Found found;
  if (ranks.size() == 1) {
    for (const double rate : alone.rates) found.rates.push_back({rate, rate});
    found.disturbed = alone.disturbed;
    return found;
  }
  const BestRates together = best_of_rounds(most, [&] {
    ranks.barrier();
    const Usage before = usage();
    const double begin = now();
    Round mine{measure(Slices{.seconds = effort.loop, .middle = true})};
    const double denied = (usage() - before).denied / (now() - begin);
    for (double& rate : mine.rates) rate = ranks.all_reduce_value(rate, ReduceOp::min);
    mine.quiet = ranks.all_reduce_value(denied, ReduceOp::max) < 0.2;
    return mine;
  });
  alone.rates.resize(together.rates.size());
  for (std::size_t i = 0; i < together.rates.size(); ++i)
    found.rates.push_back({ranks.all_gather_value(alone.rates[i])[0], together.rates[i]});
  found.disturbed = together.disturbed || ranks.all_gather_value(int(alone.disturbed))[0] != 0;
  return found;
}

/// Numbers that no processor treats differently, in any layout.
Tensor operand(const Backend& backend, const Form& form) {
  Tensor t(Form{form.shape, form.dtype, {}});
  visit(form.dtype, [&]<Floating T>(T) {
    const auto elements = t.elements<T>();
    for (std::size_t i = 0; i < elements.size(); ++i) elements[i] = T(0.01F * float(i % 97));
  });
  Tensor there(form, backend.memory());
  backend.copy(t, there);
  return there;
}

/// FLOP/s of one pass of `kernel`, each of which does `flops`.
Found rate_of(const World& world, const Backend& backend, const Effort& effort,
              WeightedKernel& kernel, Pass pass, double flops) {
  const Tensor x = operand(backend, kernel.inputs.at(0)), w = operand(backend, kernel.w),
               y = operand(backend, kernel.output);
  const Tensor dw(Form{kernel.w.shape, wide(kernel.w.dtype), kernel.w.layout}, backend.memory());
  Stream stream;
  const auto run = [&](std::size_t times) {
    const double begin = now();
    for (std::size_t i = 0; i < times; ++i) {
      if (pass == Pass::forward) kernel.forward(stream, x, w, {}, y);
      if (pass == Pass::input_grad) kernel.input_grad(stream, w, y, x);
      if (pass == Pass::weight_grad) kernel.weight_grad(stream, x, y, dw, {});
    }
    stream.wait();
    return now() - begin;
  };
  run(1);  // first touch
  return in_turn(world, effort, [&](const Slices& slices) {
    return std::vector<double>{rate_in(slices, run, run) * flops};
  });
}

/// Keeps the better one of those that have the same name and dtype.
void keep(std::vector<ComputeCeiling>& best, ComputeCeiling c) {
  for (ComputeCeiling& b : best) {
    if (b.kind != c.kind || b.name != c.name || b.dtype != c.dtype) continue;
    if (c.flops.together > b.flops.together) b = std::move(c);
    return;
  }
  best.push_back(std::move(c));
}

struct ConvShape {
  std::int64_t channels, size, filters, kernel;
};

/// As networks have them, with channels that are multiples of every register's width. Without
/// padding: kernels skip it, but it counts as work, so that they would seem faster than they are.
constexpr ConvShape conv_shapes[] = {
    {64, 58, 64, 3}, {256, 16, 256, 3}, {64, 32, 64, 5}, {256, 28, 128, 1}};

void measure_dtype(const World& world, const Backend& backend, DType dtype, const Effort& effort,
                   std::vector<ComputeCeiling>& best) {
  using Kind = ComputeCeiling::Kind;
  ComputeCeiling gemm{Kind::gemm, "", dtype, {}};
  for (const double n : {384, 768, 1536, 3072, 6144}) {
    const double flops = 2 * n * n * n, seconds = n > 1536 ? 0.005 : 0.25;
    if (flops > seconds * gemm.flops.together && n > 384) break;  // takes too long here
    const auto kernel = backend.linear(std::int64_t(n), false,
                                       {{std::int64_t(n), std::int64_t(n), 1, 1}, dtype, {}});
    const Found rate = rate_of(world, backend, effort, *kernel, Pass::forward, flops);
    if (rate.rates[0].together <= gemm.flops.together) continue;
    gemm.name = text("linear ", algorithm_of(kernel->algorithm, Pass::forward));
    gemm.flops = rate.rates[0], gemm.disturbed = rate.disturbed;
  }
  best.push_back(gemm);
  Effort half = effort;  // there are many
  half.loop /= 2;
  for (const ConvShape& s : conv_shapes) {
    const Shape x{std::max(4, backend.ceilings().units()), s.channels, s.size, s.size};
    const ConvGeometry g{.channels = s.filters, .kernel = s.kernel, .bias = false};
    const auto kernel = backend.conv(g, backend.conv(g, {x, dtype, {}})->inputs.at(0));
    const double flops = 2.0 * double(g.output(x).size() * g.weight(x).sample());
    for (const Pass pass : {Pass::forward, Pass::input_grad, Pass::weight_grad}) {
      const Found rate = rate_of(world, backend, half, *kernel, pass, flops);
      keep(best,
           {Kind::conv,
            text("conv ", s.kernel, 'x', s.kernel, ' ', algorithm_of(kernel->algorithm, pass)),
            dtype, rate.rates[0], rate.disturbed});
    }
  }
}

/// Units of this node's ranks that work with the same memory.
int together(const World& world, const CeilingLoops& loops) {
  return loops.units() * (loops.shared() ? world.local_size() : 1);
}

/// Those of them that share one of these caches, where ranks lie side by side.
std::size_t sharing(const World& world, const CeilingLoops& loops, const CacheLevel& level) {
  return std::size_t(std::max(1, std::min(level.sharers, together(world, loops))));
}

}  // namespace

bool patient(const World& world, const Effort& effort) {
  return world.comm().all_gather_value(now() - effort.begin)[0] < effort.patience;
}

std::vector<ComputeCeiling> measure_fma(const World& world, const CeilingLoops& loops,
                                        const Effort& effort) {
  std::vector<ComputeCeiling> all;
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    // Nodes may differ, but all ranks must measure the same: what rank 0 has.
    std::string sets;
    for (const std::string& set : loops.instruction_sets(dtype)) sets += set + ' ';
    sets = world.comm().broadcast_text(sets);
    for (std::size_t at = 0, end; (end = sets.find(' ', at)) != std::string::npos; at = end + 1) {
      const std::string set = sets.substr(at, end - at);
      const Found rate = in_turn(world, effort, [&](const Slices& slices) {
        return std::vector<double>{loops.fma_rate(set, dtype, slices)};
      });
      all.push_back({ComputeCeiling::Kind::fma, set, dtype, rate.rates[0], rate.disturbed});
    }
  }
  return all;
}

std::vector<ComputeCeiling> measure_kernels(const World& world, const Backend& backend,
                                            const Effort& effort) {
  std::vector<ComputeCeiling> best;
  std::vector those = {DType::f32, DType::bf16, DType::f16};
  // GPUs' libraries take seconds to find out how slow they are in f64.
  if (backend.memory().on_host()) those.insert(those.begin() + 1, DType::f64);
  for (const DType dtype : those)
    if (backend.supports(dtype) && backend.arithmetic(dtype) == dtype)
      measure_dtype(world, backend, dtype, effort, best);
  return best;
}

double memory_set(double told, int units, double available) {
  constexpr double gib = 1 << 30;
  const double unknown = std::clamp(units * gib / 2, gib, 4 * gib);
  return std::min(std::max(4 * told, unknown), available / 4);
}

std::vector<MemoryCeiling> measure_memory(const World& world, const CeilingLoops& loops,
                                          std::size_t free, const Effort& effort) {
  std::vector<MemoryCeiling> all;
  const auto team = std::size_t(loops.units());
  // Bytes per unit: while one rank is at work, and while all of the node are.
  const auto add = [&](std::string name, double capacity, std::size_t one, std::size_t each) {
    const auto found = in_turn(world, effort, [&](const Slices& slices) {
      const Bandwidths b = loops.bandwidths(slices.middle ? each : one, slices);
      return std::vector<double>{b.triad, b.read, b.scale};
    });
    const auto& rates = found.rates;
    all.push_back({std::move(name), capacity, rates[0], rates[1], rates[2], found.disturbed});
  };
  std::size_t inner = 0;  // bytes of the level before, per unit
  double told = 0;        // bytes of the last level, of all units of the node
  const auto node = std::size_t(together(world, loops));
  for (const CacheLevel& level : loops.cache_levels()) {
    const std::size_t share = level.bytes / sharing(world, loops, level);
    // Half of it leaves room for other things; but most must not fit into the level before.
    const std::size_t bytes = std::max(share / 2, std::min(2 * inner, share / 4 * 3));
    add(level.name, double(share * team), bytes, bytes);
    inner = share;
    told = double(std::max(share * node, level.bytes));
  }
  const Communicator& ranks = world.comm();
  const double available = ranks.all_reduce_value(double(free), ReduceOp::min);
  const double set = std::min(memory_set(told, int(node), available), effort.memory);
  add("memory", 0, std::size_t(set) / team, std::size_t(set) / node);
  all.back().disturbed |= set < 2 * told;  // too little memory is left to tell
  return all;
}

double measure_launch(const World& world, const Backend& backend, const Effort& effort) {
  const DType dtype = backend.supports(DType::f32) ? DType::f32 : DType::f64;
  const auto kernel = backend.activation({}, Form{{1, 64, 1, 1}, dtype, {}});
  const Tensor x = operand(backend, kernel->inputs.at(0)), y(kernel->output, backend.memory());
  Stream stream;
  const auto run = [&](std::size_t times) {
    const double begin = now();
    for (std::size_t i = 0; i < times; ++i) kernel->forward(stream, x, y);
    stream.wait();
    return now() - begin;
  };
  // Ranks share nothing here: what one gets undisturbed is what all get.
  return 1 / in_turn(world, effort,
                     [&](const Slices& slices) {
                       return std::vector<double>{rate_in(slices, run, run)};
                     })
                 .rates[0]
                 .alone;
}

std::vector<CommCeiling> measure_collectives(const World& world, MemorySpace& memory,
                                             const Effort& effort) {
  std::vector<CommCeiling> all;
  const Communicator& ranks = world.comm();
  const auto measure = [&](int size, int stride) {
    // Blocks of `size` ranks; with a stride, pairs (r, r + stride). What is left over stays out.
    const int used = ranks.size() / (size * stride) * (size * stride), rank = ranks.rank();
    const int block = rank / (size * stride) * (size * stride), first = block + rank % stride;
    std::vector<int> members;
    for (int i = 0; rank < used && i < size; ++i) members.push_back(first + i * stride);
    const Communicator group = ranks.group(members);
    for (const Collective op : timed_collectives()) {
      if (op == Collective::broadcast || (op == Collective::halo && size > 2)) continue;
      for (double bytes = 1024; bytes <= effort.max_bytes; bytes *= 4) {
        CommCeiling c{op, size, stride, bytes, 0};
        if (group.size() == size) {
          TimedCollective timed(group, op, DType::f32, std::size_t(bytes), memory);
          c.bytes = double(timed.bytes());
          const auto [seconds, agreed] = timed.best_time(effort.transfer);
          c.seconds = seconds, c.disturbed = !agreed;
        }
        c.bytes = ranks.all_reduce_value(c.bytes, ReduceOp::min);
        c.seconds = ranks.all_reduce_value(c.seconds, ReduceOp::max);
        c.disturbed = ranks.all_reduce_value(int(c.disturbed), ReduceOp::max) > 0;
        all.push_back(c);
        if (c.seconds > effort.slow) break;
      }
    }
  };
  const int n = ranks.size();
  for (int size = 2; size < n; size *= 2) measure(size, 1);
  if (n > 1) measure(n, 1);
  if (n >= 4) measure(2, n / 2);
  return all;
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string name = "unknown processor";
  std::set<std::string> packages;
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    if (line.starts_with("model name")) name = line.substr(colon + 2);
    if (line.starts_with("physical id")) packages.insert(line.substr(colon + 2));
  }
  return packages.size() > 1 ? text(name, ", ", packages.size(), " processors") : name;
}

}  // namespace detail

Machine measure_machine(const World& world, const Backend& backend) {
  Machine machine;
  machine.host = host_name();
  machine.cpu = detail::processor_name();
  machine.backend = backend.description();
  machine.threads = threads();
  machine.ranks = world.size();
  machine.nodes = int(std::set(world.hosts().begin(), world.hosts().end()).size());
  char date[32] = "";
  const std::time_t time = std::time(nullptr);
  std::tm local = {};
  std::strftime(date, sizeof date, "%Y-%m-%d", localtime_r(&time, &local));
  machine.date = date;
  const detail::Effort effort;  // the roofs first: while there is most patience
  const CeilingLoops& loops = backend.ceilings();
  machine.compute = detail::measure_fma(world, loops, effort);
  machine.memory = detail::measure_memory(world, loops, backend.memory().free_bytes(), effort);
  machine.launch = detail::measure_launch(world, backend, effort);
  for (ComputeCeiling& c : detail::measure_kernels(world, backend, effort))
    machine.compute.push_back(std::move(c));
  machine.comm = detail::measure_collectives(world, backend.memory(), effort);
  const std::string json =
      world.rank() == 0 ? detail::machine_to_json(machine).dump(
                              -1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
                        : std::string();
  return detail::machine_from_json(
      detail::JsonPart(nlohmann::ordered_json::parse(world.comm().broadcast_text(json))));
}

}  // namespace lamina
