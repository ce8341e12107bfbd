#include "launcher.hpp"

#include <lamina/base/clock.hpp>
#include <lamina/base/error.hpp>
#include <lamina/base/threads.hpp>
#include <lamina/comm/detail/time_limit.hpp>
#include <lamina/comm/mpi.hpp>
#include <lamina/comm/world.hpp>

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

namespace lamina::cli {

namespace {

constexpr const char* outlive_flag = "--with-ft";  ///< of mpirun: see Launcher::outlive_
constexpr int most_stalled = 3;                    ///< jobs in a row without progress
constexpr int most_failed_growths = 6;             ///< each doubles the time to the next try
constexpr int most_errors = 3;                     ///< of the program, in a row
constexpr double in_a_row = 600;                   ///< seconds between two errors
constexpr double between_asks = 5;         ///< seconds between two looks at a lost host, at least
constexpr double to_end = 5;               ///< seconds that mpirun has to end a job by itself
constexpr double least_to_meet = 20;       ///< seconds that ranks have at least until they meet
constexpr double soon = 0.02, late = 0.5;  ///< seconds between two looks at the board

std::string ranks_text(int n) { return text(n, n == 1 ? " rank" : " ranks"); }

std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words;
  std::istringstream all(line);
  for (std::string word; all >> word;) words.push_back(word);
  return words;
}

/// Up to a signal.
void pause(double seconds) { poll(nullptr, 0, int(1e3 * seconds)); }

/// What the ranks inherit.
void set_environment(const std::string& memory, std::int64_t every) {
  setenv(lamina::detail::snapshot_variable, memory.c_str(), 1);
  unsetenv(lamina::detail::every_variable);
  if (every > 0) setenv(lamina::detail::every_variable, text(every).c_str(), 1);
  // Open MPI waits twice so long, seconds, for ranks that are to end because one was lost. Whoever
  // has set it wanted ranks to save what they have: here it is saved.
  setenv("OMPI_MCA_odls_base_sigkill_timeout", "0", 1);
  // A host that says nothing more is given up after so many seconds; by default after minutes.
  for (const std::string starter : {"OMPI", "PRTE"}) {  // Open MPI up to version 4, and from 5 on
    const std::string of_hosts = starter + "_MCA_oob_tcp_keepalive_";
    setenv((of_hosts + "time").c_str(), "3", 0);
    setenv((of_hosts + "intvl").c_str(), "1", 0);
    setenv((of_hosts + "probes").c_str(), "3", 0);
  }
  unsetenv("OMPI_MCA_orte_execute_quiet");  // its notices are read
}

}  // namespace

// ---- memory ----------------------------------------------------------------------------------

LaunchMemory::LaunchMemory() {
  File(files_[0].path(), File::Mode::overwrite).cut(sizeof(lamina::detail::Board));
  board_ = lamina::detail::BoardMap(files_[0].path().c_str());
}

void LaunchMemory::begin() {
  board_->begun = 0;
  board_->met = board_->made = board_->ended = board_->failed = 0;
  board_->before.made = board_->lost = 0;
  board_->before.training = board_->training.load(), board_->before.step = board_->step.load();
  board_->before.last = board_->last.load();
  for (auto& snapshot : board_->snapshots) snapshot.lost = 0;
  std::snprintf(board_->why.data(), board_->why.size(), "%s", why_.c_str());
  board_->why_of = why_of_;
}

void LaunchMemory::note(const std::string& why) {
  if (why_of_ != board_->taken) why_.clear(), why_of_ = board_->taken;
  append(why_, text(why_.empty() ? "" : ", then ", why));
}

std::string LaunchMemory::where() const {
  return text(files_[0].path(), ',', files_[1].path(), ',', files_[2].path());
}

bool LaunchMemory::unsaved() const {
  const auto* const newest = board_->newest_snapshot();
  return newest && newest->training == board_->saves && newest->step > board_->saved;
}

void LaunchMemory::keep_unsaved() const {
  const std::string saved = board_->save_path.data();
  if (!unsaved() || saved.empty()) return;
  const auto step = static_cast<long long>(board_->newest_snapshot()->step);
  const std::string path = saved + ".newest";
  try {
    const File snapshot(files_[board_->newest].path(), File::Mode::read);
    NewFile file(path);
    std::vector<char> part(std::size_t(1) << 20);
    for (std::uint64_t at = 0, size = snapshot.size(); at < size; at += part.size()) {
      part.resize(std::size_t(std::min<std::uint64_t>(part.size(), size - at)));
      snapshot.read(part.data(), part.size(), at);
      file.write(part.data(), part.size());
    }
    file.commit();
    std::fprintf(stderr, "lamina launch: step %lld is saved as %s\n", step, path.c_str());
  } catch (const Error& e) {
    std::fprintf(stderr, "lamina launch: step %lld is lost: %s\n", step, e.what());
  }
}

// ---- jobs ------------------------------------------------------------------------------------

Launcher::Launcher(LaunchOptions options)
    : options_(std::move(options)),
      hosts_(options_.hosts.empty() ? Hosts(options_.max > 0 ? options_.max : processors())
                                    : Hosts(options_.hosts)),
      time_limit_(std::max(least_to_meet, lamina::detail::time_limit())) {
  if (options_.max == 0) options_.max = hosts_.all();
  check(options_.min <= options_.max, "launch: --min ", options_.min, ", but ",
        options_.hosts.empty() ? "--max is " : "there is room for ", options_.max);
  check(hosts_.all() >= options_.min, "launch: --min ", options_.min, ", but --hosts has room for ",
        hosts_.all());
  const auto starter = words_of(options_.mpirun);
  check(!starter.empty() && !find_program(starter[0]).empty(),
        "launch: ", starter.empty() ? std::string("mpirun") : starter[0],
        ": not found: install MPI's, or say where it is with --mpirun");
  check(!find_program(program()).empty(), "launch: ", program(), ": no such program");
  all_here_ = options_.hosts.empty() && options_.mpirun == LaunchOptions().mpirun;
  // Who wants as many ranks again at once has them all started anew.
  if (options_.mpirun == LaunchOptions().mpirun && mpi_outlives() && options_.regrow > 0)
    options_.mpirun += text(' ', outlive_flag, " ulfm");
  outlive_ = options_.mpirun.find(outlive_flag) != options_.mpirun.npos;
  set_environment(memory_.where(), options_.every);
}

std::vector<std::string> Launcher::command(int ranks) const {
  std::vector<std::string> all = words_of(options_.mpirun);
  const auto add = [&](const std::vector<std::string>& words) {
    all.insert(all.end(), words.begin(), words.end());
  };
  add({"-n", text(ranks)});
  if (const auto hosts = hosts_.flags(now()); !hosts.empty()) {
    add(hosts);
    add({"-x", lamina::detail::snapshot_variable});
    if (options_.every > 0) add({"-x", lamina::detail::every_variable});
  }
  add(options_.program);
  return all;
}

int Launcher::run() {
  const int status = supervise();
  if (status != 0) memory_.keep_unsaved();
  return status;
}

int Launcher::supervise() {
  while (true) {
    const Ended ended = watch(std::min(options_.max, hosts_.room(now())));
    World::say(ended.given_up);
    if (!ended.given_up.empty()) return ended.status;
    const bool well = ended.status == 0 && !(outlive_ && ended.lost);
    if ((well || ended.told) && !ended.to_grow) return ended.status;
    if (ended.anew) continue;  // judged already
    cut_ |= ended.cut;
    // Whoever asked it to end may have ended mpirun, too: nothing is newer than what was saved.
    const bool asked = signals_.received() != 0 && !ended.lost && !ended.cut;
    if (asked && memory_.board().saved > 0 && !memory_.unsaved()) return 128 + signals_.received();
    const Verdict verdict = judge(ended);
    if (!verdict.again) {
      World::say(verdict.why);
      return ended.status;
    }
    if (signals_.received() != 0 && !has_steps()) return 128 + signals_.received();
    note_restart(verdict.why, reached(), memory_.board().last);
  }
}

Launcher::Ended Launcher::watch(int ranks) {
  const lamina::detail::Board& board = memory_.board();
  memory_.begin();
  followed_ = 0, most_here_ = 0, missing_since_ = 0;
  start_ = Start{hosts_, now()};
  MpiJob job(command(ranks));
  std::optional<std::int64_t> taken;  // snapshots, when there was room for more ranks
  bool passed_on = false, to_grow = false, lost_early = false, too_few = false;
  std::string given_up;
  for (bool ended = false; !ended;) {
    ended = job.wait(restart_ || taken ? soon : late);
    const std::int64_t before = followed_;
    if (given_up.empty())
      if (given_up = follow_losses(ranks).why; !given_up.empty()) job.end();
    if (followed_ > before) passed_on = false;  // the program begins again
    if (!too_few && given_up.empty() && followed_ > 0 && ranks < options_.min)
      job.end(), too_few = true;  // there is room for more
    const bool well = ended && job.status() == 0 && (!outlive_ || board.ended != 0);
    if (!too_few) announce(ranks, well);
    if (ended) break;
    if (!lost_early && waits_for_lost(job, ranks)) job.end(), lost_early = true;
    // Ranks that are to go on from a snapshot can end in order, and save it, after a step.
    const bool training = board.made > 0;
    if (signals_.received() != 0 && !passed_on && !too_few && (training || !has_steps()))
      passed_on = job.pass_on(signals_.received(), training);
    if (!taken && can_grow(ranks)) taken = board.taken;
    if (taken && !to_grow && board.taken > *taken) job.end(), to_grow = true;
  }
  Ended how{.status = job.status(),
            .notice = job.held(),
            .mpirun_killed = job.killed(),
            .to_grow = to_grow && !(job.status() == 0 && board.ended != 0),  // it was done already
            .made_steps = board.made > 0,
            .given_up = given_up};
  how.lost = lost_early ? Lost() : job.lost(followed_ == 0);
  // With status 0 mpirun ends, too, where it lets ranks go on and none is left to.
  if (outlive_ && how.status == 0 && board.ended == 0 && !how.lost) {
    if (board.begun > 0)
      how.lost = Lost{.signal = passed_on ? signals_.received() : 0, .all = true};
    for (const std::string& host : hosts_.ask_open(now() + std::max(options_.regrow, between_asks)))
      how.lost = Lost{.host = host};
  }
  if (outlive_ && how.lost && how.status == 0)
    how.status = 128 + (passed_on ? signals_.received() : SIGKILL);
  const bool otherwise = how.lost && how.lost->signal != signals_.received();
  const bool hears = !passed_on || job.heard();  // if it does not, it will not save anything
  how.cut = signals_.received() != 0 && hears && !otherwise && board.failed == 0 &&
            memory_.unsaved() && !how.to_grow && !cut_;
  how.told = passed_on && !otherwise && !how.cut;
  how.anew = too_few || (followed_ > 0 && how.status != 0 && !how.made_steps && !how.lost);
  if (!given_up.empty()) how.status = 128 + SIGKILL;  // for all that is known of the lost rank
  return how;
}

bool Launcher::can_grow(int ranks) {
  const double time = now();
  if (ranks >= options_.max || time < next_look_) return false;
  next_look_ = time + 1;
  hosts_.ask_closed(time, std::max(options_.regrow, between_asks));
  return hosts_.room(now()) > ranks;
}

// ---- what is said of a restart ---------------------------------------------------------------

Launcher::Reached Launcher::reached() const {
  const lamina::detail::Board& board = memory_.board();
  return {board.training, board.step};
}

void Launcher::note_restart(const std::string& why, Reached reached, double last) {
  memory_.note(why);
  if (!has_steps())  // there is nothing to go on from, and there may never be
    std::fprintf(stderr, "lamina launch: %s before the first step of a training: starting anew\n",
                 why.c_str());
  else if (restart_)  // the ranks that were to go on did not come to a step
    restart_->why += ", then " + why;
  else
    restart_ = Restart{why, reached, last};
}

void Launcher::announce(int ranks, bool done) {
  const lamina::detail::Board& board = memory_.board();
  if (!restart_ || (board.made == 0 && !done)) return;
  std::string line = text("lamina launch: ", restart_->why, ": going on with ", ranks_text(ranks));
  const auto [training, step] = restart_->reached;
  if (step > 0) append(line, text(" from step ", board.from.load()));
  if (step > 0 && training == board.training && board.made > 0) {
    const std::int64_t repeated = std::max(step - board.from, std::int64_t(0));
    append(line, text(", ", repeated, repeated == 1 ? " step" : " steps", " repeated, ",
                      format("%.1f s", board.first - restart_->last)));
  }
  std::fprintf(stderr, "%s\n", line.c_str());
  restart_.reset();
}

// ---- whether it goes on ----------------------------------------------------------------------

bool Launcher::waits_for_lost(const MpiJob& job, int ranks) {
  const lamina::detail::Board& board = memory_.board();
  if (board.met != 0) return false;
  if (board.begun > 0 && now() - board.begun > time_limit_) {
    std::fprintf(stderr, "lamina launch: not all ranks came within %g s (LAMINA_COMM_TIMEOUT)\n",
                 time_limit_);
    return true;
  }
  if (!outlive_) return false;
  const int here = job.ranks_here();
  most_here_ = std::max(most_here_, here);
  const bool missing = here > 0 && here < (all_here_ ? ranks : most_here_);
  if (!missing)
    missing_since_ = 0;
  else if (missing_since_ == 0)
    missing_since_ = now();
  return missing && now() - missing_since_ > to_end;
}

Launcher::Verdict Launcher::follow_losses(int& ranks) {
  const lamina::detail::Board& board = memory_.board();
  const std::int64_t lost = board.lost;
  if (followed_ == lost) return {true, ""};
  std::string what;
  for (; followed_ < lost; ++followed_, --ranks) {
    const lamina::detail::Board::Lost& loss = board.losses[std::size_t(followed_)];
    const Lost one{.rank = int(loss.rank), .host = loss.host.data()};
    hosts_.close_slot(one.host, now() + options_.regrow);
    append(what, text(what.empty() ? "" : ", then ", one.text()));
  }
  const Reached reached(board.before.training, board.before.step);
  const bool further = board.before.made > 0 && reached > furthest_;
  if (further) furthest_ = reached;
  stalled_ = further ? 0 : stalled_ + 1;
  before_growth_.reset(), failed_growths_ = 0;
  start_ = Start{hosts_, now()};
  const Verdict verdict = judge_loss(what);
  if (!verdict.again) return verdict;
  note_restart(what, reached, board.before.last);
  return {true, ""};
}

Launcher::Verdict Launcher::judge(const Ended& ended) {
  const bool further = ended.made_steps && reached() > furthest_;
  if (further) furthest_ = reached();
  stalled_ = further || ended.to_grow ? 0 : stalled_ + 1;
  const double patience = std::max(options_.regrow, between_asks), again = now() + patience;
  if (before_growth_ && !ended.made_steps) {  // with as many as before, each time for longer
    const double until = now() + patience * (1 << failed_growths_);
    failed_growths_ = std::min(failed_growths_ + 1, most_failed_growths);
    hosts_.close_since(before_growth_->hosts, before_growth_->time, until);
    before_growth_.reset();
    std::fputs(ended.notice.c_str(), stderr);
    return {true, "they could not be started"};
  }
  if (before_growth_) failed_growths_ = 0;
  before_growth_.reset();
  if (ended.to_grow) {
    before_growth_ = std::move(start_);
    return {true, "there is room again"};
  }
  if (ended.cut) return judge_loss(text(name_of_signal(signals_.received()), " ended all ranks"));
  if (const std::string what = close_lost(ended, again); !what.empty()) return judge_loss(what);
  std::fputs(ended.notice.c_str(), stderr);
  return judge_error(ended, further);
}

std::string Launcher::close_lost(const Ended& ended, double again) {
  std::string hosts;
  for (const std::string& host : hosts_.ask_open(again))
    append(hosts, text(hosts.empty() ? "" : ", then ", Lost{.host = host}.text()));
  if (!hosts.empty()) return hosts;
  if (ended.mpirun_killed) return text("mpirun was lost (signal ", ended.status - 128, ')');
  if (!ended.lost) return "";
  // Those that were lost before the others went on in place have cost a slot each.
  if (ended.lost->all && followed_ > 0) return ended.lost->text();
  if (ended.lost->rank < 0 && !ended.lost->host.empty())
    hosts_.close_host(ended.lost->host, again);
  else
    hosts_.close_slot(ended.lost->host, now() + options_.regrow);
  return ended.lost->text();
}

Launcher::Verdict Launcher::judge_loss(const std::string& what) {
  const int room = hosts_.room(now());
  if (stalled_ >= most_stalled)
    return {false, text(what, ": ", stalled_, " times in a row without a new step: given up")};
  if (room < options_.min)
    return {false, text(what, ": ", ranks_text(room), " left, expected --min ", options_.min,
                        " or more: given up after step ", furthest_.second)};
  return {true, what};
}

Launcher::Verdict Launcher::judge_error(const Ended& ended, bool further) {
  const std::string what = text(program(), " ended with status ", ended.status);
  for (const int asked : {SIGINT, SIGTERM, SIGUSR1})
    if (ended.status == 128 + asked) return {};  // as it was asked to, by somebody else
  if (furthest_.second == 0) return {false, text(what, " before its first step: not tried again")};
  if (!further)
    return {false,
            text(what, " again, and came no further than step ", furthest_.second, ": given up")};
  errors_ = now() - last_error_ < in_a_row ? errors_ + 1 : 1;
  if (errors_ > most_errors)
    return {false, text(what, " after step ", furthest_.second, ", the ", errors_,
                        "th time in a row: given up")};
  const double seconds = 1 << (errors_ - 1);
  std::fprintf(stderr, "lamina launch: %s after step %lld: trying again in %.0f s\n", what.c_str(),
               static_cast<long long>(furthest_.second), seconds);
  pause(seconds);
  last_error_ = now();
  return {true, what};
}

}  // namespace lamina::cli
