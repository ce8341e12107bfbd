// The control groups that a process is in: limits of containers, batch systems and services.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lamina::detail {

/// Whose files are those of version 1 or 2: https://docs.kernel.org/admin-guide/cgroup-v2.html
struct ControlGroup {
  std::filesystem::path folder;  ///< which need not be there
  int version;
};

/// Those of this process that share out "memory" or "cpu", where the root of the file system is
/// `root`. Each group is in all those above it, which are among them, and whose limits hold, too.
std::vector<ControlGroup> control_groups(const std::string& controller,
                                         const std::filesystem::path& root);

}  // namespace lamina::detail
