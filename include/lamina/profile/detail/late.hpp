// Late: how long ranks waited for one that had not come, and how long while bytes moved.
#pragma once

#include <lamina/base/clock.hpp>
#include <lamina/comm/communicator.hpp>
#include <lamina/profile/profiler.hpp>

#include <string>
#include <vector>

namespace lamina::detail {

/// What another rank's clock is ahead of this one's, give or take `error`.
struct ClockOffset {
  double seconds = 0, error = 0;
};

/// Which clock now() reads, in words: processes with the same one have the same time. `boot_id` is
/// a file that names the host's start, containers included; without it, the host's name must do.
std::string clock_name(const char* boot_id = "/proc/sys/kernel/random/boot_id");

/// Of each rank's clock. Zero where it is this rank's own; others are compared with by some
/// all-gathers, which nobody leaves before all have come. Collective.
std::vector<ClockOffset> clock_offsets(const Communicator& ranks, double (*clock)() = now,
                                       const std::string& name = clock_name());

/// When all ranks that a collective needed had come to it, for each run of rank `me`, on its clock
/// and within the run. A halo needs its peers, a broadcast its root, others the whole group. The
/// nth run of a group in a step is the same collective on all ranks; where they count differently,
/// and where a group is not known, nobody is taken to be late.
std::vector<double> all_had_come(const std::vector<std::vector<Profiler::Run>>& runs_by_rank,
                                 std::size_t me, const std::vector<ClockOffset>& offsets);

}  // namespace lamina::detail
