#include "terminal.hpp"

#include <lamina/base/detail/wrap.hpp>
#include <lamina/base/text.hpp>
#include <lamina/comm/world.hpp>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

namespace lamina::cli {

namespace {

/// What a process's stdout is, as a path.
std::string stdout_of(pid_t process) {
  char path[256];
  const ssize_t n = ::readlink(text("/proc/", process, "/fd/1").c_str(), path, sizeof path);
  return n > 0 ? std::string(path, std::size_t(n)) : std::string();
}

pid_t parent_of(pid_t process) {
  pid_t parent = 0;
  if (std::FILE* file = std::fopen(text("/proc/", process, "/stat").c_str(), "r")) {
    // The second field is the program's name in parentheses, which may hold anything.
    if (std::fscanf(file, "%*d (%*[^)]) %*c %d", &parent) != 1) parent = 0;
    std::fclose(file);
  }
  return parent;
}

/// The stdout of the nearest ancestor that does not share this process's: that of the launcher.
std::string stdout_of_launcher() {
  const std::string own = stdout_of(::getpid());
  std::string other = own;
  for (pid_t p = ::getppid(); p > 1 && other == own; p = parent_of(p)) other = stdout_of(p);
  return other;
}

}  // namespace

int terminal_columns() {
  if (!::isatty(STDOUT_FILENO)) return 0;
  int terminal = STDOUT_FILENO;
  if (lamina::detail::launched()) {
    terminal = ::open(stdout_of_launcher().c_str(), O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (terminal < 0) return 0;
  }
  winsize window{};
  const bool is_one = ::ioctl(terminal, TIOCGWINSZ, &window) == 0;
  if (terminal != STDOUT_FILENO) ::close(terminal);
  return !is_one ? 0 : window.ws_col > 0 ? window.ws_col : 80;  // some terminals do not know theirs
}

int table_width() {
  const int columns = terminal_columns();
  return columns > 0 ? std::max(columns, 40) : 120;
}

int remark_width() {
  const int columns = terminal_columns();
  return columns > 0 ? std::max(columns, 40) : 80;
}

std::string remark(std::string_view words) {
  return lamina::detail::wrap(text("# ", words, '\n'), std::size_t(remark_width()), "#   ");
}

std::string for_shell(const std::string& word) {
  const bool plain = word.find_first_of(" \t\n\"'\\$`*?[](){}<>|&;#~!") == word.npos;
  if (plain && !word.empty()) return word;
  std::string s = "'";
  for (const char c : word) s += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return s + "'";
}

}  // namespace lamina::cli
