#include "mpi_job.hpp"

#include <lamina/base/clock.hpp>
#include <lamina/base/text.hpp>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace lamina::cli {

namespace {

constexpr std::size_t rule = 74;  ///< dashes above and below each of Open MPI's notices
constexpr int most_lines = 30;    ///< of a notice: what is longer is none
constexpr double patience = 5;    ///< seconds between two looks at what mpirun makes of its ranks

bool is_rule(std::string_view line) {
  return line.size() == rule && line.find_first_not_of('-') == line.npos;
}

/// That which a notice says was lost. The parts are as Open MPI words them; where a line ends
/// does not matter to scanf.
std::optional<Lost> read_loss(const std::string& notice) {
  Lost lost;
  char host[256] = "";
  if (const auto at = notice.find("noticed that process rank"); at != notice.npos)
    if (std::sscanf(notice.c_str() + at,
                    "noticed that process rank %d with PID %*d on node %255s exited on signal %d",
                    &lost.rank, host, &lost.signal) == 3) {
      lost.host = host;
      return lost;
    }
  if (const auto at = notice.find("Remote daemon:"); at != notice.npos)
    if (std::sscanf(notice.c_str() + at, "Remote daemon: %*s on node %255s", host) == 1)
      return Lost{.host = host};
  return std::nullopt;
}

/// Whether a notice says no more than what this program says in a line.
bool is_known(const std::string& notice) {
  return notice.find("job  terminated normally, but") != notice.npos ||
         notice.find("processes exited with non-zero status,") != notice.npos;
}

/// Open MPI puts the program that reaches another host into a group of its own twice, in that
/// program and in mpirun, and says so where the latter came second: nothing is amiss.
bool says_nothing(std::string_view line) {
  return line.find(": Warning: setpgid(") != line.npos &&
         line.find("failed in parent with errno=Permission denied") != line.npos;
}

void print(std::string_view words) { std::fwrite(words.data(), 1, words.size(), stderr); }

}  // namespace

std::string Lost::text() const {
  if (all) return "all ranks were lost";
  const std::string what = rank >= 0      ? lamina::text("rank ", rank)
                           : host.empty() ? "a rank"
                                          : lamina::text("host ", host);
  return lamina::text(what, " was lost", signal > 0 ? lamina::text(" (signal ", signal, ')') : "");
}

void Notices::line(std::string_view line) {
  const bool ends = is_rule(line.substr(0, line.size() - 1));  // without its end of line
  if (box_.empty() && says_nothing(line)) return;
  if (box_.empty() && !ends) return print(line);
  const bool begins = box_.empty();
  box_ += line;
  if (begins || (!ends && ++lines_ < most_lines)) return;
  ends ? notice(std::exchange(box_, "")) : print(std::exchange(box_, ""));
  lines_ = 0;
}

void Notices::notice(const std::string& words) {
  if (const auto loss = read_loss(words)) {
    if (!lost_) lost_ = loss;
  } else if (words.find("unable to reliably start one or more daemons") != words.npos) {
    held_ += words;
  } else if (!is_known(words)) {
    print(words);
  }
}

void Notices::take(const std::string& said) {
  rest_ += said;
  std::size_t at = 0;
  // A bar that grows begins anew with each '\r'.
  for (std::size_t end; (end = rest_.find_first_of("\r\n", at)) != rest_.npos; at = end + 1) {
    if (rest_[end] == '\r' && end + 1 == rest_.size()) break;  // '\n' may follow
    if (rest_[end] == '\r' && rest_[end + 1] == '\n') ++end;
    line(std::string_view(rest_).substr(at, end + 1 - at));
  }
  rest_.erase(0, at);
}

void Notices::flush() {
  print(box_), print(rest_);
  box_.clear(), rest_.clear(), lines_ = 0;
}

bool MpiJob::wait(double seconds) {
  const bool ended = child_.wait(seconds);
  notices_.take(child_.said());
  if (ended) notices_.flush();
  if (!ended) kill_if_stuck();
  return ended;
}

/// Open MPI's hangs at times where a rank is lost while it connects: it ends the others, and waits
/// for itself.
void MpiJob::kill_if_stuck() {
  if (now() < next_look_) return;
  next_look_ = now() + patience;
  const bool forgets = child_.forgets_children();
  if (forgets && forgot_) child_.signal(SIGKILL);
  forgot_ = forgets;
}

std::optional<Lost> MpiJob::lost(bool as_noticed) const {
  if (as_noticed && notices_.lost()) return notices_.lost();
  // Of ranks that were lost all at once mpirun says nothing.
  for (const int signal : {SIGKILL, SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL})
    if (status() == 128 + signal) return Lost{.signal = signal};
  return std::nullopt;
}

bool MpiJob::pass_on(int signal, bool were_there) {
  // Not to what it reaches other hosts with.
  if (const auto heard = child_.signal_children(signal, rank_variable)) {
    heard_ = *heard;
    return true;
  }
  if (!were_there) child_.signal(signal);
  return !were_there;
}

}  // namespace lamina::cli
