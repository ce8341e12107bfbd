// A Machine as JSON: what the cache keeps and what profiles embed.
#include "machine/json.hpp"

#include <array>
#include <string_view>

namespace lamina::detail {

namespace {

using Json = nlohmann::ordered_json;
using Kind = ComputeCeiling::Kind;

constexpr std::array<const char*, 3> kinds = {"fma", "gemm", "conv"};

/// A measured quantity is never negative.
double measured(const JsonPart& json) { return json.number(0); }

int count(const JsonPart& json) { return int(json.whole(1, INT32_MAX)); }

Json to_json(const Rate& rate) { return {{"alone", rate.alone}, {"together", rate.together}}; }

Rate rate(const JsonPart& json) {
  return {measured(json.at("alone")), measured(json.at("together"))};
}

DType dtype(const JsonPart& json) {
  constexpr DType known[] = {DType::f32, DType::f64, DType::bf16, DType::f16};
  return known[json.one_of(int(std::size(known)), [&](int i) { return lamina::name(known[i]); })];
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
  json["missing"] = machine.missing;
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
  const auto mark = [](Json& list, const auto& ceilings) {
    for (std::size_t i = 0; i < ceilings.size(); ++i)
      if (ceilings[i].disturbed) list[i]["disturbed"] = true;
  };
  mark(json["compute"], machine.compute);
  mark(json["memory"], machine.memory);
  mark(json["comm"], machine.comm);
  return json;
}

Machine machine_from_json(const JsonPart& json) {
  Machine machine;
  machine.host = json.at("host").string(), machine.cpu = json.at("cpu").string();
  machine.backend = json.at("backend").string(), machine.date = json.at("date").string();
  machine.threads = count(json.at("threads")), machine.ranks = count(json.at("ranks"));
  machine.nodes = count(json.at("nodes"));
  machine.launch = measured(json.at("launch"));
  machine.missing = int(json.at("missing").whole(0, INT32_MAX));
  const auto disturbed = [](const JsonPart& c) {
    const auto mark = c.find("disturbed");
    if (mark && !mark->json().is_boolean()) mark->fail("true or false");
    return mark && mark->json().get<bool>();
  };
  const auto each = [&](const char* list, auto&& read) {
    const JsonPart all = json.at(list);
    for (std::size_t i = 0; i < all.size(); ++i) read(all.at(i));
  };
  each("compute", [&](const JsonPart& c) {
    const int kind = c.at("kind").one_of(int(kinds.size()), [](int i) { return kinds[i]; });
    machine.compute.push_back({Kind(kind), c.at("name").string(), dtype(c.at("dtype")),
                               rate(c.at("flops")), disturbed(c)});
  });
  each("memory", [&](const JsonPart& m) {
    machine.memory.push_back({m.at("level").string(), measured(m.at("capacity")),
                              rate(m.at("triad")), rate(m.at("read")), rate(m.at("scale")),
                              disturbed(m)});
  });
  each("comm", [&](const JsonPart& c) {
    const auto collective = [](int i) { return lamina::name(Collective(i)); };
    const int op = c.at("op").one_of(int(Collective::barrier) + 1, collective);
    machine.comm.push_back({Collective(op), count(c.at("ranks")), count(c.at("stride")),
                            measured(c.at("bytes")), measured(c.at("seconds")), disturbed(c)});
  });
  return machine;
}

}  // namespace lamina::detail
