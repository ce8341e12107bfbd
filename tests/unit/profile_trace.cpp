// Traces: that they say what was recorded, in a form that Perfetto reads, and that they are whole
// whenever somebody looks.
#include "catch.hpp"
#include "profile_folder.hpp"
#include "profile_made.hpp"

#include <lamina/profile/report.hpp>
#include <lamina/profile/trace.hpp>

#include <nlohmann/json.hpp>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cmath>
#include <map>
#include <random>
#include <set>

using namespace lamina;
using namespace lamina::test;
using Json = nlohmann::json;

namespace {

/// The events of a file, which must be JSON without a flaw.
std::vector<Json> events(const std::string& path, const char* phase) {
  const Json j = Json::parse(content(path));
  CHECK(j.size() == 2);
  CHECK(j.at("displayTimeUnit") == "ms");
  std::vector<Json> found;
  for (const Json& e : j.at("traceEvents"))
    if (e.at("ph") == phase) found.push_back(e);
  return found;
}

long long nanoseconds(const Json& microseconds) {
  return std::llround(microseconds.get<double>() * 1e3);
}

/// As Perfetto asks: on a line, an event lies within the one before it, or comes after it.
void check_nesting(const std::vector<Json>& found) {
  std::map<std::pair<int, int>, std::vector<long long>> open;  // ends, by process and line
  std::map<std::pair<int, int>, long long> last;
  for (const Json& e : found) {
    const std::pair<int, int> line{e.at("pid"), e.at("tid")};
    const long long begin = nanoseconds(e.at("ts")), end = begin + nanoseconds(e.at("dur"));
    CHECK(begin >= last[line]);
    CHECK(end >= begin);
    last[line] = begin;
    auto& ends = open[line];
    while (!ends.empty() && ends.back() <= begin) ends.pop_back();
    if (!ends.empty()) CHECK(end <= ends.back());
    ends.push_back(end);
  }
}

const std::vector<std::string> layers = {"input", "conv1", "relu1"};

/// `count` spans one after the other, from `begin` on.
std::vector<Span> made_spans(double begin, int count) {
  std::vector<Span> spans;
  for (int i = 0; i < count; ++i)
    spans.push_back({i % 3, Pass(i % pass_count), Lane(i % 3), "a kernel with a name",
                     begin + 1e-6 * i, begin + 1e-6 * (i + 1), 64.0 * i});
  return spans;
}

/// Steps 0, 1, 2, ... with that many spans each; returns how many.
int whole_steps(const std::string& path, std::size_t spans) {
  const auto marks = events(path, "i");
  for (std::size_t i = 0; i < marks.size(); ++i) CHECK(marks[i].at("name") == text("step ", i));
  CHECK(events(path, "X").size() == marks.size() * spans);
  return int(marks.size());
}

/// Runs `child` in a process of its own, kills it after `microseconds` (if not 0), and returns what
/// wait() says.
template <class F>
int in_child(F&& child, unsigned microseconds) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    try {
      child();
    } catch (...) {
      ::_exit(99);
    }
    ::_exit(0);
  }
  REQUIRE(pid > 0);
  if (microseconds > 0) ::usleep(microseconds), ::kill(pid, SIGKILL);
  int status = 0;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  return status;
}

}  // namespace

TEST_CASE("the trace of a profile has every span, on the lane of its rank") {
  const Folder folder;
  Profile p = made_profile(2);
  p.timeline[1][0].begin = 1.23456789;  // to the nanosecond
  p.timeline[1][0].end = 1.3;
  write_trace(folder / "t.json", p);
  const auto found = events(folder / "t.json", "X");
  CHECK(found.size() == p.timeline[0].size() + p.timeline[1].size());
  const char* lanes[] = {"kernels", "communication", "waiting"};

  std::map<std::pair<int, int>, std::string> lane;
  std::map<int, std::string> process;
  std::map<std::string, std::set<int>> order;
  for (const Json& e : events(folder / "t.json", "M")) {
    const std::pair<int, int> line{e.at("pid"), e.at("tid")};
    CHECK(line.second > 0);
    if (e.at("name") == "thread_name") lane[line] = e.at("args").at("name");
    if (e.at("name") == "process_name") process[line.first] = e.at("args").at("name");
    if (e.at("name") == "thread_sort_index")
      order[text(line.first)].insert(e.at("args").at("sort_index").get<int>());
  }
  CHECK(process == std::map<int, std::string>{{0, "rank 0 (host0, 2 threads)"},
                                              {1, "rank 1 (host1, 2 threads)"}});
  CHECK(lane.size() == 6);
  CHECK(order["0"].size() == 3);

  std::multiset<std::string> expected, got;
  for (std::size_t r = 0; r < 2; ++r)
    for (const TimelineSpan& s : p.timeline[r])
      expected.insert(text(r, ' ', lanes[int(s.lane)], ' ',
                           s.layer < 0 ? outside_layers : p.layers[std::size_t(s.layer)], ' ',
                           name(s.pass), ' ', s.what, ' ', std::llround(s.begin * 1e9), ' ',
                           std::llround(s.end * 1e9), ' ', s.bytes));
  for (const Json& e : found) {
    const Json& args = e.at("args");
    CHECK(e.at("cat") == args.at("pass"));
    const long long begin = nanoseconds(e.at("ts"));
    got.insert(text(e.at("pid").get<int>(), ' ', lane[{e.at("pid"), e.at("tid")}], ' ',
                    e.at("name").get<std::string>(), ' ', args.at("pass").get<std::string>(), ' ',
                    args.at("what").get<std::string>(), ' ', begin, ' ',
                    begin + nanoseconds(e.at("dur")), ' ', args.at("bytes").get<double>()));
  }
  CHECK(got == expected);
}

TEST_CASE("spans within spans nest in the trace, whatever order they come in") {
  const Folder folder;
  Profile p = made_profile();
  const auto span = [](const char* what, double begin, double end) {
    return TimelineSpan{1, Pass::forward, Lane::compute, what, begin, end, 0};
  };
  p.timeline = {{span("last", 4e-6, 6e-6), span("inner", 1e-6, 2e-6), span("outer", 1e-6, 4e-6),
                 span("second", 2e-6, 4e-6), span("short", 2.0006e-6, 2.0022e-6),
                 span("next", 2.0022e-6, 2.0042e-6),
                 span("within a nanosecond", 3.0001e-6, 3.0003e-6),
                 span("before the step", -1e-6, -0.5e-6)}};
  write_trace(folder / "t.json", p);
  const auto found = events(folder / "t.json", "X");
  check_nesting(found);
  std::vector<std::string> order;
  for (const Json& e : found) {
    order.push_back(e.at("args").at("what"));
    CHECK(e.at("ts") >= 0);
  }
  CHECK(order == std::vector<std::string>{"before the step", "outer", "inner", "second", "short",
                                          "next", "within a nanosecond", "last"});
  CHECK(nanoseconds(found[1].at("ts")) - nanoseconds(found[0].at("ts")) == 2000);

  write_trace(folder / "made.json", made_profile(2));
  check_nesting(events(folder / "made.json", "X"));
}

TEST_CASE("a trace is JSON whatever the names, and without a timeline") {
  const Folder folder;
  Profile p = made_profile();
  p.layers[1] = "a \"b\" \\ \n\x01\x7f caf\xe9 \xf0\x9f";
  p.hosts[0] = "\"host\"\t\xff";
  p.timeline[0][0].what = std::string("nul \0 \r", 7);
  p.timeline[0][0].bytes = 1e300, p.timeline[0][0].end = 1e300;
  write_trace(folder / "t.json", p);
  CHECK(events(folder / "t.json", "X").size() == p.timeline[0].size());
  CHECK_THAT(content(folder / "t.json"), ContainsSubstring("a \\\"b\\\" \\\\ \\n\\u0001"));
  p.timeline.clear(), p.hosts.clear();
  write_trace(folder / "t.json", p);
  CHECK(events(folder / "t.json", "X").empty());
  CHECK(events(folder / "t.json", "M")[0].at("args").at("name") == "rank 0");

  TraceWriter trace(folder / "live.json", 0, 1, p.layers[1]);
  const std::vector<Span> spans = {{1, {}, {}, "\"\\\n\xff", 1, 2, 0}, {7, {}, {}, "", 2, 2, 0}};
  trace.step(0, 1, spans, p.layers);
  CHECK(events(folder / "live.json", "X")[1].at("name") == outside_layers);
}

TEST_CASE("each of several ranks has a trace of its own") {
  CHECK(trace_path("trace.json", 0, 1) == "trace.json");
  CHECK(trace_path("trace.json", 3, 4) == "trace.3.json");
  CHECK(trace_path("a.b/trace", 1, 2) == "a.b/trace.1");
  CHECK(trace_path("a.b/t.json", 1, 2) == "a.b/t.1.json");
  CHECK(trace_path("a/.trace", 1, 2) == "a/.trace.1");
  CHECK(trace_path(".trace", 1, 2) == ".trace.1");
  const Folder folder;
  const TraceWriter trace(folder / "t.json", 1, 2, "host1");
  CHECK(trace.path() == folder / "t.1.json");
  CHECK(events(folder / "t.1.json", "M")[0].at("args").at("name") == "rank 1 (host1)");
  CHECK(events(folder / "t.1.json", "M")[0].at("pid") == 1);
}

TEST_CASE("the trace of a run grows by the steps that a profiler recorded") {
  const Folder folder;
  const std::string path = folder / "t.json";
  write(path, "what was there before");
  {
    TraceWriter trace(path);
    CHECK(whole_steps(path, 0) == 0);
    Stream stream;
    Profiler profiler;
    stream.record_to(&profiler);
    for (int step = 0; step < 5; ++step) {
      profiler.begin_step();
      for (int i = 0; i < 2; ++i) {
        stream.enter(i + 1, "");
        stream.run(Pass::forward, "outer", [&] { stream.run(Pass::forward, "inner", [] {}); });
      }
      profiler.end_step();
      trace.step(step, profiler.last_begin(), profiler.last_step(), layers);
      CHECK(whole_steps(path, 4) == step + 1);
    }
    const auto found = events(path, "X");
    check_nesting(found);
    CHECK(found[16].at("name") == "conv1");
    CHECK(found[17].at("args").at("what") == "inner");
    CHECK(found[18].at("name") == "relu1");
    // The clock of the run, so that traces of several ranks fit together.
    CHECK(found[16].at("ts").get<double>() ==
          Approx(profiler.last_step()[0].begin * 1e6).epsilon(0).margin(1e-3));
    CHECK(events(path, "i")[4].at("ts") <= found[16].at("ts"));
  }
  CHECK(whole_steps(path, 4) == 5);
  CHECK(folder.files() == 1);
}

TEST_CASE("the trace of a run is whole at any moment at which the run is killed") {
  const Folder folder;
  const std::string path = folder / "t.json";
  std::mt19937 random(7);
  int steps = 0;
  for (int i = 0; i < 20; ++i) {
    std::filesystem::remove(path);
    const int status = in_child(
        [&] {
          TraceWriter trace(path);
          for (int step = 0; step < 100000; ++step)  // 60 kB each
            trace.step(step, step, made_spans(step, 400), layers);
        },
        1000 + random() % 10000);
    CHECK(WIFSIGNALED(status));
    // It may have had no time to begin.
    if (std::filesystem::exists(path)) steps += whole_steps(path, 400);
  }
  CHECK(steps > 0);
  {
    TraceWriter trace(path);  // over what the last one left behind
    trace.step(0, 0, made_spans(0, 3), layers);
  }
  CHECK(whole_steps(path, 3) == 1);
  CHECK(folder.files() == 1);
}

TEST_CASE("a full disk leaves the steps that fitted, and the trace goes on when there is room") {
  const Folder folder;
  const std::string path = folder / "t.json";
  const int status = in_child(
      [&] {
        TraceWriter trace(path);
        trace.step(0, 0, made_spans(0, 10), layers);
        trace.step(1, 1, made_spans(1, 10), layers);
        ::signal(SIGXFSZ, SIG_IGN);
        rlimit limit = {};
        ::getrlimit(RLIMIT_FSIZE, &limit);
        limit.rlim_cur = std::filesystem::file_size(path) + 2000;
        ::setrlimit(RLIMIT_FSIZE, &limit);
        for (int i = 0; i < 2; ++i) {
          std::string said;
          try {
            trace.step(99, 2, made_spans(2, 100), layers);
          } catch (const Error& e) {
            said = e.what();
          }
          if (said.rfind(path + ": cannot write: ", 0) != 0) ::_exit(2);
          if (Json::parse(content(path)).at("traceEvents").size() != 8 + 2 * 11) ::_exit(3);
        }
        limit.rlim_cur = limit.rlim_max;
        ::setrlimit(RLIMIT_FSIZE, &limit);
        for (int step = 2; step < 4; ++step) {
          trace.step(step, step, made_spans(step, 10), layers);
          if (whole_steps(path, 10) != step + 1) ::_exit(4);
        }
      },
      0);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(whole_steps(path, 10) == 4);
  CHECK(folder.files() == 1);
}

TEST_CASE("a trace that cannot be made is one clear error") {
  const Folder folder;
  const std::string here = folder.path, missing = folder / "no/where.json";
  CHECK_THROWS_WITH(TraceWriter(here), ContainsSubstring(here + ": expected a regular file"));
  CHECK_THROWS_WITH(TraceWriter("/dev/null"), ContainsSubstring("/dev/null: expected a regular"));
  CHECK_THROWS_WITH(TraceWriter(missing), ContainsSubstring(missing + ": cannot create: No such"));
  CHECK_THROWS_WITH(TraceWriter(""), ContainsSubstring("file name"));
  CHECK(folder.files() == 0);
}

TEST_CASE("a trace that somebody took away or replaced comes back with all of its steps") {
  const Folder folder;
  const std::string path = folder / "t.json";
  TraceWriter trace(path);
  trace.step(0, 0, made_spans(0, 10), layers);
  std::filesystem::remove(path);
  trace.step(1, 1, made_spans(1, 10), layers);
  CHECK(whole_steps(path, 10) == 2);
  std::filesystem::remove(path);
  write(path, "foreign");
  trace.step(2, 2, made_spans(2, 10), layers);
  CHECK(whole_steps(path, 10) == 3);
  std::filesystem::remove(path);
  std::filesystem::create_directories(path);
  CHECK_THROWS_WITH(trace.step(99, 3, made_spans(3, 20), layers),
                    ContainsSubstring(path + ": cannot replace: "));
  std::filesystem::remove(path);
  for (int step = 3; step < 5; ++step) {
    trace.step(step, step, made_spans(step, 10), layers);
    CHECK(whole_steps(path, 10) == step + 1);
  }
}
