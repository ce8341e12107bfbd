// Profiles as files: JSON both ways, CSV, and what happens to files that are wrong.
#include "catch.hpp"
#include "profile_folder.hpp"
#include "profile_made.hpp"
#include "profile_same.hpp"

#include <lamina/profile/report.hpp>
#include <lamina/profile/roofline.hpp>

#include <nlohmann/json.hpp>

#include <random>
#include <sstream>

using namespace lamina;
using namespace lamina::test;
using Json = nlohmann::ordered_json;

namespace {

/// Reads and says what was wrong with it.
std::string error(const std::string& path) {
  try {
    read_profile_json(path);
  } catch (const Error& e) {
    return e.what();
  }
  return "none";
}

/// No member is what it is by default, wherever members() knows them.
Profile full_profile() {
  Profile p = made_profile_on_machine(2);
  p.version = "9.8.7", p.overhead = -0.0125;
  p.machine->nodes = 2;
  p.machine->comm[0].stride = 4, p.machine->missing = 3;
  p.machine->comm[0].disturbed = p.machine->compute[0].disturbed = true;
  p.machine->memory[3].disturbed = true;
  p.clock_error = 2e-6, p.processor.time.slowest = 1;
  ProfileRow& r = p.rows[1];
  r.fused_into = "bn1", r.work.padding = 17;
  r.time.mean = 1.0 / 3;  // no decimal number
  r.exposed.min = 1e-9, r.exposed.slowest = 1;
  r.alone.min = 5e-324;  // the smallest there is
  r.predicted = 0.25, r.step_std = 1e-9, r.step_total_std = 2e-9;
  r.wire_bytes = 12345;
  r.counts = {1e9, 2e9, 3e6, 4e12};
  r.kernels[0] = {"all_reduce", Lane::communication, 1, 900e-6, 9408 * 4};
  p.step_spread = {1e-3, 2e-4, 1.0 / 7, 0, 3e-5};
  p.end_to_end.slowest = p.sum_layers.slowest = p.clean.slowest = 1;
  p.plan = PlannedStep{"two nodes", 1.0 / 3, {{"auto", 0.1, 1.0 / 7}, {"data", 0.2, 0.3}}};
  p.arithmetic = DType::bf16;
  p.over_time = {70, {{20, 1, 2, "lamina resize", 0.1, 1.0 / 3, 4e6, {3, 1}}}};
  p.timeline[1][2].what = "caf\xc3\xa9 \"1\"";
  return p;
}

/// The same with less of what there is much of.
Profile small_profile() {
  Profile p = full_profile();
  p.rows.resize(2), p.machine->comm.resize(2), p.machine->compute.resize(2);
  for (auto& spans : p.timeline) spans.resize(3);
  return p;
}

}  // namespace

TEST_CASE("a profile that is written and read is the same") {
  const Folder folder;
  const Profile p = full_profile();
  REQUIRE(first_default(p) == -1);
  REQUIRE(first_default(p.rows[1]) == -1);
  REQUIRE(first_default(p.rows[1].time) == -1);
  REQUIRE(first_default(p.step_spread) == -1);
  REQUIRE(first_default(*p.rows[1].counts) == -1);
  REQUIRE(first_default(p.rows[1].kernels[0]) == -1);
  REQUIRE(first_default(p.layer_memory[0]) == -1);
  REQUIRE(first_default(p.over_time) == -1);
  REQUIRE(first_default(p.over_time.changes[0]) == -1);
  REQUIRE(first_default(*p.machine) == -1);
  REQUIRE(first_default(p.machine->comm[0]) == 0);  // all_reduce
  write_profile_json(folder / "a.json", p);
  const Profile q = read_profile_json(folder / "a.json");
  REQUIRE(q.rows.size() == p.rows.size());
  for (std::size_t i = 0; i < p.rows.size(); ++i) CHECK((q.rows[i] == p.rows[i]));
  CHECK((q.machine == p.machine));
  CHECK((q.memory == p.memory && q.layer_memory == p.layer_memory));
  CHECK((q.timeline == p.timeline));
  CHECK((q == p));
  write_profile_json(folder / "b.json", q);
  CHECK(content(folder / "a.json") == content(folder / "b.json"));
  CHECK(folder.files() == 2);  // nothing temporary is left
}

TEST_CASE("what was not measured is not in the file, and absent when read") {
  const Folder folder;
  Profile p = made_profile();
  p.hosts.clear(), p.layer_memory.clear(), p.layers.clear(), p.timeline.clear();
  p.rows[0].counts = Counts{.instructions = 7};
  p.rows[1].counts = Counts();  // there were counters, and they counted nothing
  write_profile_json(folder / "p.json", p);
  const Json j = Json::parse(content(folder / "p.json"));
  CHECK_FALSE(j.contains("machine"));
  CHECK_FALSE(j.contains("step_std_s"));
  CHECK_FALSE(j.at("rows")[0].at("step_s").contains("total_std"));
  CHECK(j.at("rows")[0].at("counts") == Json{{"instructions", 7.0}});
  CHECK_FALSE(j.at("rows")[2].contains("counts"));
  CHECK((read_profile_json(folder / "p.json") == p));
}

TEST_CASE("the JSON says what it is") {
  const Folder folder;
  Profile p = made_profile(2);
  p.rows[0].name = "caf\xe9";  // not UTF-8
  write_profile_json(folder / "p.json", p);
  const std::string text = content(folder / "p.json");
  const Json j = Json::parse(text);
  CHECK(j.at("schema") == "lamina-profile");
  CHECK(j.at("version") == 4);
  CHECK(j.at("unaccounted") == Approx(p.unaccounted()));
  CHECK(j.at("rows").size() == p.rows.size());
  CHECK(j.at("rows")[1].at("flop_per_s") == Approx(236.027e6 / 1200.25e-6));
  CHECK(j.at("rows")[3].at("pass") == "forward");
  CHECK(j.at("rows")[0].at("output") == Json{32, 64, 112, 112});
  CHECK(j.at("timeline").at("what") == Json{"kernel", "all_reduce", "load"});
  CHECK(j.at("timeline").at("ranks")[0][2] ==
        Json{1, 2, 1, 1, p.timeline[0][2].begin, p.timeline[0][2].end, 9408.0 * 4});
  // A line per row, per layer's memory, per rank's timeline: it can be searched and compared.
  for (const char* start : {"\n  {\"index\":", "\n  {\"layer\":", "\n  \"ranks\": ["})
    CHECK_THAT(text, ContainsSubstring(start));
}

TEST_CASE("the CSV has a line of names and a line per row") {
  const Folder folder;
  Profile p = made_profile_on_machine(2);
  p.rows[0].split = "batch:2,channel:2";
  p.rows[0].name = "a \"b\"";
  p.rows[0].predicted = 0.002;
  p.rows[0].counts = Counts{.cycles = 4e9, .misses = 0};
  const auto lines_of = [&] {
    write_profile_csv(folder / "p.csv", p);
    std::istringstream in(content(folder / "p.csv"));
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    REQUIRE(lines.size() == p.rows.size() + 1);
    return lines;
  };
  const auto lines = lines_of();
  CHECK(lines[0] ==
        "layer,type,split,pass,output,time_us,gflop,mbytes,ai,gflops,gbs,roof_gflops,pct_roof,"
        "bound,wasted_us,comm_us,exposed_us,late_us,transfer_us,comm_bytes,wire_bytes,alone_us,"
        "pred_us,algo,ws_mb,describe,min_us,max_us,slowest_rank,imbalance,step_min_us,step_median_"
        "us,step_std_us,"
        "cycles,instructions,llc_misses,dram_bytes,schema");
  // 236 MFLOP at 200 GFLOP/s and 12.9 MB at 20 GB/s take at least 1180 us.
  CHECK(lines[1] ==
        "\"a \"\"b\"\"\",Conv2D,\"batch:2,channel:2\",forward,32x64x112x112,1200.25,0.236027,"
        "12.883,18.3208104,196.648198,10.7335972,200,98.3240991,compute,20.115,0,0,0,0,0,0,,2000,"
        "jit:avx512_core,1.5,64 7x7 s2 p3,600.125,1800.375,1,1.5,1200.25,1200.25,0,4e+09,,0,,"
        "lamina-profile 4");
  const auto columns = [](const std::string& s) { return std::count(s.begin(), s.end(), ','); };
  for (std::size_t i = 2; i < lines.size(); ++i) CHECK(columns(lines[i]) == columns(lines[0]));
  CHECK_THAT(lines[2], ContainsSubstring(",1000,100,60,30,37632,37632,1080.225,,"));
  CHECK_THAT(lines.back(), ContainsSubstring("(trainer),,,forward,,40,0,0,0,0,0,,,overhead,40,"));

  p.machine.reset();
  CHECK_THAT(lines_of()[2], ContainsSubstring(",196.648198,10.7335972,,,,,1000,100,60,30,37632,"));
}

TEST_CASE("a path that cannot be written is one clear error") {
  const Folder folder;
  const Profile p = made_profile();
  const std::string missing = folder / "no/where.json", here = folder.path;
  for (const auto write_profile : {write_profile_json, write_profile_csv, write_trace}) {
    CHECK_THROWS_WITH(write_profile(missing, p), ContainsSubstring(missing + ": not written"));
    CHECK_THROWS_WITH(write_profile(here, p), ContainsSubstring("directory"));
    CHECK_THROWS_WITH(write_profile("", p), ContainsSubstring("file name"));
  }
  CHECK(folder.files() == 0);
  write_profile_csv("/dev/null", p);
  CHECK(std::filesystem::is_character_file("/dev/null"));  // not replaced by a file
  CHECK_THROWS_WITH(write_profile_csv("/dev/full", p), ContainsSubstring("/dev/full"));
}

TEST_CASE("a file that is no profile is one clear error", "[fuzz]") {
  const Folder folder;
  const std::string path = folder / "p.json";
  CHECK_THAT(error(path), ContainsSubstring(path));
  const auto of = [&](const std::string& content) {
    write(path, content);
    const std::string e = error(path);
    CHECK_THAT(e, ContainsSubstring(path + ": "));
    CHECK(e.find('\n') == std::string::npos);
    CHECK(e.size() < path.size() + 320);
    return e;
  };
  CHECK_THAT(of(""), ContainsSubstring("JSON"));
  CHECK_THAT(of("[1, 2"), ContainsSubstring("near byte"));
  CHECK_THAT(of("[1, 2]"), ContainsSubstring("not a profile"));
  CHECK_THAT(of("17"), ContainsSubstring("not a profile"));
  CHECK_THAT(of("{\"a\": 1e999}"), ContainsSubstring("too large"));
  CHECK_THAT(of("{\"a\": NaN}"), ContainsSubstring("near byte 7"));
  CHECK_THAT(of(R"({"schema": "lamina-plan", "version": 1})"), ContainsSubstring("lamina-profile"));
  CHECK_THAT(of(R"({"schema": "lamina-profile"})"), ContainsSubstring("version"));
  for (const char* v : {"1", "2", "3", "5", "\"4\"", "[4]", "-4", "null"})
    CHECK_THAT(of(text(R"({"schema": "lamina-profile", "version": )", v, "}")),
               ContainsSubstring("version: expected 4"));
  CHECK(of(R"({"schema": "lamina-profile", "version": 1, "rows": []})") ==
        path + ": version: expected 4, of the profile schema, got 1");
  CHECK_THAT(of(std::string(100000, '[')), ContainsSubstring("deep"));
  std::string wide = "{";
  for (int i = 0; i < 100; ++i) wide += text('"', i, "\": {},");
  CHECK_THAT(of(wide + "\"a\": 1}"), ContainsSubstring("members"));

  write(path, "");
  std::filesystem::resize_file(path, std::uintmax_t(1) << 40);  // takes no room
  CHECK_THAT(error(path), ContainsSubstring("1099511627776 bytes"));
}

TEST_CASE("a damaged profile is one clear error that names the place", "[fuzz]") {
  const Folder folder;
  const std::string path = folder / "p.json";
  write_profile_json(path, full_profile());
  const Json good = Json::parse(content(path));
  const auto with = [&](const char* pointer, const Json& value) {
    Json bad = good;
    bad[Json::json_pointer(pointer)] = value;
    write(path, bad.dump());
    return error(path);
  };
  const auto says = [&](const std::string& message) { return ContainsSubstring(path + message); };
  CHECK(with("/model", "other") == "none");
  CHECK_THAT(with("/model", 3), says(": model: expected a string, got 3"));
  CHECK_THAT(with("/rows/1/time_s/mean", "long"),
             says(": rows[1].time_s.mean: expected a number of at least -1e-06, got \"long\""));
  CHECK_THAT(with("/rows/1/time_s/mean", nullptr), says(": rows[1].time_s.mean: expected a num"));
  CHECK_THAT(with("/rows/1/time_s", Json{1, 2}), says(": rows[1].time_s: expected an object, got"));
  CHECK_THAT(with("/rows/0/pass", "side\nways"),
             says(": rows[0].pass: expected a known name, got \"side\\nways\""));
  CHECK_THAT(with("/rows/0/output", Json{1, 2, 3}), says(": rows[0].output: expected four"));
  CHECK_THAT(with("/rows/0/output/1", -3), says(": rows[0].output[1]: expected a whole number"));
  CHECK_THAT(with("/rows/0/output/1", 1.5), says(": rows[0].output[1]: expected a whole number"));
  CHECK_THAT(with("/rows/0/index", 4), says(": rows[0].index: expected a whole number from -1 to"));
  CHECK_THAT(with("/rows/0/bytes", -1), says(": rows[0].bytes: expected a number of at least 0"));
  CHECK_THAT(with("/rows/0/ws_bytes", -1), says(": rows[0].ws_bytes: "));
  CHECK_THAT(with("/rows/1/counts/cycles", -1), says(": rows[1].counts.cycles: "));
  CHECK_THAT(with("/rows/0/kernels", Json::object()), says(": rows[0].kernels: expected a list"));
  CHECK_THAT(with("/clean_s/slowest", 2), says(": clean_s.slowest: expected a whole number"));
  CHECK_THAT(with("/layer_memory/2/gradients", -1), says(": layer_memory[2].gradients: "));
  CHECK_THAT(with("/step_std_s/waiting", -1),
             says(": step_std_s.waiting: expected a number of at"));
  CHECK_THAT(with("/step_std_s", 3), says(": step_std_s: expected an object"));
  CHECK_THAT(with("/rows/1/step_s/total_std", -1), says(": rows[1].step_s.total_std: expected"));
  CHECK_THAT(with("/machine/threads", -1), says(": machine.threads: expected a whole number"));
  CHECK_THAT(with("/machine/memory/0/level", 1), says(": machine.memory[0].level: expected a str"));
  CHECK(with("/machine/launch", true) ==
        path + ": machine.launch: expected a number of at least 0, got true");
  CHECK_THAT(with("/ranks", 0), says(": ranks: expected a whole number"));
  CHECK_THAT(with("/ranks", 1e300), says(": ranks: expected a whole number"));
  CHECK_THAT(with("/ranks", std::uint64_t(1) << 63), says(": ranks: expected a whole number"));
  CHECK_THAT(with("/ranks", 3), says(": hosts: expected one element for each of 3 ranks"));
  CHECK_THAT(with("/timeline/ranks", Json{Json::array()}), says(": timeline.ranks: expected one"));
  CHECK(with("/timeline/ranks", Json::array()) == "none");
  const std::string span = "/timeline/ranks/1/2/", place = ": timeline.ranks[1][2]";
  CHECK_THAT(with((span + "0").c_str(), 4), says(place + "[0]: expected a whole number from -1"));
  CHECK_THAT(with((span + "1").c_str(), pass_count),
             says(place + "[1]: expected a whole number from 0"));
  CHECK_THAT(with((span + "2").c_str(), 3), says(place + "[2]: expected a whole number from 0"));
  CHECK_THAT(with((span + "3").c_str(), 99), says(place + "[3]: expected a whole number from 0"));
  CHECK_THAT(with((span + "5").c_str(), -9), says(place + "[5]: expected a number of at least"));
  CHECK_THAT(with((span + "6").c_str(), -9), says(place + "[6]: expected a number of at least"));
  CHECK_THAT(with("/timeline/ranks/1/2", Json{1, 2}), says(place + ": expected seven numbers"));

  CHECK_THAT(with("/plan/predicted_s", -1),
             says(": plan.predicted_s: expected a number of at least"));
  CHECK_THAT(with("/plan/timed/1/median_s", "x"),
             says(": plan.timed[1].median_s: expected a number"));
  CHECK_THAT(with("/plan/timed", 1), says(": plan.timed: expected a list, got 1"));

  for (const auto& [key, value] : good.items()) {
    Json bad = good;
    bad.erase(key);
    write(path, bad.dump());
    const bool dispensable = key == "byte_model" || key == "unaccounted" || key == "machine" ||
                             key == "step_std_s" || key == "plan" || key == "arithmetic" ||
                             key == "ranks_over_time";  // which older files lack
    CAPTURE(key);
    CHECK((error(path) == "none") == dispensable);
  }
}

TEST_CASE("damaged profiles are read or refused, whatever the damage", "[fuzz]") {
  const Folder folder;
  const std::string path = folder / "p.json";
  write_profile_json(path, small_profile());
  const std::string whole = content(path);
  const auto read = [&] {
    const std::string e = error(path);
    if (e == "none") {
      write_profile_json(path, read_profile_json(path));
      return error(path) == "none";
    }
    return e.rfind(path + ": ", 0) == 0 && e.find('\n') == std::string::npos;
  };

  SECTION("cut off at any byte") {
    for (std::size_t n = whole.size() - 1; n-- > 0;) {
      std::filesystem::resize_file(path, n);
      if (error(path).rfind(path + ": not valid JSON", 0) != 0) FAIL("cut off at byte " << n);
    }
  }
  SECTION("any value replaced") {
    const Json values[] = {nullptr,       true,          "", -1, 0.5, 1e300, -1e300, 7e18, 99,
                           Json::array(), Json::object()};
    const Json flat = Json::parse(whole).flatten();
    for (const auto& [pointer, old] : flat.items())
      for (const Json& value : values) {
        Json bad = Json::parse(whole);
        bad[Json::json_pointer(pointer)] = value;
        write(path, bad.dump());
        if (!read()) FAIL(pointer << " is " << value << ": " << error(path));
      }
  }
  SECTION("any bytes replaced") {
    std::mt19937 random(1);
    const std::string likely = "0123456789-+.eE[]{}:,\"\\ntrufalse \x01\x80\xff";
    for (int i = 0; i < 3000; ++i) {
      std::string bad = whole;
      for (unsigned n = random() % 3 + 1; n > 0; --n)
        bad[random() % bad.size()] = likely[random() % likely.size()];
      write(path, bad);
      if (!read()) FAIL("try " << i << ": " << error(path));
    }
  }
}
