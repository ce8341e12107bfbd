#include "child.hpp"

#include <lamina/base/clock.hpp>
#include <lamina/base/error.hpp>
#include <lamina/base/threads.hpp>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace lamina::cli {

namespace {

namespace fs = std::filesystem;

/// "S 11 ...": state, parent, and more; "" where it is gone.
std::string state_of(pid_t process) {
  std::string line;
  std::getline(std::ifstream(text("/proc/", process, "/stat")), line);
  const auto name_end = line.rfind(')');  // "12 (any name) S 11 ..."
  return name_end == line.npos || line.size() < name_end + 4 ? "" : line.substr(name_end + 2);
}

/// The processes that `parent` has started and that have not been waited for.
std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> found;
  std::error_code error;
  for (fs::directory_iterator at("/proc", error), end; !error && at != end; at.increment(error)) {
    const pid_t process = std::atoi(at->path().filename().c_str());
    if (process <= 0) continue;
    const std::string state = state_of(process);
    if (!state.empty() && std::atoi(state.c_str() + 2) == parent) found.push_back(process);
  }
  return found;
}

bool has_variable(pid_t process, std::string_view name) {
  std::ifstream file(text("/proc/", process, "/environ"));
  for (std::string entry; std::getline(file, entry, '\0');)
    if (entry.starts_with(name) && entry.substr(name.size()).starts_with('=')) return true;
  return false;
}

/// Those with that variable in their environment.
std::vector<pid_t> children_of(pid_t parent, std::string_view variable) {
  auto children = children_of(parent);
  std::erase_if(children, [&](pid_t child) { return !has_variable(child, variable); });
  return children;
}

/// Whether it has a handler for that signal.
bool catches(pid_t process, int signal) {
  std::ifstream file(text("/proc/", process, "/status"));
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("SigCgt:"))
      return std::strtoull(line.c_str() + 7, nullptr, 16) >> (signal - 1) & 1;
  return false;
}

/// To this process and those below it, where they catch it. Returns whether any does.
bool signal_catchers(pid_t process, int signal) {
  bool any = catches(process, signal) && kill(process, signal) == 0;
  for (const pid_t child : children_of(process)) any |= signal_catchers(child, signal);
  return any;
}

[[noreturn]] void become(const std::vector<std::string>& command, pid_t parent, int errors) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(1);  // it went before it could be asked for
  setpgid(0, 0);
  unbind_thread();  // ranks take the processors of who starts them
  const int nothing = open("/dev/null", O_RDWR);
  dup2(nothing, STDIN_FILENO);
  if (errors < 0) dup2(nothing, STDOUT_FILENO);
  dup2(errors < 0 ? nothing : errors, STDERR_FILENO);
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  execvp(words[0], words.data());
  _exit(127);
}

}  // namespace

std::string find_program(const std::string& name) {
  const auto runs = [](const std::string& path) {
    return fs::is_regular_file(path) && access(path.c_str(), X_OK) == 0;
  };
  if (name.find('/') != name.npos) return runs(name) ? name : "";
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : "/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');)
    if (const std::string file = (folder.empty() ? "." : folder) + "/" + name; runs(file))
      return file;
  return "";
}

Child::Child(const std::vector<std::string>& command, bool silent) {
  // Whatever a child leaves behind becomes ours, so that it can be ended.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  int ends[2] = {-1, -1};
  check(silent || pipe2(ends, O_CLOEXEC) == 0, "cannot make a pipe: ", std::strerror(errno));
  errors_ = lamina::detail::Descriptor(ends[0]);
  const lamina::detail::Descriptor theirs(ends[1]);
  if (errors_) fcntl(errors_.get(), F_SETFL, O_NONBLOCK);
  ::signal(SIGCHLD, SIG_DFL);  // where it is ignored, as whoever started us may, nobody can wait
  const pid_t self = getpid();
  process_ = fork();
  check(process_ >= 0, command[0], ": cannot be started: ", std::strerror(errno));
  if (process_ == 0) become(command, self, theirs.get());
}

void Child::end() {
  constexpr double patience = 5;  // seconds
  signal(SIGTERM);
  for (const double limit = now() + patience; !wait(0.1) && now() < limit;) said();
  signal(SIGKILL);
  while (!wait(0.1)) said();
}

bool Child::wait(double seconds) {
  if (ended_) return true;
  const double end = now() + seconds;
  // What is silent ends without a sign: it is looked after at short intervals.
  const int interval = errors_ ? int(1e3 * seconds) : 5;
  do {
    pollfd watched{.fd = errors_.get(), .events = POLLIN, .revents = 0};
    const int ready = poll(&watched, 1, interval);
    int status = 0;
    if (waitpid(process_, &status, WNOHANG) == process_) {
      ended_ = true, killed_ = WIFSIGNALED(status);
      status_ = killed_ ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      return true;
    }
    if (ready < 0) return false;  // a signal
    if (ready > 0 && (watched.revents & POLLIN) != 0) return false;
    if (ready > 0) poll(nullptr, 0, 5);  // the pipe is closed: it is about to end
  } while (now() < end);
  return false;
}

std::string Child::said() {
  std::string all;
  if (!errors_) return all;
  char piece[4096];
  for (ssize_t n; (n = read(errors_.get(), piece, sizeof piece)) > 0;)
    all.append(piece, std::size_t(n));
  return all;
}

void Child::signal(int number) const {
  if (!ended_) kill(process_, number);
}

int Child::count_children(std::string_view variable) const {
  return ended_ ? 0 : int(children_of(process_, variable).size());
}

std::optional<bool> Child::signal_children(int number, std::string_view variable) const {
  const auto children = ended_ ? std::vector<pid_t>() : children_of(process_, variable);
  if (children.empty()) return {};
  bool any = false;
  for (const pid_t child : children) {
    const bool caught = signal_catchers(child, number);
    if (!caught) kill(child, number);
    any = any || caught;
  }
  return any;
}

bool Child::forgets_children() const {
  const auto children = children_of(process_);
  return !children.empty() && std::ranges::all_of(children, [](pid_t child) {
    return state_of(child).starts_with('Z');
  });
}

void end_orphans() {
  for (auto left = children_of(getpid()); !left.empty(); left = children_of(getpid()))
    for (const pid_t process : left) kill(process, SIGKILL), waitpid(process, nullptr, 0);
}

}  // namespace lamina::cli
