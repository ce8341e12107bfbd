// Counters: with the events of the kernel's own that every Linux machine has, since few test
// machines have those of the processor; controllers as made-up trees describe them.
#include "catch.hpp"
#include "profile/perf_events.hpp"
#include "support/allocations.hpp"

#include <lamina/base/text.hpp>

#include <filesystem>
#include <fstream>

using namespace lamina;
using detail::NodeEvent;
using detail::PerfEvent;
using detail::PerfEvents;

TEST_CASE("the difference of two readings, and sums of them") {
  Counts begin, end;
  begin.cycles = 10, begin.misses = 3, begin.instructions = 7;
  end.cycles = 25, end.misses = 3, end.dram_bytes = 4;
  Counts d = end - begin;
  CHECK(d.cycles == 15);
  CHECK(d.misses == 0);
  CHECK(d.instructions == -1);  // only one of the two readings has it
  CHECK(d.dram_bytes == -1);
  Counts more;
  more.cycles = 1, more.dram_bytes = 2;
  d += more;
  CHECK(d.cycles == 16);
  CHECK(d.misses == -1);
  CHECK(d.dram_bytes == -1);
}

TEST_CASE("what shared its counter is scaled up to the whole time") {
  CHECK(detail::scaled(10, 300, 100) == 30);
  CHECK(detail::scaled(10, 100, 100) == 10);
  CHECK(detail::scaled(0, 0, 0) == 0);     // the thread slept
  CHECK(detail::scaled(0, 100, 0) == -1);  // it ran, but nobody counted
  CHECK(detail::scaled(1ull << 60, 1ull << 62, 1ull << 61) == double(1ull << 61));
}

namespace {

/// A folder that stands for /sys/bus/event_source/devices.
struct Devices {
  std::filesystem::path root = std::filesystem::temp_directory_path() /
                               text("lamina_counters_", reinterpret_cast<std::uintptr_t>(this));
  Devices() { std::filesystem::create_directories(root); }
  Devices(const Devices&) = delete;
  ~Devices() { std::filesystem::remove_all(root); }

  void write(const std::string& file, const std::string& line) const {
    std::filesystem::create_directories((root / file).parent_path());
    std::ofstream(root / file) << line << '\n';
  }
  /// A memory controller of an Intel server with this type.
  void intel(const std::string& name, int type, const std::string& cpus) const {
    write(name + "/type", text(type));
    write(name + "/cpumask", cpus);
    write(name + "/format/event", "config:0-7");
    write(name + "/format/umask", "config:8-15");
    write(name + "/format/edge", "config:18");
    for (const char* way : {"read", "write"}) {
      const std::string event = text(name, "/events/cas_count_", way);
      write(event, text("event=0x04,umask=", *way == 'r' ? "0x03" : "0x0c"));
      write(event + ".scale", "6.103515625e-5");
      write(event + ".unit", "MiB");
    }
  }
  std::vector<NodeEvent> dram() const { return detail::hardware_events(root.string()).dram; }
};

}  // namespace

TEST_CASE("controllers of Intel servers: every channel, reads and writes, once per socket") {
  const Devices devices;
  devices.intel("uncore_imc_0", 13, "0,24-25");
  devices.intel("uncore_imc_1", 14, "0,24-25");
  devices.write("uncore_imc_0/events/clockticks", "event=0x00");
  devices.intel("uncore_imc_free_running_0", 20, "0");  // the same bytes a second time
  for (const char* file : {"read", "read.scale", "read.unit", "write", "write.scale", "write.unit"})
    std::filesystem::rename(
        devices.root / "uncore_imc_free_running_0/events" / text("cas_count_", file),
        devices.root / "uncore_imc_free_running_0/events" / text("data_", file));
  devices.intel("uncore_cha_0", 30, "0");  // no memory controller

  const auto dram = devices.dram();
  REQUIRE(dram.size() == 4);
  CHECK(dram[0].event == PerfEvent{13, {0x0304}});
  CHECK(dram[1].event == PerfEvent{13, {0x0c04}});
  CHECK(dram[2].event == PerfEvent{14, {0x0304}});
  CHECK(dram[3].event == PerfEvent{14, {0x0c04}});
  for (const NodeEvent& e : dram) {
    CHECK(e.bytes == 64);  // 6.1e-5 MiB
    CHECK(e.cpus == std::vector{0, 24, 25});
  }
}

TEST_CASE("controllers of other makes") {
  const Devices desktop;
  desktop.write("uncore_imc/type", "11");
  desktop.write("uncore_imc/cpumask", "0");
  desktop.write("uncore_imc/format/event", "config:0-7");
  desktop.write("uncore_imc/events/data_reads", "event=0x01");
  desktop.write("uncore_imc/events/data_reads.scale", "0.5");
  desktop.write("uncore_imc/events/data_reads.unit", "KiB");
  REQUIRE(desktop.dram().size() == 1);
  CHECK(desktop.dram()[0].event == PerfEvent{11, {1}});
  CHECK(desktop.dram()[0].bytes == 512);

  const Devices amd;
  amd.write("amd_umc_3/type", "17");
  amd.write("amd_umc_3/cpumask", "0");
  amd.write("amd_umc_3/format/event", "config:0-7");
  amd.write("amd_umc_3/format/rdwrmask", "config:8-9");
  REQUIRE(amd.dram().size() == 1);
  CHECK(amd.dram()[0].event == PerfEvent{17, {0x0a}});
  CHECK(amd.dram()[0].bytes == 64);
}

TEST_CASE("the terms of an event go to the bits that its formats name") {
  const Devices devices;
  const auto event = [&](const std::string& terms) {
    devices.write("uncore_imc/events/cas_count_read", terms);
    return devices.dram();
  };
  devices.write("uncore_imc/type", "9");
  devices.write("uncore_imc/cpumask", "0");
  devices.write("uncore_imc/format/event", "config:0-3,32-35");
  devices.write("uncore_imc/format/edge", "config:18");
  devices.write("uncore_imc/format/filter", "config1:4-63");
  devices.write("uncore_imc/format/more", "config2:0-63");
  REQUIRE(event("event=0xa5,edge,filter=3,more=0xffffffffffffffff").size() == 1);
  const PerfEvent parsed = event("event=0xa5,edge,filter=3,more=0xffffffffffffffff")[0].event;
  CHECK(parsed.config[0] == ((0xaull << 32) | (1 << 18) | 5));
  CHECK(parsed.config[1] == 0x30);
  CHECK(parsed.config[2] == ~0ull);
  CHECK(event("event=0x04")[0].bytes == 64);  // neither scale nor unit: lines
  CHECK(event("event=16")[0].event.config[0] == 1ull << 32);

  for (const char* nonsense : {"", "event=0x", "event=1x", "event=0x100", "other=1", "=1",
                               "event=1,,edge", "edge=2", "event=-1"}) {
    INFO(nonsense);
    CHECK(event(nonsense).empty());
  }
  REQUIRE(event("event=1").size() == 1);
  const auto spoilt = [&](const char* file, const char* line) {
    const Devices fresh;
    fresh.intel("uncore_imc_0", 13, "0");
    REQUIRE(fresh.dram().size() == 2);
    fresh.write(text("uncore_imc_0/", file), line);
    return fresh.dram().size();
  };
  CHECK(spoilt("type", "none") == 0);
  CHECK(spoilt("cpumask", "") == 0);
  CHECK(spoilt("cpumask", "3-1") == 0);
  CHECK(spoilt("cpumask", "a") == 0);
  CHECK(spoilt("format/event", "config9:0-7") == 0);
  CHECK(spoilt("format/event", "config:") == 0);
  CHECK(spoilt("format/event", "config:60-70") == 0);
  CHECK(spoilt("events/cas_count_read.unit", "furlongs") == 1);
  CHECK(spoilt("events/cas_count_read.scale", "much") == 1);
}

TEST_CASE("no controllers where there is no such folder") {
  CHECK(detail::hardware_events("/nowhere").dram.empty());
  CHECK(detail::hardware_events("/nowhere").thread[0].has_value());
}

#ifdef __linux__

#include <linux/perf_event.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <ctime>
#include <thread>

namespace {

constexpr PerfEvent clock_event{PERF_TYPE_SOFTWARE, {PERF_COUNT_SW_TASK_CLOCK}};  // ns
constexpr PerfEvent faults{PERF_TYPE_SOFTWARE, {PERF_COUNT_SW_PAGE_FAULTS}};
constexpr PerfEvent impossible{PERF_TYPE_SOFTWARE, {9999}};

/// Whether the faults are those of touch() and few others: a sanitizer's shadow memory has its own.
bool few_other_faults() { return test::counts_allocations(); }

/// Each page of its own faults once.
void touch(std::size_t pages) {
  const auto page = std::size_t(sysconf(_SC_PAGESIZE));
  void* memory =
      mmap(nullptr, pages * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  madvise(memory, pages * page, MADV_NOHUGEPAGE);
  for (std::size_t i = 0; i < pages; ++i) static_cast<volatile char*>(memory)[i * page] = 1;
  munmap(memory, pages * page);
}

double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

/// Computes for that much time of this thread.
void spin(double seconds) {
  const double begin = thread_seconds();
  while (thread_seconds() < begin + seconds) {
  }
}

/// Threads that wait until told, then each do some work.
class Threads {
 public:
  template <class Work>
  Threads(int count, Work work) {
    for (int i = 0; i < count; ++i)
      threads_.emplace_back([this, work, i] {
        ++ready_;
        while (!go_) std::this_thread::yield();
        work(i);
        ++done_;
        while (!leave_) std::this_thread::yield();
      });
    while (ready_ < count) std::this_thread::yield();
  }
  /// Returns when all are done; they live on.
  void go() {
    go_ = true;
    while (done_ < int(threads_.size())) std::this_thread::yield();
  }
  void join() {
    go_ = leave_ = true;
    for (std::thread& t : threads_)
      if (t.joinable()) t.join();
  }
  ~Threads() { join(); }

 private:
  std::atomic<int> ready_{0}, done_{0};
  std::atomic<bool> go_{false}, leave_{false};
  std::vector<std::thread> threads_;
};

/// What is written to standard output and error meanwhile.
template <class F>
std::string printed(F&& f) {
  std::FILE* file = std::tmpfile();
  const int out = dup(1), err = dup(2);
  std::fflush(nullptr);
  dup2(fileno(file), 1), dup2(fileno(file), 2);
  f();
  std::fflush(nullptr);
  dup2(out, 1), dup2(err, 2);
  close(out), close(err);
  std::rewind(file);
  std::string text;
  for (int c; (c = std::fgetc(file)) != EOF;) text += char(c);
  std::fclose(file);
  return text;
}

std::size_t open_files() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& f : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

/// Counters of software events in the places of hardware ones; null, and a remark, where the
/// kernel's settings forbid even these.
std::unique_ptr<Counters> open(const PerfEvents& events) {
  std::string why;
  auto counters = detail::open_counters(events, &why);
  if (!counters) WARN("skipped: " << why);
  return counters;
}

}  // namespace

TEST_CASE("counters sum over all threads that there are, and grow with their work") {
  // Pages of the threads: one that is left out, or counted twice, is missed.
  constexpr std::size_t pages[] = {300, 500, 900};
  Threads threads(3, [&](int i) {
    touch(pages[i]);
    spin(0.01 * (i + 1));
  });
  const auto counters = open({{clock_event, faults, {}}, {}});
  if (!counters) return;
  const Counts begin = counters->read();
  CHECK(begin.misses == -1);
  CHECK(begin.dram_bytes == -1);
  threads.go();
  touch(200);
  const Counts work = counters->read() - begin;
  CHECK(work.instructions > 1850);  // 1900, give or take what the system does meanwhile
  if (few_other_faults()) CHECK(work.instructions < 2100);
  CHECK(work.cycles > 0.03e9);
  CHECK(work.misses == -1);

  const Counts before = counters->read();
  std::thread([] { touch(2000); }).join();  // began after the counters
  const Counts later = counters->read() - before;
  CHECK(later.instructions >= 0);
  if (few_other_faults()) CHECK(later.instructions < 1000);

  threads.join();  // the work of threads that have ended stays
  CHECK((counters->read() - begin).instructions > 1850);
}

TEST_CASE("events keep their places where the machine lacks others") {
  const auto counters = open({{impossible, clock_event, faults}, {}});
  if (!counters) return;
  const Counts begin = counters->read();
  touch(700);
  spin(0.02);
  const Counts work = counters->read() - begin;
  CHECK(work.cycles == -1);
  CHECK(work.instructions > 0.01e9);  // the clock
  CHECK(work.misses > 650);
  if (few_other_faults()) CHECK(work.misses < 900);
}

TEST_CASE("bytes of the node are counts times the bytes of each, over its processors") {
  const PerfEvent clock{PERF_TYPE_SOFTWARE, {PERF_COUNT_SW_CPU_CLOCK}};  // ns, busy or not
  const int cpu = sched_getcpu();
  const auto once = open({{faults, {}, {}}, {{clock, {cpu}, 2}}});
  const auto twice = open({{faults, {}, {}}, {{clock, {cpu}, 2}, {clock, {cpu, cpu}, 4}}});
  if (!once || !twice) return;
  if (once->read().dram_bytes < 0) {  // needs a privilege: then there is no sum of parts either
    CHECK(twice->read().dram_bytes == -1);
    return;
  }
  // Five times as much, give or take what passes between the readings of the two.
  const Counts outer = twice->read(), begin = once->read(), inner = twice->read();
  spin(0.05);
  const Counts end = twice->read(), one = once->read() - begin, after = twice->read();
  CHECK(one.cycles >= 0);
  CHECK(one.dram_bytes > 2 * 0.025e9);
  CHECK((after - outer).dram_bytes >= 5 * one.dram_bytes);  // (2 + 4 + 4) / 2
  CHECK((end - inner).dram_bytes <= 5 * one.dram_bytes);

  // One controller that cannot be opened: no bytes at all, but what threads count stays.
  const auto part = open({{faults, {}, {}}, {{clock, {cpu}, 2}, {impossible, {cpu}, 2}}});
  REQUIRE(part);
  CHECK(part->read().dram_bytes == -1);
  CHECK(part->read().cycles >= 0);
  const auto node = open({{impossible, {}, {}}, {{clock, {cpu}, 2}}});  // and the other way round
  REQUIRE(node);
  CHECK(node->read().cycles == -1);
  CHECK(node->read().dram_bytes >= 0);
}

TEST_CASE("a machine that counts nothing gives no counters, one reason and no output") {
  std::string why;
  std::unique_ptr<Counters> counters;
  const std::string out = printed([&] {
    counters = detail::open_counters({{impossible, impossible, {}}, {}}, &why);
  });
  CHECK(counters == nullptr);
  CHECK(out.empty());
  CHECK_THAT(why, Catch::Matchers::StartsWith("perf_event_open: "));
  CHECK(why.find('\n') == std::string::npos);
  CHECK(detail::open_counters({{impossible, {}, {}}, {}}, nullptr) == nullptr);
  why.clear();
  CHECK(detail::open_counters({}, &why) == nullptr);
  CHECK_THAT(why, ContainsSubstring("no events"));
}

TEST_CASE("this machine's counters, or the reason why there are none, without noise") {
  std::string why;
  std::unique_ptr<Counters> counters;
  CHECK(printed([&] { counters = open_counters(&why); }).empty());
  CHECK(bool(counters) == why.empty());
  if (!counters) {
    CHECK(open_counters() == nullptr);
    return;
  }
  const Counts begin = counters->read();
  spin(0.02);
  const Counts work = counters->read() - begin;
  CHECK((begin.cycles < 0 || work.cycles > 1e5));
  CHECK((begin.instructions < 0 || work.instructions > 1e5));
}

TEST_CASE("without room for every thread's counters there are none, and nothing stays open") {
  Threads threads(8, [](int) {});
  if (!open({{faults, {}, {}}, {}})) return;
  const std::size_t before = open_files();
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  rlimit low = limit;
  low.rlim_cur = before + 5;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &low) == 0);
  std::string why;
  const bool none = detail::open_counters({{faults, clock_event, {}}, {}}, &why) == nullptr;
  setrlimit(RLIMIT_NOFILE, &limit);
  CHECK(none);
  CHECK_THAT(why, ContainsSubstring("open files"));
  CHECK(open_files() == before);
  { CHECK(open({{faults, clock_event, {}}, {}})); }
  CHECK(open_files() == before);
}

TEST_CASE("reading the counters allocates nothing") {
  if (!test::counts_allocations()) return;
  const auto counters = open({{clock_event, faults, {}}, {}});
  if (!counters) return;
  Counts last;
  const test::Allocations allocations;
  for (int i = 0; i < 10; ++i) last = counters->read();
  const std::size_t count = allocations.count();
  CHECK(count == 0);
  CHECK(last.cycles > 0);
}

#endif
