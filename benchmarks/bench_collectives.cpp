// Times collectives between the ranks of mpirun, with the columns of nccl-tests.
#include "flags.hpp"
#include "machine/time_collective.hpp"
#include "options.hpp"
#include "terminal.hpp"

#include <lamina/base/median.hpp>
#include <lamina/comm/world.hpp>

#include <algorithm>
#include <cstdio>
#include <vector>

using namespace lamina;

namespace {

struct Options {
  std::size_t min_bytes = 1024, max_bytes = std::size_t(16) << 20;
  std::string op = "all_reduce", dtype = "f32";
  std::string compare = "none";
  int iters = 20, warmup = 5, rounds = 1;
};

/// One row: `bytes` is the whole buffer, as in nccl-tests.
void row(const Communicator& ranks, Collective op, std::size_t bytes, const Options& o) {
  const DType dtype = parse_dtype(o.dtype);
  detail::TimedCollective timed(ranks, op, dtype, bytes);
  detail::TimedCollective other(o.compare == "none" ? Communicator() : ranks.plain(), op, dtype,
                                bytes);
  const double wrong = timed.wrong();
  std::vector<double> times, others;  // in turns, so that both see the same
  for (int round = 0; round < o.rounds; ++round) {
    if (o.warmup > 0) timed.time(o.warmup);
    times.push_back(timed.time(o.iters));
    if (o.compare == "none") continue;
    if (o.warmup > 0) other.time(o.warmup);
    others.push_back(other.time(o.iters));
  }
  const double time = median(times);
  const double bandwidth = double(timed.bytes()) / time * 1e-9;
  const bool reduces = op == Collective::all_reduce || op == Collective::reduce_scatter;
  if (ranks.rank() == 0)
    std::printf("%12zu %12zu %6s %6s %11.1f %8.2f %8.2f %6.0f", timed.bytes(),
                timed.bytes() / size_of(dtype), o.dtype.c_str(), reduces ? "sum" : "none",
                time * 1e6, bandwidth, bandwidth * bus_factor(op, ranks.size()), wrong);
  if (ranks.rank() == 0 && !others.empty())
    std::printf(" %11.1f %8.2f", median(others) * 1e6, median(others) / time);
  if (ranks.rank() == 0) std::printf("\n");
  std::fflush(stdout);
}

/// An element for each rank.
std::size_t least_bytes(const Communicator& ranks, const Options& o) {
  return size_of(parse_dtype(o.dtype)) * std::size_t(ranks.size());
}

void bench(const Communicator& ranks, Collective op, const Options& o) {
  if (ranks.rank() == 0)
    std::printf("%s%12s %12s %6s %6s %11s %8s %8s %6s%s\n",
                cli::remark(text(name(op), ", ", ranks.size(),
                                 ranks.size() == 1 ? " rank" : " ranks", ", ", ranks.carrier()))
                    .c_str(),
                "size(B)", "count", "type", "redop", "time(us)", "algbw", "busbw", "#wrong",
                o.compare == "none" ? "" : "     mpi(us)  speedup");
  for (std::size_t bytes = std::max(o.min_bytes, least_bytes(ranks, o)); bytes <= o.max_bytes;
       bytes *= 2)
    row(ranks, op, bytes, o);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times collectives between the ranks that mpirun started", "bench_collectives");
  Options o;
  std::vector<std::string> names;
  for (const Collective op : detail::timed_collectives()) names.push_back(name(op));
  names.push_back("all");
  cli::choice(app, "--op", o.op, names,
              "the collective (halo: point-to-point, both ways at once), or all of them")
      ->capture_default_str();
  cli::choice(app, "--dtype", o.dtype, {"f32", "f64", "bf16", "f16"}, "of the elements")
      ->capture_default_str();
  cli::count(app, "--min-bytes", o.min_bytes, 1, "the first row's buffer")->capture_default_str();
  cli::count(app, "--max-bytes", o.max_bytes, 1, "the last row's buffer, at most")
      ->capture_default_str();
  cli::count(app, "--iters", o.iters, 1, "timed calls per row")->capture_default_str();
  cli::count(app, "--warmup", o.warmup, 0, "calls before them")->capture_default_str();
  cli::count(app, "--rounds", o.rounds, 1, "of warm-up and timed calls; the median is shown")
      ->capture_default_str();
  cli::choice(app, "--compare", o.compare, {"none", "mpi"},
              "time MPI's own call as well, on the whole buffer at once, in turns with ours")
      ->capture_default_str();
  return cli::run(app, argc, argv, [&](World& world) {
    check(o.min_bytes <= o.max_bytes, "--min-bytes ", o.min_bytes,
          ": expected at most --max-bytes ", o.max_bytes);
    const std::size_t least = least_bytes(world.comm(), o);
    check(o.max_bytes >= least, "--max-bytes ", o.max_bytes, ": expected at least ", least,
          ", an element for each rank");
    for (const Collective op : detail::timed_collectives())
      if (o.op == "all" || o.op == name(op)) bench(world.comm(), op, o);
    return 0;
  });
}
