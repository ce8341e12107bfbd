#include "cpu/control_groups.hpp"

#include <fstream>

namespace lamina::detail {

std::vector<ControlGroup> control_groups(const std::string& controller,
                                         const std::filesystem::path& root) {
  std::vector<ControlGroup> found;
  std::ifstream lines(root / "proc/self/cgroup");  // NUMBER:CONTROLLERS:PATH
  for (std::string line; std::getline(lines, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const int version = controllers == ",," ? 2 : 1;
    if (version == 1 && controllers.find("," + controller + ",") == controllers.npos) continue;
    found.push_back({root / "sys/fs/cgroup" / (version == 1 ? controller : ""), version});
    // In a container the path may be that of the host, and only the top be there.
    for (const auto& name : std::filesystem::path(line.substr(second + 1)).relative_path())
      found.push_back({found.back().folder / name, version});
  }
  return found;
}

}  // namespace lamina::detail
