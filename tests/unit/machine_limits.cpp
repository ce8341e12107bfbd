// How much of the host's memory and processors there is, as files say that a test writes.
#include "../../src/cpu/memory.hpp"
#include "../../src/cpu/processors.hpp"
#include "catch.hpp"
#include "profile_folder.hpp"

#include <lamina/tensor/memory_space.hpp>

using namespace lamina;

namespace {

constexpr std::size_t kib = 1024, mib = 1024 * kib;

/// The root of a file system.
struct Root : test::Folder {
  explicit Root(const std::string& groups) {
    put("proc/meminfo", text("MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable:  ", 800 * kib,
                             " kB\nBuffers: 3 kB\n"));
    put("proc/self/cgroup", groups);
  }
  void put(const std::string& file, const std::string& content) const {
    std::filesystem::create_directories((path / file).parent_path());
    test::write(*this / file, content + "\n");
  }
  std::size_t available() const { return detail::available_memory_under(path); }
  double quota() const { return detail::processor_quota(path); }
};

}  // namespace

TEST_CASE("memory: without control groups what the machine has") {
  CHECK(Root("").available() == 800 * mib);
  CHECK(Root("0::/").available() == 800 * mib);
  CHECK(Root("4:cpu,cpuacct:/a\n1:name=systemd:/b\nnonsense").available() == 800 * mib);
}

TEST_CASE("memory: a control group leaves what it has not taken, files apart") {
  const Root root("0::/job/step");
  root.put("sys/fs/cgroup/job/step/memory.max", "max");
  root.put("sys/fs/cgroup/job/step/memory.current", text(100 * mib));
  CHECK(root.available() == 800 * mib);
  root.put("sys/fs/cgroup/job/step/memory.max", text(300 * mib));
  CHECK(root.available() == 200 * mib);
  root.put("sys/fs/cgroup/job/step/memory.stat",
           text("anon 7\ninactive_file ", 20 * mib, "\nactive_file ", 10 * mib,
                "\ntotal_inactive_file ", 40 * mib));
  CHECK(root.available() == 230 * mib);
  root.put("sys/fs/cgroup/job/memory.max", text(200 * mib));  // of what it is part of
  root.put("sys/fs/cgroup/job/memory.current", text(150 * mib));
  CHECK(root.available() == 50 * mib);
  root.put("sys/fs/cgroup/job/memory.current", text(250 * mib));
  CHECK(root.available() == 0);
}

TEST_CASE("memory: the first version of control groups counts, too") {
  const Root root("5:cpu,memory:/job\n0::/");
  const std::string unlimited = "9223372036854771712";
  root.put("sys/fs/cgroup/memory/memory.limit_in_bytes", unlimited);
  root.put("sys/fs/cgroup/memory/memory.usage_in_bytes", text(500 * mib));
  CHECK(root.available() == 800 * mib);
  root.put("sys/fs/cgroup/memory/job/memory.limit_in_bytes", text(400 * mib));
  root.put("sys/fs/cgroup/memory/job/memory.usage_in_bytes", text(150 * mib));
  root.put("sys/fs/cgroup/memory/job/memory.stat",
           text("inactive_file 5\ntotal_inactive_file ", 30 * mib, "\ntotal_active_file ", mib));
  CHECK(root.available() == 281 * mib);
}

TEST_CASE("memory: in a container the path is that of the host, and the limit at the top") {
  const Root root("4:memory:/docker/123abc");
  root.put("sys/fs/cgroup/memory/memory.limit_in_bytes", text(400 * mib));
  root.put("sys/fs/cgroup/memory/memory.usage_in_bytes", text(100 * mib));
  CHECK(root.available() == 300 * mib);
}

TEST_CASE("memory: there is some here", "[host]") {
  CHECK(available_memory() > 0);
  CHECK(double(available_memory()) < 1e17);
  CHECK(double(host_memory().free_bytes()) < 1e17);
  CHECK(host_memory().free_bytes() > 0);
}

TEST_CASE("quota: without control groups, or with none that have a limit, there is none") {
  CHECK(Root("").quota() == CPU_SETSIZE);
  const Root root("0::/job");
  CHECK(root.quota() == CPU_SETSIZE);
  root.put("sys/fs/cgroup/job/cpu.max", "max 100000");
  CHECK(root.quota() == CPU_SETSIZE);
  root.put("sys/fs/cgroup/cpu.max", "nonsense");
  CHECK(root.quota() == CPU_SETSIZE);
  root.put("sys/fs/cgroup/job/cpu.max", "17592186044415 1000");  // more than any host has
  CHECK(root.quota() == CPU_SETSIZE);
  CHECK(Root("0::/../../elsewhere").quota() == CPU_SETSIZE);
}

TEST_CASE("quota: the least of a control group and of those above it counts") {
  const Root root("0::/job/step");
  root.put("sys/fs/cgroup/job/step/cpu.max", "250000 100000");
  CHECK(root.quota() == 2.5);
  root.put("sys/fs/cgroup/job/cpu.max", "50000 100000");
  CHECK(root.quota() == 0.5);
  root.put("sys/fs/cgroup/cpu.max", "30000 10000");
  CHECK(root.quota() == 0.5);
  root.put("sys/fs/cgroup/job/cpu.max", "max 100000");
  CHECK(root.quota() == 2.5);
}

TEST_CASE("quota: the first version of control groups counts, too, also beside the second") {
  const Root root("5:cpu,cpuacct:/docker/123abc\n3:cpuset:/\n0::/");
  root.put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1");
  root.put("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  CHECK(root.quota() == CPU_SETSIZE);
  root.put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000");  // in a container, at the top
  CHECK(root.quota() == 1.5);
  root.put("sys/fs/cgroup/cpuset/cpu.cfs_quota_us", "1");
  root.put("sys/fs/cgroup/cpuset/cpu.cfs_period_us", "1");
  CHECK(root.quota() == 1.5);
}
