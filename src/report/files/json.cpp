// Profiles as JSON, both ways. Units are seconds, bytes and FLOP, so that reading gives back the
// numbers that were written.
#include "machine/json.hpp"

#include "base/json_part.hpp"

#include <lamina/base/file.hpp>
#include <lamina/profile/report.hpp>

#include <map>

namespace lamina {

namespace {

using detail::JsonPart;
using Json = nlohmann::ordered_json;

constexpr const char* lanes[lane_count] = {"compute", "communication", "wait"};
constexpr std::pair<const char*, double Counts::*> counters[] = {
    {"cycles", &Counts::cycles},
    {"instructions", &Counts::instructions},
    {"llc_misses", &Counts::misses},
    {"dram_bytes", &Counts::dram_bytes}};
constexpr std::pair<const char*, double StepSpread::*> spreads[] = {
    {"kernels", &StepSpread::kernels},
    {"waiting", &StepSpread::waiting},
    {"unaccounted", &StepSpread::unaccounted},
    {"end_to_end", &StepSpread::end_to_end},
    {"clean", &StepSpread::clean}};
constexpr std::pair<const char*, std::size_t Memory::*> kept[] = {
    {"parameters", &Memory::parameters}, {"gradients", &Memory::gradients},
    {"optimizer", &Memory::optimizer},   {"activations", &Memory::activations},
    {"workspace", &Memory::workspace},   {"messages", &Memory::messages}};

// ---- writing ---------------------------------------------------------------------------------

Json to_json(const Spread& s) {
  return {{"min", s.min}, {"mean", s.mean}, {"max", s.max}, {"slowest", s.slowest}};
}

Json steps_of(const ProfileRow& r) {
  Json j = {{"min", r.step_min}, {"median", r.step_median}, {"std", r.step_std}};
  if (r.step_total_std >= 0) j["total_std"] = r.step_total_std;
  return j;
}

Json to_json(const ProfileRow& r) {
  Json kernels = Json::array();
  for (const ProfileKernel& k : r.kernels)
    kernels.push_back({{"what", k.what},
                       {"lane", lanes[int(k.lane)]},
                       {"calls", k.calls},
                       {"time_s", k.seconds},
                       {"bytes", k.bytes}});
  Json j = {{"index", r.layer},
            {"layer", r.name},
            {"type", r.type},
            {"describe", r.describe},
            {"split", r.split},
            {"pass", name(r.pass)},
            {"output", {r.output.n, r.output.c, r.output.h, r.output.w}},
            {"time_s", to_json(r.time)},
            {"imbalance", r.time.imbalance()},
            {"step_s", steps_of(r)},
            {"flop", r.work.flops},
            {"bytes", r.work.bytes},
            {"ai", r.work.intensity()},
            {"flop_per_s", r.flops_per_second()},
            {"bytes_per_s", r.bytes_per_second()},
            {"comm_s", to_json(r.comm)},
            {"exposed_s", to_json(r.exposed)},
            {"late_s", to_json(r.late)},
            {"transfer_s", to_json(r.transfer)},
            {"comm_bytes", r.comm_bytes},
            {"wire_bytes", r.wire_bytes},
            {"alone_s", to_json(r.alone)},
            {"predicted_s", r.predicted},
            {"algo", r.algorithm},
            {"ws_bytes", r.workspace},
            {"kernels", kernels}};
  if (r.work.padding > 0) j["padding_flop"] = r.work.padding;
  if (!r.fused_into.empty()) j["fused_into"] = r.fused_into;
  if (!r.counts) return j;
  Json counts = Json::object();
  for (const auto& [key, member] : counters)
    if ((*r.counts).*member >= 0) counts[key] = (*r.counts).*member;
  j["counts"] = counts;
  return j;
}

/// With what else there is to say.
Json to_json(const Memory& m, Json j = Json::object()) {
  for (const auto& [key, member] : kept) j[key] = m.*member;
  return j;
}

Json to_json(const PlannedStep& p) {
  Json timed = Json::array();
  for (const PlanTime& t : p.timed)
    timed.push_back({{"plan", t.name}, {"predicted_s", t.predicted}, {"median_s", t.median}});
  return {{"cluster", p.cluster}, {"predicted_s", p.seconds}, {"timed", timed}};
}

Json to_json(const RanksOverTime& over) {
  Json changes = Json::array();
  for (const RanksChange& c : over.changes)
    changes.push_back({{"step", c.step},
                       {"ranks_before", c.from},
                       {"ranks", c.to},
                       {"why", c.why},
                       {"pause_s", c.pause},
                       {"prepared_s", c.prepared},
                       {"bytes", c.bytes},
                       {"workers", c.workers}});
  return {{"steps", over.steps}, {"changes", changes}};
}

/// A span is a list of numbers: there are thousands of them.
Json to_json(const std::vector<std::vector<TimelineSpan>>& timeline) {
  std::map<std::string, std::size_t> index;
  Json what = Json::array(), ranks = Json::array();
  for (const auto& spans : timeline) {
    Json list = Json::array();
    for (const TimelineSpan& s : spans) {
      const auto [at, added] = index.emplace(s.what, index.size());
      if (added) what.push_back(s.what);
      list.push_back({s.layer, int(s.pass), int(s.lane), at->second, s.begin, s.end, s.bytes});
    }
    ranks.push_back(std::move(list));
  }
  return {{"columns", {"layer", "pass", "lane", "what", "begin_s", "end_s", "bytes"}},
          {"what", what},
          {"ranks", ranks}};
}

/// A line per member of the document, and per element of those that hold lists or objects.
void put(std::string& out, const Json& j, int depth) {
  bool nested = depth == 0;
  for (const Json& element : j) nested = nested || element.is_structured();
  if (!j.is_structured() || !nested || depth > 1 || j.empty()) {
    // A name need not be UTF-8, but JSON must.
    out += j.dump(-1, ' ', false, Json::error_handler_t::replace);
    return;
  }
  out += j.is_object() ? '{' : '[';
  const char* separator = "";
  for (const auto& [key, value] : j.items()) {
    out += text(separator, '\n', std::string(std::size_t(depth + 1), ' '));
    if (j.is_object()) out += text(Json(key).dump(), ": ");
    put(out, value, depth + 1);
    separator = ",";
  }
  out += text('\n', std::string(std::size_t(depth), ' '), j.is_object() ? '}' : ']');
}

// ---- reading ---------------------------------------------------------------------------------

constexpr double any = -1e300;
// What a kernel within another one took is subtracted from the other's time, which may leave
// nothing, give or take the rounding.
constexpr double nothing = -1e-6;

/// Reads the parts of a profile whose number of ranks and names of layers are known.
class ProfileReader {
 public:
  ProfileReader(int ranks, std::size_t layers) : ranks_(ranks), layers_(layers) {}

  Spread spread(const JsonPart& j) const {
    return {j.at("min").number(nothing), j.at("mean").number(nothing), j.at("max").number(nothing),
            int(j.at("slowest").whole(0, ranks_ - 1))};
  }

  int layer(const JsonPart& j) const {
    return int(j.whole(-1, layers_ > 0 ? std::int64_t(layers_) - 1 : INT32_MAX));
  }

  ProfileRow row(const JsonPart& j) const {
    ProfileRow r;
    r.layer = layer(j.at("index"));
    r.name = j.at("layer").string(), r.type = j.at("type").string();
    r.describe = j.at("describe").string(), r.split = j.at("split").string();
    r.algorithm = j.at("algo").string();
    if (const auto fused = j.find("fused_into")) r.fused_into = fused->string();
    r.pass = Pass(j.at("pass").one_of(pass_count, [](int i) { return name(Pass(i)); }));
    const JsonPart output = j.at("output");
    if (output.size() != 4) output.fail("four extents");
    std::int64_t* const extents[] = {&r.output.n, &r.output.c, &r.output.h, &r.output.w};
    for (std::size_t i = 0; i < 4; ++i) *extents[i] = output.at(i).whole(0, INT32_MAX);
    r.workspace = j.at("ws_bytes").number(0);
    r.work = {j.at("flop").number(0), j.at("bytes").number(0)};
    if (const auto padding = j.find("padding_flop")) r.work.padding = padding->number(0);
    r.time = spread(j.at("time_s"));
    r.comm = spread(j.at("comm_s")), r.exposed = spread(j.at("exposed_s"));
    r.late = spread(j.at("late_s")), r.transfer = spread(j.at("transfer_s"));
    r.comm_bytes = j.at("comm_bytes").number(0), r.wire_bytes = j.at("wire_bytes").number(0);
    r.alone = spread(j.at("alone_s"));
    r.predicted = j.at("predicted_s").number(0);
    const JsonPart steps = j.at("step_s");
    r.step_min = steps.at("min").number(nothing);
    r.step_median = steps.at("median").number(nothing);
    r.step_std = steps.at("std").number(0);
    if (const auto total = steps.find("total_std")) r.step_total_std = total->number(0);
    if (const auto counts = j.find("counts")) {
      r.counts.emplace();
      for (const auto& [key, member] : counters)
        if (const auto count = counts->find(key)) (*r.counts).*member = count->number(0);
    }
    const JsonPart kernels = j.at("kernels");
    for (std::size_t i = 0; i < kernels.size(); ++i) r.kernels.push_back(kernel(kernels.at(i)));
    return r;
  }

  static PlannedStep plan(const JsonPart& j) {
    PlannedStep p{j.at("cluster").string(), j.at("predicted_s").number(0)};
    const JsonPart timed = j.at("timed");
    for (std::size_t i = 0; i < timed.size(); ++i) {
      const JsonPart t = timed.at(i);
      p.timed.push_back(
          {t.at("plan").string(), t.at("predicted_s").number(0), t.at("median_s").number(0)});
    }
    return p;
  }

  static RanksOverTime over_time(const JsonPart& j) {
    RanksOverTime over{j.at("steps").whole(0, INT64_MAX)};
    const JsonPart changes = j.at("changes");
    for (std::size_t i = 0; i < changes.size(); ++i) {
      const JsonPart c = changes.at(i);
      over.changes.push_back(
          {c.at("step").whole(0, over.steps), int(c.at("ranks_before").whole(1, INT32_MAX)),
           int(c.at("ranks").whole(1, INT32_MAX)), c.at("why").string(), c.at("pause_s").number(0),
           c.at("prepared_s").number(0), c.at("bytes").number(0)});
      const JsonPart workers = c.at("workers");
      for (std::size_t w = 0; w < workers.size(); ++w)
        over.changes.back().workers.push_back(int(workers.at(w).whole(1, INT32_MAX)));
    }
    return over;
  }

  static Memory memory(const JsonPart& j) {
    constexpr std::int64_t most = std::int64_t(1) << 50;  // so that they can be added up
    Memory m;
    for (const auto& [key, member] : kept) m.*member = std::size_t(j.at(key).whole(0, most));
    return m;
  }

  std::vector<std::vector<TimelineSpan>> timeline(const JsonPart& j) const {
    const std::vector<std::string> what = strings(j.at("what"));
    const JsonPart by_rank = j.at("ranks");
    std::vector<std::vector<TimelineSpan>> all(by_rank.size_or_empty(std::size_t(ranks_), "ranks"));
    for (std::size_t r = 0; r < all.size(); ++r) {
      const JsonPart spans = by_rank.at(r);
      for (std::size_t i = 0; i < spans.size(); ++i) {
        const JsonPart s = spans.at(i);
        if (s.size() != 7) s.fail("seven numbers");
        TimelineSpan span;
        span.layer = layer(s.at(std::size_t(0)));
        span.pass = Pass(s.at(1).whole(0, pass_count - 1));
        span.lane = Lane(s.at(2).whole(0, lane_count - 1));
        span.what = what[std::size_t(s.at(3).whole(0, std::int64_t(what.size()) - 1))];
        span.begin = s.at(4).number(any);
        span.end = s.at(5).number(span.begin);
        span.bytes = s.at(6).number(0);
        all[r].push_back(std::move(span));
      }
    }
    return all;
  }

  static std::vector<std::string> strings(const JsonPart& j) {
    std::vector<std::string> all(j.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = j.at(i).string();
    return all;
  }

 private:
  static ProfileKernel kernel(const JsonPart& j) {
    const Lane lane = Lane(j.at("lane").one_of(lane_count, [](int i) { return lanes[i]; }));
    return {j.at("what").string(), lane, j.at("calls").number(0), j.at("time_s").number(nothing),
            j.at("bytes").number(0)};
  }

  int ranks_;
  std::size_t layers_;
};

Profile to_profile(const JsonPart& j) {
  Profile p;
  p.version = j.at("lamina").string(), p.model = j.at("model").string();
  p.backend = j.at("backend").string(), p.dtype = j.at("dtype").string();
  const auto arithmetic = j.find("arithmetic");
  p.arithmetic = arithmetic ? parse_dtype(arithmetic->string()) : wide(parse_dtype(p.dtype));
  p.optimizer = j.at("optimizer").string(), p.command = j.at("command").string();
  p.ranks = int(j.at("ranks").whole(1, INT32_MAX));
  p.batch = j.at("batch").whole(0, INT64_MAX);
  p.steps = int(j.at("steps").whole(0, INT32_MAX));
  p.hosts = ProfileReader::strings(j.at("hosts"));
  j.at("hosts").size_or_empty(std::size_t(p.ranks), "ranks");
  p.layers = ProfileReader::strings(j.at("layers"));
  p.overhead = j.at("overhead").number(any);

  const ProfileReader reader(p.ranks, p.layers.size());
  p.compute = reader.spread(j.at("compute_s"));
  p.sum_layers = reader.spread(j.at("sum_layers_s"));
  p.end_to_end = reader.spread(j.at("end_to_end_s"));
  p.clean = reader.spread(j.at("clean_s"));
  const JsonPart use = j.at("processor");
  p.processor = {reader.spread(use.at("time_s")), reader.spread(use.at("denied_s")),
                 reader.spread(use.at("switches")), use.at("stolen").number(0)};
  p.clock_error = j.at("clock_error_s").number(0);
  if (const auto spread = j.find("step_std_s"))
    for (const auto& [key, member] : spreads)
      if (const auto std = spread->find(key)) p.step_spread.*member = std->number(0);
  if (const auto plan = j.find("plan")) p.plan = ProfileReader::plan(*plan);
  if (const auto ranks = j.find("ranks_over_time")) p.over_time = ProfileReader::over_time(*ranks);
  if (const auto machine = j.find("machine")) p.machine = detail::machine_from_json(*machine);
  const JsonPart rows = j.at("rows"), layers = j.at("layer_memory");
  for (std::size_t i = 0; i < rows.size(); ++i) p.rows.push_back(reader.row(rows.at(i)));
  p.memory = ProfileReader::memory(j.at("memory"));
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const JsonPart m = layers.at(i);
    p.layer_memory.push_back(
        {m.at("layer").string(), m.at("type").string(), ProfileReader::memory(m)});
  }
  p.timeline = reader.timeline(j.at("timeline"));
  return p;
}

}  // namespace

void write_profile_json(const std::string& path, const Profile& p) {
  Json j = {{"schema", profile_schema},
            {"version", profile_schema_version},
            {"lamina", p.version},
            {"command", p.command},
            {"model", p.model},
            {"backend", p.backend},
            {"dtype", p.dtype},
            {"arithmetic", name(p.arithmetic)},
            {"optimizer", p.optimizer},
            {"ranks", p.ranks},
            {"hosts", p.hosts},
            {"batch", p.batch},
            {"steps", p.steps},
            {"byte_model", "compulsory"},
            {"compute_s", to_json(p.compute)},
            {"sum_layers_s", to_json(p.sum_layers)},
            {"end_to_end_s", to_json(p.end_to_end)},
            {"clean_s", to_json(p.clean)},
            {"overhead", p.overhead},
            {"unaccounted", p.unaccounted()},
            {"processor",
             {{"time_s", to_json(p.processor.time)},
              {"denied_s", to_json(p.processor.denied)},
              {"switches", to_json(p.processor.switches)},
              {"stolen", p.processor.stolen},
              {"disturbed", p.disturbed()}}},
            {"clock_error_s", p.clock_error},
            {"memory", to_json(p.memory)},
            {"layers", p.layers}};
  for (const auto& [key, member] : spreads)
    if (p.step_spread.*member >= 0) j["step_std_s"][key] = p.step_spread.*member;
  if (p.plan) j["plan"] = to_json(*p.plan);
  if (!p.over_time.changes.empty()) j["ranks_over_time"] = to_json(p.over_time);
  if (p.machine) j["machine"] = detail::machine_to_json(*p.machine);
  j["rows"] = Json::array();
  for (const ProfileRow& r : p.rows) j["rows"].push_back(to_json(r));
  j["layer_memory"] = Json::array();
  for (const LayerMemory& m : p.layer_memory)
    j["layer_memory"].push_back(to_json(m.memory, {{"layer", m.name}, {"type", m.type}}));
  j["timeline"] = to_json(p.timeline);
  std::string out;
  put(out, j, 0);
  write_file(path, out + '\n');
}

Profile read_profile_json(const std::string& path) {
  const std::string content = read_file(path, std::uint64_t(1) << 28);
  try {
    const Json j = JsonPart::parse(content);
    check(j.is_object() && j.contains("schema") && j["schema"] == profile_schema,
          "not a profile: expected schema '", profile_schema, "'");
    const JsonPart schema = JsonPart(j).at("version");
    if (schema.json() != profile_schema_version)
      schema.fail(text(profile_schema_version, ", of the profile schema"));
    return to_profile(JsonPart(j));
  } catch (const Error& e) {
    throw Error(text(path, ": ", detail::one_line(e.what())), e.where());
  }
}

}  // namespace lamina
