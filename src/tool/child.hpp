// Child: a program that runs beside this one, and ends with it.
#pragma once

#include "base/descriptor.hpp"

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lamina::cli {

/// Where the shell would find this program; "" if nowhere.
std::string find_program(const std::string& name);

/// In a process group of its own: what the terminal sends to all (Ctrl-C) does not reach it. It
/// gets SIGTERM where this process is gone. Reads nothing; what it says on stderr is to be taken.
class Child {
 public:
  /// Throws Error where it cannot be started.
  explicit Child(const std::vector<std::string>& command, bool silent = false);
  Child(const Child&) = delete;
  ~Child() { end(); }

  /// Has it end, if need be; it has some seconds for it.
  void end();

  /// Returns after `seconds`, or earlier where there is something to take, a signal came, or it has
  /// ended: whether it has.
  bool wait(double seconds);
  /// What it has said since; "" where nothing.
  std::string said();
  void signal(int number) const;
  /// How many it has started itself with this variable in their environment.
  int count_children(std::string_view variable) const;
  /// To these: whether any has a handler for it; nothing where there are none. Where one is a
  /// script, say, what it runs and what catches the signal gets it instead: a shell would end, and
  /// leave that alone.
  std::optional<bool> signal_children(int number, std::string_view variable) const;
  /// Whether all that it has started itself have ended, and it has not waited for the last ones.
  bool forgets_children() const;
  /// When it has ended, as shells tell it: 128 and more where a signal ended it.
  int status() const { return status_; }
  /// Whether a signal ended it.
  bool killed() const { return killed_; }

 private:
  pid_t process_ = -1;
  bool ended_ = false, killed_ = false;
  int status_ = 0;
  lamina::detail::Descriptor errors_;  ///< what it says
};

/// Kills the processes whose parents are gone, among those that were started from here. No Child
/// may run.
void end_orphans();

}  // namespace lamina::cli
