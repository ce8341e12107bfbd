// The time of one collective at one size, and whether it is right.
#include "machine/time_collective.hpp"

#include <algorithm>

namespace lamina::detail {

std::vector<Collective> timed_collectives() {
  return {Collective::all_reduce, Collective::all_gather, Collective::reduce_scatter,
          Collective::all_to_all, Collective::broadcast,  Collective::halo};
}

TimedCollective::TimedCollective(const Communicator& ranks, Collective op, DType dtype,
                                 std::size_t bytes, MemorySpace& memory)
    : ranks_(ranks), op_(op), dtype_(dtype) {
  check(op != Collective::barrier, "a barrier moves no bytes that could be timed");
  const auto parts = std::size_t(ranks.size());
  const auto count = std::int64_t(std::max<std::size_t>(1, bytes / size_of(dtype) / parts));
  part_ = Tensor({count, 1, 1, 1}, dtype, memory);
  whole_ = ranks.tensor({{count * ranks.size(), 1, 1, 1}, dtype, {}}, memory);
  other_ = Tensor(whole_.view().form(), memory);
}

void TimedCollective::call() {
  switch (op_) {
    case Collective::all_reduce:
      return ranks_.all_reduce(stream_, Pass::update, whole_).wait(stream_);
    case Collective::reduce_scatter:
      return ranks_.reduce_scatter(stream_, Pass::update, whole_, part_).wait(stream_);
    case Collective::all_gather:
      return ranks_.all_gather(stream_, Pass::update, part_, whole_).wait(stream_);
    case Collective::broadcast:
      return ranks_.broadcast(stream_, Pass::update, whole_, 0).wait(stream_);
    case Collective::all_to_all:
      return ranks_.all_to_all(stream_, Pass::update, whole_, other_).wait(stream_);
    default: {
      const int other = ranks_.rank() ^ 1, peer = other < ranks_.size() ? other : -1;
      return ranks_.exchange(stream_, Pass::update, whole_, peer, other_, peer).wait(stream_);
    }
  }
}

double TimedCollective::wrong() {
  const double mine = visit(dtype_, [&]<Floating T>(T) { return count_wrong<T>(); });
  return ranks_.all_reduce_value(mine);
}

/// Element i of rank r is r + i % 7: small whole numbers, so that every sum is exact.
template <class T>
double TimedCollective::count_wrong() {
  const int n = ranks_.size(), rank = ranks_.rank();
  const std::int64_t count = part_.shape().size();
  const auto value = [](int r, std::int64_t i) { return double(r) + double(i % 7); };
  const auto fill = [](const Tensor& to, const auto& value_of) {
    const Tensor host(to.view().form());
    for (std::int64_t i = 0; i < host.shape().size(); ++i) host.as<T>()[i] = T(value_of(i));
    copy_bytes(host, to);
  };
  fill(whole_, [&](auto i) { return value(rank, i); });
  fill(part_, [&](auto i) { return value(rank, i); });
  fill(other_, [](auto) { return -1; });
  call();
  stream_.wait();
  const double ranks = double(n) * (n - 1) / 2;
  const bool elsewhere = op_ == Collective::all_to_all || op_ == Collective::halo;
  const Tensor& left = op_ == Collective::reduce_scatter ? part_ : elsewhere ? other_ : whole_;
  const Tensor result(left.view().form());
  copy_bytes(left, result);
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
      case Collective::all_to_all:
        right = value(int(i / count), rank * count + i % count);
        break;
      default:
        right = (rank ^ 1) < n ? value(rank ^ 1, i) : -1;
    }
    wrong += double(result.as<T>()[i]) != right;
  }
  return wrong;
}

double TimedCollective::time(int calls) {
  // Repeated sums stay finite.
  space_of(whole_.view()).zero(whole_.view().data, whole_.bytes());
  ranks_.barrier();
  const double begin = now();
  for (int i = 0; i < calls; ++i) call();
  stream_.wait();
  return ranks_.all_reduce_value((now() - begin) / calls, ReduceOp::max);
}

TimedCollective::Best TimedCollective::best_time(double seconds) {
  constexpr int tries = 4;
  time(1);
  const double once = std::max(time(1), 1e-7);
  // All ranks have the same times, and so call the same number of times.
  const int calls = std::clamp(int(seconds / tries / once), 1, 1000);
  Best best{once, false};
  double second = 1e18;
  // Goes on for a while where no two tries are close.
  for (double spent = 0, t; spent < (best.agreed ? 1 : 4) * seconds;
       spent += std::max(t * calls, seconds / tries)) {
    t = time(calls);
    second = std::min(second, std::max(best.seconds, t));
    best.seconds = std::min(best.seconds, t);
    best.agreed = second < 1.25 * best.seconds;
  }
  return best;
}

}  // namespace lamina::detail
