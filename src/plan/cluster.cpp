// Clusters as JSON: small enough to be written by hand, and trusted no further than that.
#include "base/json_part.hpp"

#include <lamina/base/file.hpp>
#include <lamina/base/naming.hpp>
#include <lamina/plan/cluster.hpp>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>

namespace lamina {

namespace {

using detail::JsonPart, detail::one_line;
using Json = JsonPart::Json;

constexpr const char* schema = "lamina-cluster";
constexpr int version = 1;
constexpr double gibi = 1 << 30;

/// x * 10^tens by its decimal digits, up to 15 of them: units change, digits stay. Above all
/// doubles it is infinite.
double shifted(double x, int tens) {
  const std::string s = format("%.14e", x);
  const std::size_t e = s.find('e');
  const std::string moved = text(s.substr(0, e), 'e', std::atoi(s.c_str() + e + 1) + tens);
  return std::strtod(moved.c_str(), nullptr);
}

/// Throws for a member that is none of these.
void only(const JsonPart& part, std::initializer_list<std::string_view> members) {
  if (!part.json().is_object()) part.fail("an object");
  for (const auto& [key, value] : part.json().items())
    if (std::ranges::find(members, key) == members.end())
      part.fail(text("no members but ", in_words(members), ", and not '", one_line(key), "'"));
}

double positive(const JsonPart& part) {
  if (!part.json().is_number() || part.json().get<double>() <= 0) part.fail("a number above 0");
  return part.number(0);
}

int count(const JsonPart& part) { return int(part.whole(1, INT32_MAX)); }

std::string name_of(const JsonPart& part) {
  const auto name = part.find("name");
  return name ? one_line(name->string()) : std::string();
}

template <class Read>
void each(const JsonPart& list, std::size_t most, Read&& read) {
  if (list.size() > most) list.fail(text("up to ", most, " elements"));
  for (std::size_t i = 0; i < list.size(); ++i) read(list.at(i));
}

Link link(const JsonPart& part) {
  only(part, {"latency_us", "bandwidth_gbs"});
  return {shifted(part.at("latency_us").number(0), -6),
          shifted(positive(part.at("bandwidth_gbs")), 9)};
}

DeviceModel device(const JsonPart& part) {
  only(part, {"name", "memory_gib", "bandwidth_gbs", "flops", "launch_us", "reduction_gbs"});
  DeviceModel d;
  d.name = name_of(part);
  d.memory = positive(part.at("memory_gib")) * gibi;
  d.bandwidth = shifted(positive(part.at("bandwidth_gbs")), 9);
  d.launch = shifted(part.at("launch_us").number(0), -6);
  if (const auto reduction = part.find("reduction_gbs"))
    d.reduction = shifted(positive(*reduction), 9);
  each(part.at("flops"), 16, [&](const JsonPart& f) {
    only(f, {"dtype", "gemm_tflops", "conv_tflops"});
    const int dtype =
        f.at("dtype").one_of(detail::dtype_count, [](int i) { return lamina::name(DType(i)); });
    d.flops.push_back({DType(dtype), shifted(positive(f.at("gemm_tflops")), 12),
                       shifted(positive(f.at("conv_tflops")), 12)});
  });
  return d;
}

CommCeiling point(const JsonPart& part) {
  only(part, {"op", "ranks", "stride", "bytes", "time_us", "disturbed"});
  const auto collective = [](int i) { return lamina::name(Collective(i)); };
  CommCeiling c;
  c.op = Collective(part.at("op").one_of(int(Collective::barrier) + 1, collective));
  c.ranks = count(part.at("ranks")), c.stride = count(part.at("stride"));
  c.bytes = positive(part.at("bytes")), c.seconds = shifted(positive(part.at("time_us")), -6);
  if (const auto mark = part.find("disturbed")) {
    if (!mark->json().is_boolean()) mark->fail("true or false");
    c.disturbed = mark->json().get<bool>();
  }
  return c;
}

/// An object of plain values in one line.
std::string line(const Json& json) {
  std::string s = json.dump(1, ' ', false, Json::error_handler_t::replace);
  std::erase(s, '\n');  // strings have none: they are escaped there
  return s.starts_with("{ ") ? s.erase(1, 1) : s;
}

template <class Items, class Line>
std::string lines(const Items& items, const std::string& indent, Line&& line_of) {
  std::string s = "[";
  for (const auto& item : items)
    append(s, text(s == "[" ? "\n" : ",\n", indent, "  ", line_of(item)));
  return text(s, '\n', indent, ']');
}

std::string written(const Link& link) {
  return line(
      {{"latency_us", shifted(link.latency, 6)}, {"bandwidth_gbs", shifted(link.bandwidth, -9)}});
}

std::string written(const DeviceModel::Flops& f) {
  return line({{"dtype", lamina::name(f.dtype)},
               {"gemm_tflops", shifted(f.gemm, -12)},
               {"conv_tflops", shifted(f.conv, -12)}});
}

std::string written(const Nodes& group) {
  const DeviceModel& d = group.device;
  Json json;
  if (!d.name.empty()) json["name"] = d.name;
  json["memory_gib"] = d.memory / gibi;
  json["bandwidth_gbs"] = shifted(d.bandwidth, -9);
  json["launch_us"] = shifted(d.launch, 6);
  if (d.reduction > 0) json["reduction_gbs"] = shifted(d.reduction, -9);
  std::string device = line(json);
  device.pop_back();
  const auto flops = lines(d.flops, "      ", [](const auto& f) { return written(f); });
  return text("{\"count\": ", group.count, ", \"device\": ", device, ",\n      \"flops\": ", flops,
              "}}");
}

std::string written(const CommCeiling& c) {
  Json json = {{"op", lamina::name(c.op)},
               {"ranks", c.ranks},
               {"stride", c.stride},
               {"bytes", c.bytes},
               {"time_us", shifted(c.seconds, 6)}};
  if (c.disturbed) json["disturbed"] = true;
  return line(json);
}

}  // namespace

Cluster parse_cluster(const std::string& json) {
  const Json j = JsonPart::parse_written(json, "cluster", schema, version, 8);
  const JsonPart whole(j);
  only(whole, {"schema", "version", "name", "devices_per_node", "sharers", "contention", "nodes",
               "inside", "across", "measured"});
  Cluster c;
  c.name = name_of(whole);
  c.devices_per_node = count(whole.at("devices_per_node"));
  if (const auto sharers = whole.find("sharers")) c.sharers = count(*sharers);
  if (const auto contention = whole.find("contention")) c.contention = contention->number(1);
  each(whole.at("nodes"), 4096, [&](const JsonPart& group) {
    only(group, {"count", "device"});
    c.nodes.push_back({count(group.at("count")), device(group.at("device"))});
  });
  c.inside = link(whole.at("inside")), c.across = link(whole.at("across"));
  if (const auto measured = whole.find("measured"))
    each(*measured, 10000, [&](const JsonPart& p) { c.measured.push_back(point(p)); });
  check_cluster(c);
  return c;
}

std::string cluster_json(const Cluster& c) {
  const auto each_written = [](const auto& item) { return written(item); };
  std::string s = text("{\n  \"schema\": \"", schema, "\",\n  \"version\": ", version, ",\n");
  if (!c.name.empty()) append(s, text("  \"name\": ", line(c.name), ",\n"));
  append(s, text("  \"devices_per_node\": ", c.devices_per_node, ",\n  \"sharers\": ", c.sharers,
                 ",\n  \"contention\": ", exact(c.contention),
                 ",\n  \"nodes\": ", lines(c.nodes, "  ", each_written),
                 ",\n  \"inside\": ", written(c.inside), ",\n  \"across\": ", written(c.across)));
  if (!c.measured.empty())
    append(s, text(",\n  \"measured\": ", lines(c.measured, "  ", each_written)));
  return s + "\n}\n";
}

Cluster read_cluster(const std::string& path) {
  constexpr std::uint64_t longest = 4 << 20;  // bytes
  const std::string content = read_file(path, longest);
  return naming(path, [&] { return parse_cluster(content); });
}

void write_cluster(const std::string& path, const Cluster& cluster) {
  write_file(path, cluster_json(cluster));
}

Cluster find_cluster(const std::string& name_or_file) {
  const auto names = cluster_names();
  const bool known = std::ranges::find(names, name_or_file) != names.end();
  return !known && names_a_file(name_or_file) ? read_cluster(name_or_file)
                                              : ready_cluster(name_or_file);
}

}  // namespace lamina
