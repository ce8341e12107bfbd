// A Machine as JSON: what the cache keeps and what profiles embed.
#include "machine/json.hpp"

#include <array>
#include <cmath>
#include <string_view>

namespace lamina::detail {

namespace {

using Json = nlohmann::ordered_json;
using Kind = ComputeCeiling::Kind;

constexpr std::array<std::string_view, 3> kinds = {"fma", "gemm", "conv"};

/// A measured quantity: finite, and never negative.
double measured(const Json& json) {
  const double x = json.get<double>();
  check(std::isfinite(x) && x >= 0, "expected a measured value, got ", x);
  return x;
}

int count(const Json& json) {
  const int n = json.get<int>();
  check(n > 0, "expected a positive number, got ", n);
  return n;
}

Json to_json(const Rate& rate) { return {{"alone", rate.alone}, {"together", rate.together}}; }

Rate rate(const Json& json) { return {measured(json.at("alone")), measured(json.at("together"))}; }

Kind parse_kind(std::string_view word) {
  for (std::size_t i = 0; i < kinds.size(); ++i)
    if (word == kinds[i]) return Kind(i);
  throw Error(text("no ceiling is of the kind ", word));
}

Collective parse_collective(std::string_view word) {
  for (int i = 0; i <= int(Collective::barrier); ++i)
    if (word == name(Collective(i))) return Collective(i);
  throw Error(text("no collective is called ", word));
}

}  // namespace

Json machine_to_json(const Machine& machine) {
  Json json;
  json["host"] = machine.host;
  json["cpu"] = machine.cpu;
  json["backend"] = machine.backend;
  json["threads"] = machine.threads;
  json["ranks"] = machine.ranks;
  json["nodes"] = machine.nodes;
  json["date"] = machine.date;
  json["launch"] = machine.launch;
  json["compute"] = Json::array();
  for (const ComputeCeiling& c : machine.compute)
    json["compute"].push_back({{"kind", kinds[std::size_t(c.kind)]},
                               {"name", c.name},
                               {"dtype", lamina::name(c.dtype)},
                               {"flops", to_json(c.flops)}});
  json["memory"] = Json::array();
  for (const MemoryCeiling& m : machine.memory)
    json["memory"].push_back({{"level", m.level},
                              {"capacity", m.capacity},
                              {"triad", to_json(m.triad)},
                              {"read", to_json(m.read)},
                              {"scale", to_json(m.scale)}});
  json["comm"] = Json::array();
  for (const CommCeiling& c : machine.comm)
    json["comm"].push_back({{"op", lamina::name(c.op)},
                            {"ranks", c.ranks},
                            {"stride", c.stride},
                            {"bytes", c.bytes},
                            {"seconds", c.seconds}});
  return json;
}

Machine machine_from_json(const Json& json) {
  Machine machine;
  json.at("host").get_to(machine.host);
  json.at("cpu").get_to(machine.cpu);
  json.at("backend").get_to(machine.backend);
  machine.threads = count(json.at("threads"));
  machine.ranks = count(json.at("ranks"));
  machine.nodes = count(json.at("nodes"));
  json.at("date").get_to(machine.date);
  machine.launch = measured(json.at("launch"));
  // A string or an object would be walked through as well.
  for (const char* list : {"compute", "memory", "comm"})
    check(json.at(list).is_array(), "expected ", list, " to be a list");
  for (const Json& c : json.at("compute"))
    machine.compute.push_back({parse_kind(c.at("kind").get<std::string>()),
                               c.at("name").get<std::string>(),
                               parse_dtype(c.at("dtype").get<std::string>()), rate(c.at("flops"))});
  for (const Json& m : json.at("memory"))
    machine.memory.push_back({m.at("level").get<std::string>(), measured(m.at("capacity")),
                              rate(m.at("triad")), rate(m.at("read")), rate(m.at("scale"))});
  for (const Json& c : json.at("comm"))
    machine.comm.push_back({parse_collective(c.at("op").get<std::string>()), count(c.at("ranks")),
                            count(c.at("stride")), measured(c.at("bytes")),
                            measured(c.at("seconds"))});
  return machine;
}

}  // namespace lamina::detail
