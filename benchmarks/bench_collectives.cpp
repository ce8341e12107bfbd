// Times collectives between the ranks of mpirun, with the columns of nccl-tests.
#include "flags.hpp"
#include "options.hpp"

#include <lamina/comm/world.hpp>

#include <cstdio>

using namespace lamina;

namespace {

struct Options {
  std::size_t min_bytes = 1024, max_bytes = std::size_t(16) << 20;
  std::string op = "all_reduce", dtype = "f32";
  int iters = 20, warmup = 5;
};

Collective parse_collective(const std::string& s) {
  for (const Collective c : {Collective::all_reduce, Collective::reduce_scatter,
                             Collective::all_gather, Collective::broadcast, Collective::all_to_all})
    if (s == name(c)) return c;
  throw Error(text("no collective is called ", s));
}

/// Bus bandwidth over algorithm bandwidth: what the slowest link carries, as nccl-tests counts it.
double bus_factor(Collective c, int n) {
  if (c == Collective::all_reduce) return 2.0 * (n - 1) / n;
  return c == Collective::broadcast ? 1 : double(n - 1) / n;
}

template <class T>
class Bench {
 public:
  Bench(const World& world, const Options& options)
      : comm_(world.comm()), options_(options), op_(parse_collective(options.op)) {}

  /// One row: `bytes` is the whole buffer, as in nccl-tests.
  void run(std::size_t bytes) {
    const int n = comm_.size();
    const auto count = std::int64_t(std::max<std::size_t>(1, bytes / sizeof(T) / std::size_t(n)));
    part_ = Tensor({count, 1, 1, 1}, dtype_of<T>);
    whole_ = Tensor({count * n, 1, 1, 1}, dtype_of<T>);
    other_ = Tensor({count * n, 1, 1, 1}, dtype_of<T>);
    const double wrong = comm_.all_reduce_value(count_wrong());
    std::fill_n(whole_.as<T>(), whole_.shape().size(), T(0));  // repeated sums stay finite
    for (int i = 0; i < options_.warmup; ++i) call();
    comm_.barrier();
    const double begin = now();
    for (int i = 0; i < options_.iters; ++i) call();
    const double time = comm_.all_reduce_value((now() - begin) / options_.iters, ReduceOp::max);
    const double bandwidth = double(whole_.bytes()) / time * 1e-9;
    const bool reduces = op_ == Collective::all_reduce || op_ == Collective::reduce_scatter;
    if (comm_.rank() == 0)
      std::printf("%12zu %12lld %6s %6s %11.1f %8.2f %8.2f %6.0f\n", whole_.bytes(),
                  static_cast<long long>(count * n), options_.dtype.c_str(),
                  reduces ? "sum" : "none", time * 1e6, bandwidth, bandwidth * bus_factor(op_, n),
                  wrong);
    std::fflush(stdout);
  }

 private:
  void call() {
    switch (op_) {
      case Collective::all_reduce:
        return comm_.all_reduce(stream_, Pass::update, whole_).wait(stream_);
      case Collective::reduce_scatter:
        return comm_.reduce_scatter(stream_, Pass::update, whole_, part_).wait(stream_);
      case Collective::all_gather:
        return comm_.all_gather(stream_, Pass::update, part_, whole_).wait(stream_);
      case Collective::broadcast:
        return comm_.broadcast(stream_, Pass::update, whole_, 0).wait(stream_);
      default:
        return comm_.all_to_all(stream_, Pass::update, whole_, other_).wait(stream_);
    }
  }

  /// Element i of rank r is r + i % 7: small whole numbers, so that every sum is exact.
  double count_wrong() {
    const int n = comm_.size(), rank = comm_.rank();
    const std::int64_t count = part_.shape().size();
    const auto value = [](int r, std::int64_t i) { return double(r) + double(i % 7); };
    for (std::int64_t i = 0; i < count * n; ++i) whole_.as<T>()[i] = T(value(rank, i));
    for (std::int64_t i = 0; i < count; ++i) part_.as<T>()[i] = T(value(rank, i));
    call();
    const double ranks = double(n) * (n - 1) / 2;
    const bool in_part = op_ == Collective::reduce_scatter;
    const Tensor& result = in_part ? part_ : op_ == Collective::all_to_all ? other_ : whole_;
    double wrong = 0;
    for (std::int64_t i = 0; i < result.shape().size(); ++i) {
      double right = 0;
      switch (op_) {
        case Collective::all_reduce:
          right = ranks + n * value(0, i);
          break;
        case Collective::reduce_scatter:
          right = ranks + n * value(0, rank * count + i);
          break;
        case Collective::all_gather:
          right = value(int(i / count), i % count);
          break;
        case Collective::broadcast:
          right = value(0, i);
          break;
        default:
          right = value(int(i / count), rank * count + i % count);
      }
      wrong += double(result.as<T>()[i]) != right;
    }
    return wrong;
  }

  Communicator comm_;
  Options options_;
  Collective op_;
  Stream stream_;
  Tensor part_, whole_, other_;
};

template <class T>
void bench(const World& world, const Options& options) {
  Bench<T> bench(world, options);
  if (world.rank() == 0)
    std::printf("# %s, %d ranks\n%12s %12s %6s %6s %11s %8s %8s %6s\n", options.op.c_str(),
                world.size(), "size(B)", "count", "type", "redop", "time(us)", "algbw", "busbw",
                "#wrong");
  for (std::size_t bytes = options.min_bytes; bytes <= options.max_bytes; bytes *= 2)
    bench.run(bytes);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times collectives between the ranks that mpirun started", "bench_collectives");
  Options o;
  cli::choice(app, "--op", o.op,
              {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all"},
              "the collective")
      ->capture_default_str();
  cli::choice(app, "--dtype", o.dtype, {"f32", "f64"}, "of the elements")->capture_default_str();
  cli::count(app, "--min-bytes", o.min_bytes, 1, "the first row's buffer")->capture_default_str();
  cli::count(app, "--max-bytes", o.max_bytes, 1, "the last row's buffer, at most")
      ->capture_default_str();
  cli::count(app, "--iters", o.iters, 1, "timed calls per row")->capture_default_str();
  cli::count(app, "--warmup", o.warmup, 0, "calls before them")->capture_default_str();
  return cli::run(app, argc, argv, [&](World& world) {
    o.dtype == "f32" ? bench<float>(world, o) : bench<double>(world, o);
    return 0;
  });
}
