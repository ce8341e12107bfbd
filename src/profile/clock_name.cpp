// Which clock a process reads, as Linux names it.
#include <lamina/base/host.hpp>
#include <lamina/base/text.hpp>
#include <lamina/profile/detail/late.hpp>

#include <unistd.h>

#include <fstream>

namespace lamina::detail {

std::string clock_name(const char* boot_id) {
  std::string boot;
  if (!(std::ifstream(boot_id) >> boot)) boot = host_name();
  char space[64] = "";  // a container may have a time of its own
  if (const ssize_t n = readlink("/proc/self/ns/time", space, sizeof space - 1); n > 0)
    space[n] = 0;
  return text(boot, ' ', space);
}

}  // namespace lamina::detail
