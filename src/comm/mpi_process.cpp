// MPI in this process, from its start to its end, and processes that are started while it runs.
#include "comm/mpi_process.hpp"

#include "comm/mpi_leftovers.hpp"
#include "comm/mpi_losses.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace lamina::detail {
namespace {

std::mutex keeping;
std::vector<MPI_Comm> all_kept;

/// Open MPI's default over TCP is to put large messages into the peer's memory. The peer's consent
/// waits behind the data that it sends itself: messages that should cross go one after the
/// other. So they are sent instead. And the hierarchical collectives, which Open MPI 5 prefers,
/// hang between processes that did not start together: not all of them find each other on one host.
/// Both unless the user has set this.
int init(int& argc, char**& argv, int& given) {
  setenv("OMPI_MCA_btl_tcp_flags", "send,inplace", 0);
  setenv("OMPI_MCA_coll_han_priority", "0", 0);
  return MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &given);
}

class Info {
 public:
  Info() { MPI_Info_create(&info_); }
  ~Info() { MPI_Info_free(&info_); }
  Info(const Info&) = delete;
  Info& operator=(const Info&) = delete;
  void set(const char* key, const std::string& value) {
    check(value.size() < MPI_MAX_INFO_VAL, value, ": longer than what MPI passes on");
    MPI_Info_set(info_, key, value.c_str());
  }
  MPI_Info get() const { return info_; }

 private:
  MPI_Info info_ = MPI_INFO_NULL;
};

std::string target_of(const char* link) {
  char path[4096];
  const ssize_t length = readlink(link, path, sizeof path);
  check(length > 0 && length < ssize_t(sizeof path), link, ": cannot be read");
  return std::string(path, std::size_t(length));
}

/// What this process was started with, without the program.
std::vector<std::string> arguments() {
  std::vector<std::string> all;
  std::ifstream file("/proc/self/cmdline");
  for (std::string argument; std::getline(file, argument, '\0');) all.push_back(argument);
  if (!all.empty()) all.erase(all.begin());
  return all;
}

/// This process, and so many that it starts. Nothing binds them to processors: mpirun would take
/// those that the ranks before them have.
MPI_Comm spawn(int more) {
  const std::string program = target_of("/proc/self/exe");
  check(access(program.c_str(), X_OK) == 0, program, ": is not there any more");
  std::vector<std::string> words = arguments();
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  Info info;
  info.set("wdir", target_of("/proc/self/cwd"));
  info.set("map_by", "slot:OVERSUBSCRIBE");  // or else mpirun, short of slots, would never end
  info.set("bind_to", "none");
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  MPI_Comm inter = MPI_COMM_NULL, bridge = MPI_COMM_NULL;
  check_mpi(MPI_Comm_spawn(program.c_str(), argv.data(), more, info.get(), 0, MPI_COMM_SELF, &inter,
                           MPI_ERRCODES_IGNORE),
            "MPI_Comm_spawn");
  kept(inter);
  check_mpi(MPI_Intercomm_merge(inter, 0, &bridge), "MPI_Intercomm_merge");
  return kept(bridge);
}

/// The same, but not for ever: Open MPI 4.1 over PMIx 4 now and then leaves the new processes
/// waiting for mpirun (openpmix issue 2735).
MPI_Comm spawn_in_time(int more, double seconds, bool& stuck) {
  check(!stuck, "mpirun has not answered the last time");
  const auto bridge = std::make_shared<std::promise<MPI_Comm>>();
  std::future<MPI_Comm> come = bridge->get_future();
  std::thread([bridge, more] {
    try {
      bridge->set_value(spawn(more));
    } catch (...) {
      bridge->set_exception(std::current_exception());
    }
  }).detach();
  stuck = come.wait_for(std::chrono::duration<double>(seconds)) != std::future_status::ready;
  check(!stuck, "mpirun has not started them in ", seconds, " s");
  return come.get();
}

/// Those of `ours` and those whose rank 0 is number `other` on the bridge between both. Returns
/// with how many ranks the job began, as rank 0 knows it.
MPI_Comm merge(MPI_Comm ours, MPI_Comm bridge, int other, int& started) {
  MPI_Comm inter = MPI_COMM_NULL, all = MPI_COMM_NULL;
  check_mpi(MPI_Intercomm_create(ours, 0, bridge, other, 0, &inter), "MPI_Intercomm_create");
  kept(inter);
  check_mpi(MPI_Intercomm_merge(inter, other == 0, &all), "MPI_Intercomm_merge");
  check_mpi(MPI_Bcast(&started, 1, MPI_INT, 0, kept(all)), "MPI_Bcast");
  return all;
}

}  // namespace

MPI_Comm kept(MPI_Comm comm) {
  const std::lock_guard lock(keeping);
  if (comm != MPI_COMM_NULL) all_kept.push_back(comm);
  return comm;
}

void revoke_from(MPI_Comm first) {
  const std::lock_guard lock(keeping);
  for (auto c = std::ranges::find(all_kept, first); c != all_kept.end(); ++c) revoke(*c);
}

MpiProcess::MpiProcess(int& argc, char**& argv) {
  JobNote::remove_leftovers();
  int running = 0, given = 0;
  check_mpi(MPI_Initialized(&running), "MPI_Initialized");
  owner_ = !running;
  if (running)
    check_mpi(MPI_Query_thread(&given), "MPI_Query_thread");
  else
    check_mpi(init(argc, argv, given), "MPI_Init_thread");
  check(given >= MPI_THREAD_SERIALIZED,
        "this MPI allows calls from the main thread only: collectives need a thread of their own "
        "(MPI_THREAD_SERIALIZED)");
  threads_ = given >= MPI_THREAD_MULTIPLE;
  ranks_ = MPI_COMM_WORLD;
  MPI_Comm_size(ranks_, &started_);
  MPI_Comm parent = MPI_COMM_NULL, bridge = MPI_COMM_NULL;
  MPI_Comm_get_parent(&parent);
  if (parent == MPI_COMM_NULL) return;
  late_ = grown_ = true;
  check_mpi(MPI_Intercomm_merge(kept(parent), 1, &bridge), "MPI_Intercomm_merge");
  ranks_ = merge(MPI_COMM_WORLD, kept(bridge), 0, started_);
}

MpiProcess::~MpiProcess() {
  if (!owner_) return;
  block_broken_pipes();
  // A collective that was given up may keep MPI_Finalize waiting for ever.
  std::fflush(nullptr);
  const auto finished = std::make_shared<std::atomic<bool>>(false);
  if (status != 0 || hurry)
    std::thread([code = status, finished] {
      pause(3);
      if (!*finished) std::_Exit(code);
    }).detach();
  // Open MPI 4.1 sends a last message to each rank of another job with which it still has several
  // communicators, but does not wait for it: who ends later writes to a process that is gone.
  const std::lock_guard lock(keeping);
  if (grown_)
    for (MPI_Comm comm : all_kept) MPI_Comm_free(&comm);
  MPI_Finalize();
  *finished = true;
}

void MpiProcess::write_note() {
  if (!note_) note_ = std::make_unique<JobNote>();
}

MPI_Comm MpiProcess::start_more(MPI_Comm ranks, int more, double seconds, Lookout& lookout) {
  block_broken_pipes();
  int rank = 0;
  MPI_Comm_rank(ranks, &rank);
  struct Outcome {
    char why[512] = "";
    bool stuck = false;
  } mine;
  MPI_Comm bridge = MPI_COMM_NULL;
  if (rank == 0) {
    try {
      check(threads_, "this MPI allows calls from one thread at a time (no MPI_THREAD_MULTIPLE)");
      bridge = spawn_in_time(more, seconds, stuck_);
    } catch (const std::exception& e) {
      std::snprintf(mine.why, sizeof mine.why, "%s", e.what());
      mine.stuck = stuck_;
    }
  }
  // From here on nothing looks around: all must be there.
  const Outcome outcome = gather(ranks, mine, {}, lookout)[0];
  hurry = hurry || outcome.stuck;  // MPI_Finalize would wait for them
  check(!outcome.why[0], "no rank could be started: ", outcome.why);
  grown_ = true;
  return merge(ranks, bridge, 1, started_);
}

}  // namespace lamina::detail
