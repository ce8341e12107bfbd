// Ranks as processes: collectives over MPI, and how a job ends when one of its ranks fails.
//
// All calls of MPI between its start and its end come from the communication thread, but for those
// that start more ranks. Every wait is a loop of its own, so that it can end: at a time limit, when
// a peer says that it failed, or when the process of a peer on this host is gone.
#include "comm/board.hpp"
#include "comm/mpi_group.hpp"
#include "comm/mpi_losses.hpp"
#include "comm/mpi_nodes.hpp"
#include "comm/mpi_process.hpp"
#include "comm/mpi_shared.hpp"

#include <lamina/comm/detail/group_pool.hpp>
#include <lamina/comm/detail/time_limit.hpp>
#include <lamina/comm/world.hpp>

#include <signal.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <list>
#include <mutex>
#include <utility>

namespace lamina::detail {
namespace {

/// 0 is off, anything else on.
bool is_on(const char* variable, bool otherwise) {
  const char* value = std::getenv(variable);
  return value && *value ? std::string_view(value) != "0" : otherwise;
}

#ifdef NDEBUG
constexpr bool debug_build = false;
#else
constexpr bool debug_build = true;
#endif

/// How a rank ended, as it tells its peers.
struct Notice {
  int code = -1;  ///< exit status; -1: not heard of
  char error[508] = "";

  bool says(const std::string& what) const { return what.compare(0, sizeof error - 1, error) == 0; }
};

/// A process, and whether its number means anything to us: same host, same PID namespace.
struct Process {
  char place[248] = "";
  std::int64_t pid = 0;

  static Process self() {
    Process p;
    char host[128] = "", space[96] = "";
    gethostname(host, sizeof host - 1);
    if (readlink("/proc/self/ns/pid", space, sizeof space - 1) < 0) space[0] = 0;
    std::snprintf(p.place, sizeof p.place, "%s %s", host, space);
    p.pid = getpid();
    return p;
  }
  bool gone(const Process& from) const {
    return std::strcmp(place, from.place) == 0 && ::kill(pid_t(pid), 0) != 0 && errno == ESRCH;
  }
  std::string host() const { return std::string(place, std::strcspn(place, " ")); }
  bool operator==(const Process& other) const {
    return pid == other.pid && std::strcmp(place, other.place) == 0;
  }
};

/// The ranks there are, and what is known of them. Where more are started, these have another one.
class Session final : public Lookout {
 public:
  /// `former`: what these ranks had before others came.
  Session(std::shared_ptr<MpiProcess> of, MPI_Comm ranks, const Session* former = nullptr)
      : process(std::move(of)) {
    for (MPI_Comm* comm : {&world, &control_, &growing_}) {
      check_mpi(MPI_Comm_dup(ranks, comm), "MPI_Comm_dup");
      MPI_Comm_set_errhandler(kept(*comm), MPI_ERRORS_RETURN);
    }
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &size);
    self_ = Process::self();
    peers_.resize(std::size_t(size));
    notices_.resize(std::size_t(size));
    check_mpi(
        MPI_Allgather(&self_, sizeof self_, MPI_BYTE, peers_.data(), sizeof self_, MPI_BYTE, world),
        "MPI_Allgather");
    check_mpi(MPI_Allreduce(MPI_IN_PLACE, &check_collectives, 1, MPI_INT, MPI_MAX, world),
              "MPI_Allreduce");
    std::vector<int> hosts;                               // of each rank: the first one there
    if (ranks != MPI_COMM_WORLD || mpi_outlives_ranks())  // a window outlives none
      for (const Process& p : peers_) hosts.push_back(first_beside(p));
    node = std::make_unique<SharedNode>(world, *this, hosts, former ? former->node.get() : nullptr);
    process->write_note();
  }

  /// The ranks that are left, on all of them: null where none is lost, one has failed by itself, or
  /// MPI ends with the first that is lost. `lost` are those that are not left, by their rank here.
  /// Throws Error where they do not come together.
  std::shared_ptr<Session> outlive(std::vector<int>& lost) {
    if (!mpi_outlives_ranks() || !some_lost()) return nullptr;
    for (const MPI_Comm comm : {control_, world, growing_}) revoke(comm);
    std::shared_ptr<Session> left;
    std::string why;
    MPI_Comm ranks = world;
    for (int before = 0, count = 0; !left; before = count) {
      ranks = kept(those_left(ranks));
      MPI_Comm_size(ranks, &count);
      check(count != before, "the ranks that are left do not come together: ", why);
      left = meet(ranks, why);
    }
    for (int r = 0; r < size; ++r)
      if (!std::ranges::count(left->peers_, peers_[std::size_t(r)])) lost.push_back(r);
    process->go_on_with(left->size);
    return left;
  }

  /// Throws if a peer has failed or is gone, or one of `party` (of all, where it is empty) has
  /// ended although this rank has been waiting for `doing` for some seconds.
  void look_around(const Operation* doing, double waited, std::span<const int> party = {}) {
    const std::lock_guard lock(mutex_);
    if (larger_) larger_->look_around(nullptr, 0);
    listen();
    for (int r = 0; r < size; ++r) {
      const Notice& n = notices_[std::size_t(r)];
      if (n.code > 0) throw PeerError(text("rank ", r, " failed: ", n.error));
      const bool takes_part = party.empty() || std::ranges::count(party, r) > 0;
      if (n.code == 0 && doing && waited > 5 && takes_part)
        throw Error(text(describe(r), " ended before ", *doing));
    }
    for (int r = 0; r < size; ++r)
      if (gone(r))
        throw Error(
            text(describe(r), " was lost", doing ? text(" during ", *doing) : std::string()));
    check(!revoked_, "a rank was lost");
  }

  void look(const Operation& op, double waited) override { look(op, waited, {}); }
  void look(const Operation& op, double waited, std::span<const int> party) {
    look_around(&op, waited, party);
    check(waited < time_limit, op, ": not all ranks came within ", time_limit,
          " s (LAMINA_COMM_TIMEOUT)");
  }

  void tell(const std::string& error, int code) {
    process->status = code;
    Notice& mine = mine_[code != 0];
    mine.code = code == 0 ? 0 : std::max(1, code & 0xff);  // as the system has it
    std::snprintf(mine.error, sizeof mine.error, "%s", error.c_str());
    sends_.assign(std::size_t(size), MPI_REQUEST_NULL);
    for (int r = 0; r < size; ++r)
      if (r != rank && !gone(r))
        MPI_Isend(&mine, sizeof mine, MPI_BYTE, r, 0, control_, &sends_[std::size_t(r)]);
    told();
  }

  /// Whether all that tell() sent is on its way.
  bool told() {
    int sent = 0;
    MPI_Testall(size, sends_.data(), &sent, MPI_STATUSES_IGNORE);
    return sent != 0;
  }

  /// Those that were started by it come behind these; see MpiProcess::start_more().
  /// Rank 0 gives up before the others, who wait for it no longer than for any rank.
  std::shared_ptr<Session> grow(int more) {
    const double patience = std::min(time_limit / 2, 60.0);
    return std::make_shared<Session>(process, process->start_more(growing_, more, patience, *this),
                                     this);
  }
  /// Ranks that fail say so there from now on.
  void hear(std::shared_ptr<Session> larger) {
    const std::lock_guard lock(mutex_);
    larger_ = std::move(larger);
  }

  /// Takes in the notices that have arrived.
  void listen() {
    const std::lock_guard lock(mutex_);
    while (!revoked_) {
      int found = 0;
      MPI_Status status;
      const int called = MPI_Iprobe(MPI_ANY_SOURCE, 0, control_, &found, &status);
      if (tells_of_loss(called)) {
        const auto known = lost_.size();
        lost_ = lost_ranks(control_);
        revoked_ = lost_.size() == known;  // by another rank: nothing more arrives
        continue;
      }
      check_mpi(called, "MPI_Iprobe");
      if (!found) return;
      MPI_Recv(&notices_[std::size_t(status.MPI_SOURCE)], sizeof(Notice), MPI_BYTE,
               status.MPI_SOURCE, 0, control_, MPI_STATUS_IGNORE);
    }
  }

  void post(int to, const std::string& note) {
    std::erase_if(posted_, [](Posted& p) {
      int sent = 0;
      MPI_Test(&p.request, &sent, MPI_STATUS_IGNORE);
      return sent != 0;
    });
    Posted& p = posted_.emplace_back();
    p.note = note;
    check_mpi(
        MPI_Isend(p.note.data(), int(note.size()), MPI_BYTE, to, note_tag, control_, &p.request),
        "MPI_Isend");
  }

  std::string collect() {
    int found = 0, length = 0;
    MPI_Status status;
    check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, note_tag, control_, &found, &status), "MPI_Iprobe");
    if (!found) return {};
    MPI_Get_count(&status, MPI_BYTE, &length);
    std::string note(std::size_t(length), 0);
    check_mpi(MPI_Recv(note.data(), length, MPI_BYTE, status.MPI_SOURCE, note_tag, control_,
                       MPI_STATUS_IGNORE),
              "MPI_Recv");
    return note;
  }

  /// As of the last look around.
  const Notice& heard(int r) const { return notices_[std::size_t(r)]; }
  bool gone(int r) const {
    return r != rank && (peers_[std::size_t(r)].gone(self_) || std::ranges::count(lost_, r) > 0);
  }
  std::string host(int r) const { return peers_[std::size_t(r)].host(); }
  std::string describe(int r) const {
    return text("rank ", r, " (process ", peers_[std::size_t(r)].pid, " on ",
                peers_[std::size_t(r)].host(), ')');
  }

  const std::shared_ptr<MpiProcess> process;
  MPI_Comm world = MPI_COMM_NULL;
  int rank = 0, size = 1;
  std::unique_ptr<SharedNode> node;
  const double time_limit = detail::time_limit();
  /// On all ranks, if it is on any.
  int check_collectives = is_on("LAMINA_CHECK_COLLECTIVES", debug_build);

 private:
  /// Others may have heard of it a moment before.
  bool some_lost() {
    for (const double end = now() + 0.5; now() < end; pause(1e-3)) {
      listen();
      bool some = revoked_;
      for (int r = 0; r < size; ++r) {
        if (heard(r).code > 0) return false;
        some = some || (gone(r) && heard(r).code < 0);
      }
      if (some) return true;
    }
    return false;
  }
  /// Null on all, after some said why, where one more was lost meanwhile.
  std::shared_ptr<Session> meet(MPI_Comm ranks, std::string& why) const {
    std::shared_ptr<Session> all;
    try {
      all = std::make_shared<Session>(process, ranks);
    } catch (const std::exception& e) {
      why = e.what();
      revoke_from(ranks);
    }
    return all_agree(ranks, all != nullptr, 20) ? all : nullptr;
  }
  int first_beside(const Process& p) const {
    int r = 0;
    while (std::strcmp(peers_[std::size_t(r)].place, p.place) != 0) ++r;
    return r;
  }

  MPI_Comm control_ = MPI_COMM_NULL;  // for notices, so that they never meet the program's messages
  MPI_Comm growing_ = MPI_COMM_NULL;  // for the thread that starts more ranks
  std::recursive_mutex mutex_;        // of notices, since that thread looks around, too
  std::shared_ptr<Session> larger_;
  Process self_;
  std::vector<Process> peers_;
  std::vector<Notice> notices_;
  std::vector<int> lost_;  // ranks, as MPI knows
  bool revoked_ = false;   // by another rank, which goes on without those that are lost
  static constexpr int note_tag = 1;
  struct Posted {
    std::string note;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  std::list<Posted> posted_;    // that may be on their way
  std::array<Notice, 2> mine_;  // ended well; failed, perhaps after that
  std::vector<MPI_Request> sends_;
};

class MpiTransport final : public Transport {
 public:
  MpiTransport(std::shared_ptr<Session> session, MPI_Comm comm)
      : session_(std::move(session)), comm_(comm), group_(comm, lookout_) {
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
    members_ = ranks_in_world();
    SharedGroup group(*session_->node, lookout_, members_, rank_);
    if (group.whole() && group.useful())
      shared_ = std::make_unique<SharedGroup>(std::move(group));
    else if (group.useful())
      nodes_ = std::make_unique<NodeGroup>(*session_->node, lookout_, comm_, members_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::span<const int> members() const override { return members_; }
  void poll() override {
    block_broken_pipes();
    session_->look_around(nullptr, 0);
  }
  double time_limit() const override { return session_->time_limit; }
  std::string carrier() const override {
    if (shared_) return "shared memory";
    if (nodes_) return "MPI, shared memory within a node";
    return session_->node->reason().empty() ? "MPI" : text("MPI (", session_->node->reason(), ')');
  }
  bool narrows() const override { return !shared_; }
  std::shared_ptr<Transport> plain() override { return plain_mpi(comm_); }
  void post(int to, const std::string& note) override {
    session_->post(members_[std::size_t(to)], note);
  }
  std::string collect() override {
    poll();  // the thread is never idle for long where notes are waited for
    return session_->collect();
  }

  void run(const Operation& op) override {
    block_broken_pipes();
    if (session_->check_collectives) compare(op);
    op.reduces() && is_narrow(op.dtype) ? reduce_wide(op) : carry(op);
  }

  std::shared_ptr<void> allocate(MemorySpace& space, std::size_t bytes, bool touched) override {
    if (!shared_ && !nodes_) return nullptr;
    run({});  // whoever is lost, or calls something else, is noticed here
    SharedGroup& shared = shared_ ? *shared_ : nodes_->shared();
    const auto made = shared.allocate(comm_, space.on_host() ? bytes : 0, touched);
    return space.on_host() ? made : nullptr;
  }

  std::shared_ptr<Transport> group(const std::vector<int>& members) override {
    return pool_.group(*this, members, [this](const std::vector<int>& fresh) {
      const auto me = std::ranges::find(fresh, rank_) - fresh.begin();
      MPI_Comm part = MPI_COMM_NULL;
      check_mpi(MPI_Comm_split(comm_, fresh.empty() ? MPI_UNDEFINED : fresh[0], int(me), &part),
                "MPI_Comm_split");
      return fresh.empty() ? nullptr : std::make_shared<MpiTransport>(session_, kept(part));
    });
  }

 private:
  void carry(const Operation& op) {
    if (shared_ && shared_->run(op)) return;
    if (nodes_ && nodes_->carries(op)) return nodes_->run(op);
    group_.run(op, !shared_);
  }

  /// Of bf16 or f16: they travel as f32, so that the sum is rounded once, at its end.
  void reduce_wide(const Operation& op) {
    const bool scatter = op.collective == Collective::reduce_scatter;
    const std::size_t count = op.count * std::size_t(scatter ? size_ : 1);
    wide_.resize(std::max(wide_.size(), count + (scatter ? op.count : 0)));
    Operation all = op;
    all.dtype = DType::f32, all.in = all.out = wide_.data();
    if (scatter) all.out = wide_.data() + count;
    visit(op.dtype, [&]<Floating T>(T) {
      std::copy_n(static_cast<const T*>(op.in), count, wide_.data());
      carry(all);
      std::transform(static_cast<float*>(all.out), static_cast<float*>(all.out) + op.count,
                     static_cast<T*>(op.out), [](float v) { return T(v); });
    });
  }

  std::vector<int> ranks_in_world() const {
    MPI_Group ours = MPI_GROUP_NULL;
    MPI_Comm_group(comm_, &ours);
    return ranks_in(session_->world, ours);
  }

  /// Throws where not all ranks are about to call the same thing.
  void compare(const Operation& mine) {
    Called called;
    called.set(mine);
    const auto all = gather(comm_, called, mine, lookout_);
    for (int r = 1; r < size_; ++r) check_same(all[0], 0, all[std::size_t(r)], r, size_);
    if (mine.collective != Collective::halo) return;
    const std::string stray =
        stray_message(size_, [&](int r) { return all[std::size_t(r)].get(); });
    check(stray.empty(), stray);
  }

  /// Waits for members alone.
  class GroupLookout final : public Lookout {
   public:
    explicit GroupLookout(const MpiTransport& group) : group_(group) {}
    void look(const Operation& op, double waited) override {
      group_.session_->look(op, waited, group_.members_);
    }

   private:
    const MpiTransport& group_;
  };

  std::shared_ptr<Session> session_;
  MPI_Comm comm_;
  GroupLookout lookout_{*this};
  MpiGroup group_;
  int rank_ = 0, size_ = 1;
  std::vector<int> members_;             // of this group, by their rank in the world
  std::vector<float> wide_;              // what bf16 and f16 are summed in
  std::unique_ptr<SharedGroup> shared_;  // where all members share memory
  std::unique_ptr<NodeGroup> nodes_;     // where some do
  GroupPool pool_;
};

class MpiJob final : public Job {
 public:
  MpiJob(int& argc, char**& argv) {
    if (const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
        rank && std::string_view(rank) == "0")
      if (const auto board = reach_board()) board->begun = now();
    (void)detail::time_limit();  // what is wrong with it ends this before others wait in MPI
    const auto process = std::make_shared<MpiProcess>(argc, argv);
    try {
      session_ = std::make_shared<Session>(process, process->ranks());
    } catch (const std::exception& e) {  // others wait for this rank where nobody looks around
      if (process->late()) throw;
      World::say(e.what());
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
    if (const auto board = this->board()) board->met = 1;
  }
  explicit MpiJob(std::shared_ptr<Session> session) : session_(std::move(session)) {}

  std::shared_ptr<Transport> transport() override {
    return std::make_shared<MpiTransport>(session_, session_->world);
  }

  std::string leave(const std::string& error, int code) override {
    block_broken_pipes();
    Session& s = *session_;
    s.tell(error, code);
    // Peers that ended well may have long work left; those that failed come at once or not at all.
    const double limit = now() + 5;
    std::vector<int> silent;
    while (true) {
      if (code == 0)
        s.look_around(nullptr, 0);
      else
        s.listen();
      silent.clear();
      all_left_ = s.told() || code != 0;
      for (int r = 0; r < s.size; ++r) {
        if (r == s.rank || s.heard(r).code >= (code == 0 ? 0 : 1)) continue;
        all_left_ = false;
        if (!s.gone(r)) silent.push_back(r);
      }
      if (all_left_ || (code != 0 && (silent.empty() || now() > limit))) break;
      pause(1e-3);
    }
    if (const auto board = this->board()) {
      if (all_left_ && code == 0) board->ended = 1;
      bool failed = !error.empty();
      for (int r = 0; r < s.size; ++r) failed = failed || !s.heard(r).says("");
      if (failed) board->failed = 1;
    }
    if (error.empty()) return {};
    int same = 1;
    for (int r = 0; r < s.size; ++r) {
      if (s.heard(r).code <= 0 || !s.heard(r).says(error)) continue;
      if (r < s.rank) {
        others_say_ = true;
        return {};
      }
      ++same;
    }
    // An error of all ranks, or one about a rank, needs no "rank 3:" before it.
    std::string line =
        same == s.size || error.starts_with("rank ") ? error : text("rank ", s.rank, ": ", error);
    for (const int r : silent) append(line, text("; no answer from ", s.describe(r)));
    return line;
  }
  bool all_left() const override { return all_left_; }

  bool late() const override { return session_->process->late(); }
  int started() const override { return session_->process->started(); }
  std::unique_ptr<Job> grow(int more) override {
    return std::make_unique<MpiJob>(session_->grow(more));
  }
  std::unique_ptr<Job> outlive() override {
    if (!launcher_memory()) return nullptr;
    block_broken_pipes();
    std::vector<int> lost;
    const auto left = session_->outlive(lost);
    if (!left) return nullptr;
    // Whoever fails from here on tells those that are left.
    const std::shared_ptr<Session> before = std::exchange(session_, left);
    if (left->rank == 0) {
      const auto board = this->board();
      check(bool(board), "lamina launch cannot be reached: expected rank 0 on its host");
      tell_losses(*board, *before, lost);
    }
    return std::make_unique<MpiJob>(left);
  }
  void hear(const Job& larger) override {
    session_->hear(static_cast<const MpiJob&>(larger).session_);
  }
  void withdraw(const std::string& error) override {
    leave(error, 1);
    session_->process->status = 0;  // or else mpirun would end the others
    session_->process->hurry = true;
  }

  [[noreturn]] void kill(int code) override {
    // Where a process is gone, the launcher is at work already, and says it in fewer words. A rank
    // that is to say what happened may need a moment.
    bool wait = others_say_;
    for (int r = 0; r < session_->size; ++r) wait = wait || session_->gone(r);
    if (wait) pause(1);
    MPI_Abort(session_->world, code);
    std::_Exit(code);
  }

 private:
  /// Of the launcher that watches over the job; on rank 0, where it can be reached.
  BoardMap board() const { return session_->rank == 0 ? reach_board() : BoardMap(); }

  static void tell_losses(Board& board, const Session& before, const std::vector<int>& lost) {
    std::size_t n = std::size_t(board.lost);
    check(n + lost.size() <= board.losses.size(), "more than ", board.losses.size(),
          " ranks were lost");
    for (const int r : lost) {
      Board::Lost& entry = board.losses[n++];
      entry.rank = r;
      std::snprintf(entry.host.data(), entry.host.size(), "%s", before.host(r).c_str());
    }
    if (board.made > 0) {  // or else it is as it was when others were lost
      board.before.last = board.last.load();
      board.before.training = board.training.load(), board.before.step = board.step.load();
      board.before.made = board.made.load();
    }
    board.made = 0;
    board.lost = std::int64_t(n);
  }

  std::shared_ptr<Session> session_;
  bool all_left_ = false, others_say_ = false;
};

}  // namespace

std::unique_ptr<Job> start_mpi(int& argc, char**& argv) {
  return std::make_unique<MpiJob>(argc, argv);
}

}  // namespace lamina::detail
