// Profiles as files: JSON both ways, CSV, and what happens to files that are wrong.
#include "catch.hpp"
#include "profile_made.hpp"

#include <lamina/profile/report.hpp>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

using namespace lamina;
using test::made_profile;

namespace {

struct Folder {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / text("lamina-profile-", ::getpid());
  Folder() { std::filesystem::create_directories(path); }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string operator/(const std::string& name) const { return path / name; }
  int files() const { return int(std::distance(std::filesystem::directory_iterator(path), {})); }
};

std::string content(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path).rdbuf();
  return out.str();
}

void write(const std::string& path, const std::string& content) { std::ofstream(path) << content; }

std::string error(const std::string& path) {
  try {
    read_profile_json(path);
  } catch (const Error& e) {
    return e.what();
  }
  return "none";
}

}  // namespace

TEST_CASE("a profile that is written and read is the same") {
  const Folder folder;
  Profile p = made_profile(2);
  p.rows[0].time.mean = 1.0 / 3;  // no decimal number
  p.rows[1].step_std = 1e-9;
  write_profile_json(folder / "a.json", p);
  const Profile q = read_profile_json(folder / "a.json");
  write_profile_json(folder / "b.json", q);
  CHECK(content(folder / "a.json") == content(folder / "b.json"));
  CHECK(q.rows[0].time.mean == 1.0 / 3);
  REQUIRE(q.rows.size() == p.rows.size());
  for (std::size_t i = 0; i < p.rows.size(); ++i) {
    CHECK(q.rows[i].name == p.rows[i].name);
    CHECK(q.rows[i].pass == p.rows[i].pass);
    CHECK(q.rows[i].layer == p.rows[i].layer);
    CHECK(q.rows[i].work.flops == p.rows[i].work.flops);
    CHECK(q.rows[i].exposed.max == p.rows[i].exposed.max);
    CHECK(q.rows[i].step_std == p.rows[i].step_std);
    CHECK(q.rows[i].kernels.size() == p.rows[i].kernels.size());
  }
  CHECK(q.rows[1].kernels[1].lane == Lane::wait);
  CHECK(q.rows[1].comm.slowest == 1);
  CHECK(q.rows[0].workspace == 1.5e6);
  CHECK(q.compute.max == p.compute.max);
  CHECK(q.sum_layers.mean == p.sum_layers.mean);
  CHECK(q.end_to_end.mean == p.end_to_end.mean);
  CHECK(q.model == "made");
  CHECK(q.backend == "onednn 2.6");
  CHECK(q.optimizer == "sgd momentum 0.9");
  CHECK(q.batch == 32);
  CHECK(q.ranks == 2);
  CHECK(q.steps == 10);
  CHECK(folder.files() == 2);  // nothing temporary is left
}

TEST_CASE("the JSON says what it is") {
  const Folder folder;
  Profile p = made_profile();
  p.rows[0].name = "caf\xe9";  // not UTF-8
  write_profile_json(folder / "p.json", p);
  const auto j = nlohmann::json::parse(content(folder / "p.json"));
  CHECK(j.at("schema") == "lamina-profile");
  CHECK(j.at("version") == 1);
  CHECK(j.at("unaccounted") == Approx(p.unaccounted()));
  CHECK(j.at("rows").size() == p.rows.size());
  CHECK(j.at("rows")[1].at("flop_per_s") == Approx(236.027e6 / 1200.25e-6));
  CHECK(j.at("rows")[3].at("pass") == "forward");
}

TEST_CASE("the CSV has a line of names and a line per row") {
  const Folder folder;
  Profile p = made_profile(2);
  p.rows[0].split = "batch:2,channel:2";
  p.rows[0].name = "a \"b\"";
  write_profile_csv(folder / "p.csv", p);
  std::istringstream in(content(folder / "p.csv"));
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  REQUIRE(lines.size() == p.rows.size() + 1);
  CHECK(lines[0] ==
        "layer,type,split,pass,time_us,gflop,mbytes,ai,gflops,gbs,comm_us,exposed_us,comm_bytes,"
        "algo,ws_mb,describe,min_us,max_us,slowest_rank,imbalance,step_min_us,step_median_us,"
        "step_std_us,schema");
  CHECK(lines[1] ==
        "\"a \"\"b\"\"\",Conv2D,\"batch:2,channel:2\",forward,1200.25,0.236027,12.883,18.3208104,"
        "196.648198,10.7335972,0,0,0,jit:avx512_core,1.5,64 7x7 s2 p3,600.125,1800.375,1,1.5,"
        "1200.25,1200.25,0,lamina-profile 1");
  const auto columns = [](const std::string& s) { return std::count(s.begin(), s.end(), ','); };
  for (std::size_t i = 2; i < lines.size(); ++i) CHECK(columns(lines[i]) == columns(lines[0]));
  CHECK_THAT(lines[2], ContainsSubstring(",1000,100,37632,"));
}

TEST_CASE("a path that cannot be written is one clear error") {
  const Folder folder;
  const Profile p = made_profile();
  const std::string missing = folder / "no/where.json", here = folder.path;
  for (const auto write_profile : {write_profile_json, write_profile_csv}) {
    CHECK_THROWS_WITH(write_profile(missing, p), ContainsSubstring(missing + ": not written"));
    CHECK_THROWS_WITH(write_profile(here, p), ContainsSubstring("directory"));
    CHECK_THROWS_WITH(write_profile("", p), ContainsSubstring("file name"));
  }
  CHECK(folder.files() == 0);
  write_profile_csv("/dev/null", p);
  CHECK(std::filesystem::is_character_file("/dev/null"));  // not replaced by a file
  CHECK_THROWS_WITH(write_profile_csv("/dev/full", p), ContainsSubstring("/dev/full"));
}

TEST_CASE("a file that is no profile is one clear error") {
  const Folder folder;
  const std::string path = folder / "p.json";
  CHECK_THAT(error(path), ContainsSubstring(path));
  const auto of = [&](const std::string& content) {
    write(path, content);
    const std::string e = error(path);
    CHECK_THAT(e, ContainsSubstring(path + ": "));
    CHECK(e.find('\n') == std::string::npos);
    return e;
  };
  CHECK_THAT(of(""), ContainsSubstring("JSON"));
  CHECK_THAT(of("[1, 2"), ContainsSubstring("near byte"));
  CHECK_THAT(of("[1, 2]"), ContainsSubstring("not a profile"));
  CHECK_THAT(of(R"({"schema": "lamina-plan", "version": 1})"), ContainsSubstring("lamina-profile"));
  CHECK_THAT(of(R"({"schema": "lamina-profile"})"), ContainsSubstring("version"));
  CHECK_THAT(of(R"({"schema": "lamina-profile", "version": 2})"),
             ContainsSubstring("version 2") && ContainsSubstring("expected 1"));

  write_profile_json(path, made_profile());
  const auto good = nlohmann::json::parse(content(path));
  auto bad = good;
  bad["rows"][2].erase("flop");
  CHECK_THAT(of(bad.dump()), ContainsSubstring("row 2") && ContainsSubstring("flop"));
  bad = good;
  bad["rows"][1]["time_s"]["mean"] = "long";
  CHECK_THAT(of(bad.dump()), ContainsSubstring("row 1") && ContainsSubstring("number"));
  bad = good;
  bad["rows"][0]["pass"] = "sideways";
  CHECK_THAT(of(bad.dump()), ContainsSubstring("row 0") && ContainsSubstring("sideways"));
  const std::string whole = good.dump();
  for (std::size_t n = 0; n < whole.size(); n += 97) CHECK(of(whole.substr(0, n)) != "none");
}
