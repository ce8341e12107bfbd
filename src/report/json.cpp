// Profiles as JSON, both ways. Units are seconds, bytes and FLOP, so that reading gives back the
// numbers that were written.
#include "file.hpp"

#include <lamina/profile/report.hpp>

#include <nlohmann/json.hpp>

namespace lamina {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* lanes[lane_count] = {"compute", "communication", "wait"};

Json to_json(const Spread& s) {
  return {{"min", s.min}, {"mean", s.mean}, {"max", s.max}, {"slowest", s.slowest}};
}

Spread to_spread(const Json& j) {
  return {j.at("min"), j.at("mean"), j.at("max"), j.at("slowest")};
}

Json to_json(const ProfileRow& r) {
  Json kernels = Json::array();
  for (const ProfileKernel& k : r.kernels)
    kernels.push_back({{"what", k.what},
                       {"lane", lanes[int(k.lane)]},
                       {"calls", k.calls},
                       {"time_s", k.seconds},
                       {"bytes", k.bytes}});
  return {{"index", r.layer},
          {"layer", r.name},
          {"type", r.type},
          {"describe", r.describe},
          {"split", r.split},
          {"pass", name(r.pass)},
          {"time_s", to_json(r.time)},
          {"imbalance", r.time.imbalance()},
          {"step_s", {{"min", r.step_min}, {"median", r.step_median}, {"std", r.step_std}}},
          {"flop", r.work.flops},
          {"bytes", r.work.bytes},
          {"ai", r.work.intensity()},
          {"flop_per_s", r.flops_per_second()},
          {"bytes_per_s", r.bytes_per_second()},
          {"comm_s", to_json(r.comm)},
          {"exposed_s", to_json(r.exposed)},
          {"comm_bytes", r.comm_bytes},
          {"algo", r.algorithm},
          {"ws_bytes", r.workspace},
          {"kernels", kernels}};
}

/// The i below `count` whose name_of(i) is the string j.
template <class NameOf>
int find_name(const Json& j, const char* what, int count, NameOf&& name_of) {
  const auto wanted = j.get<std::string>();
  for (int i = 0; i < count; ++i)
    if (wanted == name_of(i)) return i;
  throw Error(text(what, " '", wanted, "' is not known"));
}

ProfileRow to_row(const Json& j) {
  ProfileRow r;
  r.layer = j.at("index");
  r.name = j.at("layer"), r.type = j.at("type"), r.describe = j.at("describe");
  r.split = j.at("split"), r.algorithm = j.at("algo");
  r.pass = Pass(find_name(j.at("pass"), "pass", pass_count, [](int i) { return name(Pass(i)); }));
  r.workspace = j.at("ws_bytes");
  r.work = {j.at("flop"), j.at("bytes")};
  r.time = to_spread(j.at("time_s"));
  r.comm = to_spread(j.at("comm_s")), r.exposed = to_spread(j.at("exposed_s"));
  r.comm_bytes = j.at("comm_bytes");
  const Json& steps = j.at("step_s");
  r.step_min = steps.at("min"), r.step_median = steps.at("median"), r.step_std = steps.at("std");
  for (const Json& k : j.at("kernels")) {
    const int lane = find_name(k.at("lane"), "lane", lane_count, [](int i) { return lanes[i]; });
    r.kernels.push_back({k.at("what"), Lane(lane), k.at("calls"), k.at("time_s"), k.at("bytes")});
  }
  return r;
}

/// "[json.exception.out_of_range.403] key 'rows' not found" -> "key 'rows' not found"
std::string reason(const Json::exception& e) {
  const std::string s = e.what();
  const auto end = s.find("] ");
  return end == std::string::npos ? s : s.substr(end + 2);
}

}  // namespace

void write_profile_json(const std::string& path, const Profile& p) {
  Json rows = Json::array();
  for (const ProfileRow& r : p.rows) rows.push_back(to_json(r));
  const Json j = {{"schema", profile_schema},
                  {"version", profile_schema_version},
                  {"lamina", p.version},
                  {"model", p.model},
                  {"backend", p.backend},
                  {"dtype", p.dtype},
                  {"optimizer", p.optimizer},
                  {"ranks", p.ranks},
                  {"batch", p.batch},
                  {"steps", p.steps},
                  {"byte_model", "compulsory"},
                  {"compute_s", to_json(p.compute)},
                  {"sum_layers_s", to_json(p.sum_layers)},
                  {"end_to_end_s", to_json(p.end_to_end)},
                  {"unaccounted", p.unaccounted()},
                  {"rows", rows}};
  // A name need not be UTF-8, but JSON must.
  detail::write_file(path, j.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

Profile read_profile_json(const std::string& path) {
  const std::string content = detail::read_file(path);
  std::string place;
  try {
    const Json j = Json::parse(content);
    check(j.is_object() && j.contains("schema") && j["schema"] == profile_schema,
          "not a profile: expected schema '", profile_schema, "'");
    const Json& found = j.at("version");
    check(found == profile_schema_version, "version ", found.dump(),
          " of the profile schema: expected ", profile_schema_version);
    Profile p;
    p.version = j.at("lamina"), p.model = j.at("model");
    p.backend = j.at("backend"), p.dtype = j.at("dtype"), p.optimizer = j.at("optimizer");
    p.ranks = j.at("ranks"), p.batch = j.at("batch"), p.steps = j.at("steps");
    p.compute = to_spread(j.at("compute_s"));
    p.sum_layers = to_spread(j.at("sum_layers_s"));
    p.end_to_end = to_spread(j.at("end_to_end_s"));
    for (const Json& row : j.at("rows")) {
      place = text("row ", p.rows.size(), ": ");
      p.rows.push_back(to_row(row));
    }
    return p;
  } catch (const Json::parse_error& e) {
    throw Error(text(path, ": not valid JSON, near byte ", e.byte));
  } catch (const Json::exception& e) {
    throw Error(text(path, ": damaged profile: ", place, reason(e)));
  } catch (const Error& e) {
    throw Error(text(path, ": ", place, e.what()), e.where());
  }
}

}  // namespace lamina
