// Ranks as threads of one process, for tests: no MPI, deterministic, and every mistake is an error
// that names the layer and the ranks instead of a hang.
#pragma once

#include <lamina/base/threads.hpp>
#include <lamina/comm/world.hpp>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

namespace lamina {

namespace detail {

/// What all groups of one run_ranks() share: the one lock, and the first failure.
struct ThreadJob {
  std::mutex mutex;
  std::condition_variable changed;
  std::string failure;      ///< message of the first real error; empty while all is well
  std::vector<bool> ended;  ///< ranks whose function has returned
  double timeout = 60;      ///< seconds that a collective waits for its peers
  std::map<int, std::deque<std::string>> notes;  ///< that have not been collected, by rank

  void fail(const std::string& message) {
    const std::lock_guard lock(mutex);
    if (failure.empty()) failure = message;
    changed.notify_all();
  }
  void end(int rank) {
    const std::lock_guard lock(mutex);
    ended[std::size_t(rank)] = true;
    changed.notify_all();
  }
};

/// One group of ranks: where they meet.
struct ThreadGroup {
  ThreadGroup(std::shared_ptr<ThreadJob> job_, std::vector<int> members_)
      : job(std::move(job_)), members(std::move(members_)), posted(members.size()) {}

  std::shared_ptr<ThreadJob> job;
  std::vector<int> members;              ///< world rank of each rank of the group
  std::vector<const Operation*> posted;  ///< by rank; null until it has come
  std::size_t arrived = 0;
  std::uint64_t round = 0;  ///< counts finished operations
  bool moving = false;      ///< the last rank is at work on all ranks' buffers
  std::map<std::pair<int, int>, std::weak_ptr<ThreadGroup>> parts;  ///< by (call, first member)
};

/// What each rank of run_ranks() does before its function, where it is set: tests have collectives
/// carried by something on top of threads.
inline void (*before_thread_rank)(World&) = nullptr;

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(std::shared_ptr<ThreadGroup> group, int rank)
      : group_(std::move(group)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return int(group_->members.size()); }
  std::span<const int> members() const override { return group_->members; }
  std::string carrier() const override { return "threads"; }
  bool narrows() const override { return true; }  // each is a node of its own, then
  double time_limit() const override { return group_->job->timeout; }

  /// The last rank to come does the work for all, in rank order, while the others wait.
  void run(const Operation& mine) override {
    ThreadGroup& g = *group_;
    ThreadJob& job = *g.job;
    std::unique_lock lock(job.mutex);
    check_failure();
    g.posted[std::size_t(rank_)] = &mine;
    if (++g.arrived == g.posted.size()) {
      const std::string error = mismatch();
      if (error.empty()) {
        g.moving = true;
        lock.unlock();
        move();
        lock.lock();
        g.moving = false;
      } else {
        job.failure = error;
      }
      g.arrived = 0;
      g.posted.assign(g.posted.size(), nullptr);
      ++g.round;
      job.changed.notify_all();
      check(error.empty(), error);
      return;
    }
    const std::uint64_t round = g.round;
    const double deadline = now() + job.timeout;
    while (g.round == round) {
      if (g.moving) {  // no leaving now: our buffers are in use
        job.changed.wait(lock);
        continue;
      }
      check_failure();
      const bool late = now() > deadline;
      if (const int missing = absent(!late); missing >= 0) {
        job.failure = text("rank ", missing, late ? " did not come to " : " ended before ", mine,
                           late ? text(" within ", job.timeout, " s") : std::string());
        job.changed.notify_all();
        throw Error(job.failure);
      }
      job.changed.wait_for(lock, std::chrono::milliseconds(50));
    }
    if (!job.failure.empty()) throw PeerError(job.failure);
  }

  std::shared_ptr<Transport> group(const std::vector<int>& members) override {
    const int number = groups_++;
    if (members.empty()) return nullptr;
    std::vector<int> in_world;
    for (const int r : members) in_world.push_back(group_->members[std::size_t(r)]);
    const auto me = std::find(members.begin(), members.end(), rank_);
    const std::lock_guard lock(group_->job->mutex);
    std::erase_if(group_->parts, [](const auto& part) { return part.second.expired(); });
    auto& known = group_->parts[{number, members[0]}];
    auto part = known.lock();
    if (!part) known = part = std::make_shared<ThreadGroup>(group_->job, std::move(in_world));
    return std::make_shared<ThreadTransport>(part, int(me - members.begin()));
  }

  void post(int to, const std::string& note) override {
    const std::lock_guard lock(group_->job->mutex);
    group_->job->notes[group_->members[std::size_t(to)]].push_back(note);
  }
  std::string collect() override {
    const std::lock_guard lock(group_->job->mutex);
    check_failure();
    auto& mine = group_->job->notes[group_->members[std::size_t(rank_)]];
    if (mine.empty()) return {};
    const std::string note = mine.front();
    mine.pop_front();
    return note;
  }

  void poll() override {
    const std::lock_guard lock(group_->job->mutex);
    check_failure();
  }

 private:
  void check_failure() const {
    if (!group_->job->failure.empty()) throw PeerError(group_->job->failure);
  }

  /// World rank of a member that has not come; with `ended` only of one that never will. -1: none.
  int absent(bool ended) const {
    for (std::size_t r = 0; r < group_->posted.size(); ++r) {
      const int member = group_->members[r];
      if (!group_->posted[r] && (!ended || group_->job->ended[std::size_t(member)])) return member;
    }
    return -1;
  }

  /// Empty where all ranks called the same thing.
  std::string mismatch() const {
    const auto& posted = group_->posted;
    for (std::size_t r = 1; r < posted.size(); ++r)
      if (!posted[r]->matches(*posted[0]))
        return text("rank ", group_->members[0], " called ", *posted[0], ", but rank ",
                    group_->members[r], " called ", *posted[r]);
    return posted[0]->collective == Collective::halo
               ? stray_message(size(),
                               [&](int r) -> const Operation& { return *posted[std::size_t(r)]; })
               : std::string();
  }

  static constexpr std::size_t piece = 256;  // elements, so that nothing is allocated

  /// As the others get it.
  template <class T>
  static Wide<T> sent(const Operation& op, Wide<T> v) {
    return op.narrow ? Wide<T>(float(BF16(double(v)))) : v;
  }
  struct Ranks {
    std::size_t first, count;
  };
  template <class T>
  void add_up(const Operation& op, Ranks r, std::size_t begin, std::size_t n, Wide<T>* sums) const {
    if (r.count == 1) {
      const T* in = static_cast<const T*>(group_->posted[r.first]->in) + begin;
      for (std::size_t i = 0; i < n; ++i) sums[i] = sent<T>(op, Wide<T>(in[i]));
      return;
    }
    const std::size_t left = added_first(r.count);
    add_up<T>(op, {r.first, left}, begin, n, sums);
    Wide<T> right[piece];
    add_up<T>(op, {r.first + left, r.count - left}, begin, n, right);
    for (std::size_t i = 0; i < n; ++i)
      sums[i] = op.reduce == ReduceOp::sum   ? Wide<T>(sums[i] + right[i])
                : op.reduce == ReduceOp::max ? std::max(sums[i], right[i])
                                             : std::min(sums[i], right[i]);
  }

  /// The sum (max, min) in the order of added_first().
  template <class T>
  void reduce(const Operation& op) const {
    const auto& posted = group_->posted;
    const bool scatter = op.collective == Collective::reduce_scatter;
    const std::size_t total = op.count * (scatter ? posted.size() : 1);
    Wide<T> sums[piece];
    for (std::size_t begin = 0; begin < total; begin += piece) {
      const std::size_t n = std::min(piece, total - begin);
      add_up<T>(op, {0, posted.size()}, begin, n, sums);
      for (std::size_t i = 0; i < n; ++i) {
        const std::size_t at = begin + i;
        if (scatter) {
          static_cast<T*>(posted[at / op.count]->out)[at % op.count] = T(sums[i]);
        } else {
          const Wide<T> sum = sent<T>(op, sums[i]);
          for (const Operation* each : posted) static_cast<T*>(each->out)[at] = T(sum);
        }
      }
    }
  }

  void move() const {
    const Operation& op = *group_->posted[0];
    const std::size_t n = group_->posted.size(), bytes = op.count * size_of(op.dtype);
    const auto in = [&](std::size_t r) { return static_cast<const char*>(group_->posted[r]->in); };
    const auto out = [&](std::size_t r) { return static_cast<char*>(group_->posted[r]->out); };
    const auto copy = [bytes](char* to, const char* from) {
      if (to != from && bytes > 0) std::memmove(to, from, bytes);
    };
    switch (op.collective) {
      case Collective::barrier:
        return;
      case Collective::all_reduce:
      case Collective::reduce_scatter:
        return visit(op.dtype, [&]<class T>(T) { reduce<T>(op); });
      case Collective::broadcast:
        for (std::size_t r = 0; r < n; ++r) copy(out(r), in(std::size_t(op.from)));
        return;
      case Collective::all_gather:
        for (std::size_t r = 0; r < n; ++r)
          for (std::size_t i = 0; i < n; ++i) copy(out(r) + i * bytes, in(i));
        return;
      case Collective::all_to_all:
        for (std::size_t r = 0; r < n; ++r)
          for (std::size_t i = 0; i < n; ++i) copy(out(r) + i * bytes, in(i) + r * bytes);
        return;
      case Collective::halo:
        for (std::size_t r = 0; r < n; ++r) {
          const Operation& to = *group_->posted[r];
          if (to.from < 0 || to.received == 0) continue;
          const Operation& sent = *group_->posted[std::size_t(to.from)];
          std::memmove(to.out, sent.in, to.received * size_of(to.dtype));
        }
    }
  }

  std::shared_ptr<ThreadGroup> group_;
  int rank_ = 0, groups_ = 0;
};

}  // namespace detail

/// Runs `main(World&)` as `ranks` ranks, each a thread, and returns when all have ended. Throws the
/// first real error of any of them; the others end with a PeerError at their next collective.
/// A collective waits `timeout` seconds for its peers. The ranks share the threads that the caller
/// has for its kernels, at least one each.
template <class Main>
void run_ranks(int ranks, Main&& main, double timeout = 60) {
  const auto job = std::make_shared<detail::ThreadJob>();
  job->ended.resize(std::size_t(ranks));
  job->timeout = timeout;
  std::vector<int> members;
  for (int r = 0; r < ranks; ++r) members.push_back(r);
  const auto group = std::make_shared<detail::ThreadGroup>(job, members);

  std::exception_ptr first, echo;  // guarded by the job's mutex
  const auto keep = [&](std::exception_ptr& kept, const std::exception_ptr& error) {
    const std::lock_guard lock(job->mutex);
    if (!kept) kept = error;
  };
  const auto note = [&](int rank, const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const PeerError&) {
      keep(echo, error);
    } catch (const std::exception& e) {
      keep(first, error);
      job->fail(text("rank ", rank, ": ", e.what()));
    } catch (...) {
      keep(first, error);
      job->fail(text("rank ", rank, " has thrown what is no std::exception"));
    }
  };
  const int threads_each = lamina::threads() / std::max(1, ranks);
  const auto body = [&](int rank) {
    unbind_thread();
    set_threads(threads_each);
    try {
      World world(std::make_shared<detail::ThreadTransport>(group, rank));
      try {
        if (detail::before_thread_rank) detail::before_thread_rank(world);
        main(world);
      } catch (...) {
        // Before the World goes, so that nobody waits for this rank.
        note(rank, std::current_exception());
      }
    } catch (...) {
      note(rank, std::current_exception());
    }
    job->end(rank);
  };
  std::vector<std::thread> threads;
  threads.reserve(std::size_t(ranks));
  try {
    for (int r = 0; r < ranks; ++r) threads.emplace_back(body, r);
  } catch (const std::exception& e) {
    const int rank = int(threads.size());
    note(rank, std::make_exception_ptr(Error(text("no thread could be started for rank ", rank,
                                                  " of ", ranks, ": ", e.what()))));
  }
  for (auto& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
  if (echo) std::rethrow_exception(echo);
}

}  // namespace lamina
