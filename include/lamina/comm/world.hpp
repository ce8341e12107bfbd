// World: all ranks of the job. The first object of a program, and the last to go.
#pragma once

#include <lamina/base/host.hpp>
#include <lamina/comm/communicator.hpp>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace lamina {

class World;

namespace detail {

/// Ranks as processes, started by a launcher.
class Job {
 public:
  virtual ~Job() = default;
  virtual std::shared_ptr<Transport> transport() = 0;
  /// Tells the peers how this rank ended and learns how they did; `error` is empty where a peer has
  /// something to say. Returns what this rank should print: nothing where a lower rank has the same
  /// error. Throws where `code` is 0 and a peer fails meanwhile: call again with that. To be called
  /// when the communication thread is gone.
  virtual std::string leave(const std::string& error, int code) = 0;
  /// True where all ranks have left, so that this process may end as any other.
  virtual bool all_left() const = 0;
  /// Ends this process, and all others that have not left by themselves.
  [[noreturn]] virtual void kill(int code) = 0;

  // What World says of these.
  virtual bool late() const = 0;
  virtual int started() const = 0;
  virtual std::unique_ptr<Job> grow(int more) = 0;
  virtual void hear(const Job& larger) = 0;
  virtual std::unique_ptr<Job> outlive() = 0;
  /// Tells the others why, waits for them for some seconds, and may end with status 0.
  virtual void withdraw(const std::string& error) = 0;
};

/// Whether mpirun, or another launcher that speaks PMI, started this process.
inline bool launched() {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"})
    if (std::getenv(variable)) return true;
  return false;
}

/// Throws Error where MPI was not built in or does not start. In src/comm/mpi.cpp or
/// mpi_absent.cpp.
std::unique_ptr<Job> start_mpi(int& argc, char**& argv);

/// How many threads LAMINA_RANKS asks for as ranks; 0 where it is not set. Throws Error where it
/// asks for none or for more than 1024, and under a launcher, which has started ranks already.
int thread_ranks();

/// lamina::run() with `main(world, of)` as the body.
int run(int argc, char** argv, int (*main)(World&, void*), void* of);

}  // namespace detail

/// Move-only.
class World {
 public:
  /// One rank.
  World() : hosts_{"localhost"} {}

  /// The ranks that mpirun (or another launcher) started; one rank, without touching MPI, if none
  /// did. Removes the launcher's arguments from argv. Throws Error where LAMINA_RANKS is set, of
  /// which only run() can make ranks. Where one rank alone fails in this, it says why and ends all.
  World(int& argc, char**& argv) {
    check(detail::thread_ranks() == 0, "LAMINA_RANKS is set, but this program makes its World ",
          "without lamina::run()");
    if (detail::launched()) job_ = detail::start_mpi(argc, argv);
    if (job_) connect(job_->transport());
    trial_ = late();
    gather_hosts(job_ != nullptr);
  }

  /// One of several ranks that live in this process: see threads.hpp.
  explicit World(std::shared_ptr<Transport> transport) {
    connect(std::move(transport));
    gather_hosts(false);
  }

  World(World&&) = default;
  World& operator=(World&&) = delete;

  /// Waits for the peers if all went well. Where an exception is passing by, tells them, so that
  /// they end too.
  ~World() {
    if (!queue_) return;
    if (trial_) {
      try {
        withdraw("it ended before it had joined");
      } catch (...) {  // nobody is left to be told
      }
    }
    stop();
    if (!job_) return;
    const bool failing = std::uncaught_exceptions() > exceptions_;
    try {
      leave(failing ? "ended by an exception, which lamina::run() would have printed" : "",
            failing);
    } catch (...) {  // a peer failed while this rank waited for it
      try {
        leave("", 1);
      } catch (...) {
      }
    }
  }

  int rank() const { return comm_.rank(); }
  int size() const { return comm_.size(); }
  /// Number of this rank among those on its host.
  int local_rank() const { return local_rank_; }
  /// Ranks on this host.
  int local_size() const { return local_size_; }
  /// Name of each rank's host, by rank.
  const std::vector<std::string>& hosts() const { return hosts_; }
  const Communicator& comm() const { return comm_; }
  /// So that it can be given wherever ranks are asked for.
  operator const Communicator&() const { return comm_; }

  /// How many ranks there were when the job began.
  int started() const { return job_ ? job_->started() : size(); }
  /// Whether this process was started by others' grow(). It is on trial then until accept().
  bool late() const { return job_ && job_->late(); }

  /// These ranks, and behind them so many processes that are started now, as this one was. Waits
  /// for them: to be called on all ranks at once, each on a thread of its own, while others go on
  /// with this World. It is on trial: where it goes before become() takes it, those that came end,
  /// quietly. Throws Error, on all ranks, where none can be started.
  World grow(int more) const {
    check(job_ != nullptr, "ranks can be started by those that mpirun started");
    return World(job_->grow(more));
  }
  /// Whoever waits for others here ends when a rank of the larger World fails. On any thread.
  void hear(const World& larger) const { job_->hear(*larger.job_); }
  /// From now on this is the larger one, to be called on all ranks that made it.
  void become(World larger) {
    former_.push_back(std::move(queue_));
    job_ = std::move(larger.job_), queue_ = std::move(larger.queue_);
    comm_ = larger.comm_, hosts_ = larger.hosts_;
    local_rank_ = larger.local_rank_, local_size_ = larger.local_size_;
  }
  /// Where ranks were lost, `lamina launch` watches over the job, and MPI goes on without them,
  /// this is the ranks that are left from now on: true on all of these. What was made with the
  /// ranks before must be gone, or go unused. Throws Error where they do not come together.
  bool outlive() {
    if (!job_) return false;
    std::exception_ptr failed;
    while (true) {
      stop();
      auto left = job_->outlive();
      if (!left && failed) std::rethrow_exception(failed);
      if (!left) return false;
      former_.clear();
      job_ = std::move(left);
      try {
        connect(job_->transport());
        gather_hosts(true);
        return true;
      } catch (const Error&) {  // one more may be lost
        failed = std::current_exception();
      }
    }
  }
  /// That this process belongs to the others now: if it fails, so do they.
  void accept() { trial_ = false; }
  /// On trial, ends this rank's part in the job, which goes on; what is wrong the others may say.
  /// Returns whether it is on trial.
  bool withdraw(const std::string& error) {
    if (!trial_) return false;
    trial_ = false;
    stop();
    if (job_) job_->withdraw(error);
    job_.reset();
    return true;
  }

  /// From now on comm() is Communicator::over(make).
  template <class Make>
  void carry_over(const Make& make) {
    comm_ = comm_.over(make);
  }

  /// Ends this rank's part in the job: with code 0 waits for the peers, otherwise makes them end.
  /// Returns the line that this rank should print: nothing where a lower rank has the same error.
  /// Throws PeerError where a peer fails while this rank, done with code 0, waits for it. Where a
  /// failing rank gets no answer from a peer, prints the line and ends the process. No collective
  /// may follow.
  std::string leave(const std::string& error, int code) {
    if (!job_) return error;
    stop();
    const std::string line = job_->leave(error, code);
    if (!job_->all_left()) {
      say(line);
      job_->kill(code);
    }
    job_.reset();
    return line;
  }

  /// Prints one line to stderr and ends all ranks at once.
  [[noreturn]] void abort(const std::string& error) {
    say(error);
    if (job_) job_->kill(1);
    std::_Exit(1);
  }

  /// Prints the error as one line to stderr; nothing where it is empty.
  static void say(const std::string& error) {
    if (error.empty()) return;
    std::fflush(stdout);
    std::fprintf(stderr, "lamina: error: %s\n", error.c_str());
    std::fflush(stderr);
  }

 private:
  explicit World(std::unique_ptr<detail::Job> job) : job_(std::move(job)), trial_(true) {
    connect(job_->transport());
    gather_hosts(true);
  }

  void stop() {
    for (const auto& queue : former_) queue->stop();
    queue_->stop();
  }
  void connect(std::shared_ptr<Transport> transport) {
    queue_ = std::make_shared<CommQueue>(transport);
    comm_ = Communicator(std::move(transport), queue_);
  }
  void gather_hosts(bool processes) {
    hosts_ = comm_.all_gather_text(processes ? host_name() : "localhost");
    const auto& mine = hosts_[std::size_t(rank())];
    local_size_ = int(std::count(hosts_.begin(), hosts_.end(), mine));
    local_rank_ = int(std::count(hosts_.begin(), hosts_.begin() + rank(), mine));
  }

  std::unique_ptr<detail::Job> job_;
  std::shared_ptr<CommQueue> queue_;
  std::vector<std::shared_ptr<CommQueue>> former_;  ///< before others came; groups use them
  Communicator comm_;
  std::vector<std::string> hosts_;
  int local_rank_ = 0, local_size_ = 1;
  int exceptions_ = std::uncaught_exceptions();
  bool trial_ = false;
};

/// The body of a program's main(): makes the World, calls `main(world)` for the exit status, and
/// turns an exception into one line on stderr and status 1, once for all ranks that share it. From
/// then on numbers too small for full precision count as zero (flush_denormals()).
///
/// Where `lamina launch` watches over the job, and MPI goes on when a rank is lost, `main` is
/// called again on the ranks that are left, as it would be in a job that is started anew.
///
/// With LAMINA_RANKS=N in the environment and no launcher, `main` runs on N threads at the same
/// time, a rank each: what it captures by reference they share.
///
///   int main(int argc, char** argv) {
///     return lamina::run(argc, argv, [&](lamina::World& world) { ...; return 0; });
///   }
template <class Main>
int run(int argc, char** argv, Main&& main) {
  auto call = [&](World& world) -> int { return main(world); };
  return detail::run(
      argc, argv, [](World& world, void* f) { return (*static_cast<decltype(call)*>(f))(world); },
      &call);
}

}  // namespace lamina
