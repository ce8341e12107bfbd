// Measured kernel times as JSON.
#include "base/json_part.hpp"

#include <lamina/plan/measured_times.hpp>

#include <array>
#include <utility>

namespace lamina {

namespace {

using detail::JsonPart;
using Json = JsonPart::Json;

constexpr const char* schema = "lamina-layer-times";
constexpr int version = 2;

constexpr std::array<std::pair<const char*, double LayerSeconds::*>, 3> passes = {
    {{"forward", &LayerSeconds::forward},
     {"input_grad", &LayerSeconds::input_grad},
     {"weight_grad", &LayerSeconds::weight_grad}}};

Json written(const Shape& s) { return Json::array({s.n, s.c, s.h, s.w}); }

Shape shape(const JsonPart& part) {
  if (part.size() != 4) part.fail("four extents");
  const auto extent = [&](std::size_t i) { return part.at(i).whole(0, std::int64_t(1) << 40); };
  return {extent(0), extent(1), extent(2), extent(3)};
}

Json written(const MeasuredTimes::Entry& e) {
  Json json = {
      {"type", e.layer.type}, {"options", e.layer.options}, {"precision", e.layer.precision}};
  json["x"] = Json::array();
  for (const Shape& x : e.layer.xs) json["x"].push_back(written(x));
  json["y"] = written(e.layer.y);
  json["halo"] = int(e.layer.halo);
  for (const auto& [name, pass] : passes)  // one that was not measured is left out
    if (e.seconds.*pass >= 0)
      json[name] = {{"seconds", e.seconds.*pass}, {"formula", e.formula.*pass}};
  return json;
}

MeasuredTimes::Entry entry(const JsonPart& part) {
  MeasuredTimes::Entry e;
  e.layer = {.type = part.at("type").string(),
             .options = part.at("options").string(),
             .precision = part.at("precision").string(),
             .y = shape(part.at("y"))};
  const JsonPart xs = part.at("x");
  if (xs.size() == 0) xs.fail("one input at least");
  for (std::size_t i = 0; i < xs.size(); ++i) e.layer.xs.push_back(shape(xs.at(i)));
  constexpr int most = int(Axis::height | Axis::width);
  e.layer.halo = Axis(part.at("halo").whole(0, most)) & Axis(most);
  for (const auto& [name, pass] : passes) {
    e.seconds.*pass = -1;
    if (const auto times = part.find(name)) {
      e.seconds.*pass = times->at("seconds").number(0);
      e.formula.*pass = times->at("formula").number(0);
    }
  }
  return e;
}

}  // namespace

std::string measured_json(const MeasuredTimes& times) {
  Json json = {{"schema", schema}, {"version", version}};
  json["layers"] = Json::array();
  for (const auto& e : times.entries()) json["layers"].push_back(written(e));
  json["updates"] = Json::array();
  for (const auto& [name, rate] : times.updates())
    json["updates"].push_back({{"rule", name}, {"bytes_per_second", rate}});
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + '\n';
}

void add_measured_json(MeasuredTimes& times, const std::string& content) {
  const Json json = JsonPart::parse(content);
  const JsonPart all(json);
  if (all.at("schema").string() != schema) all.at("schema").fail(text('\'', schema, '\''));
  all.at("version").whole(version, version);
  MeasuredTimes read = times;
  const JsonPart layers = all.at("layers"), updates = all.at("updates");
  for (std::size_t i = 0; i < layers.size(); ++i) read.add(entry(layers.at(i)));
  for (std::size_t i = 0; i < updates.size(); ++i)
    read.add_update(updates.at(i).at("rule").string(),
                    updates.at(i).at("bytes_per_second").number(1));
  times = std::move(read);
}

}  // namespace lamina
