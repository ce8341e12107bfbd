// Plans as JSON: small enough to be written by hand, and trusted no further than that.
#include "base/json_part.hpp"

#include <lamina/base/file.hpp>
#include <lamina/base/naming.hpp>
#include <lamina/plan/plan.hpp>

namespace lamina {

namespace {

using detail::JsonPart, detail::one_line;
using Json = JsonPart::Json;

constexpr const char* schema = "lamina-plan";
constexpr int version = 1;
constexpr std::int64_t most_ranks = 1 << 16, most_micro_batches = 1 << 24;
constexpr std::pair<const char*, double LayerSeconds::*> passes[] = {
    {"forward", &LayerSeconds::forward},
    {"input_grad", &LayerSeconds::input_grad},
    {"weight_grad", &LayerSeconds::weight_grad},
    {"recompute", &LayerSeconds::recompute},
    {"update", &LayerSeconds::update}};

/// Throws where an object has another member than these.
void allow_only(const JsonPart& object, const char* what,
                std::initializer_list<std::string_view> members) {
  if (!object.json().is_object()) object.fail("an object");
  for (const auto& [key, value] : object.json().items())
    check(std::ranges::find(members, key) != members.end(), "'", one_line(key),
          "' is no member of ", what, ": expected ", in_words(members));
}

PlanPrediction prediction_in(const JsonPart& j, int ranks) {
  allow_only(j, "a prediction", {"cluster", "dtype", "batch", "step_s", "layers"});
  PlanPrediction p{.cluster = one_line(j.at("cluster").string()),
                   .batch = j.at("batch").whole(1, INT64_MAX),
                   .seconds = j.at("step_s").number(0)};
  // Without these, which older files lack, it is of no step that is known.
  if (const auto dtype = j.find("dtype")) p.dtype = one_line(dtype->string());
  const JsonPart layers = j.at("layers");
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const JsonPart layer = layers.at(i);
    allow_only(layer, "a layer's prediction",
               {"layer", "split", "output", "forward", "input_grad", "weight_grad", "recompute",
                "update", "redistribution"});
    PlanPrediction::Layer& its = p.layers.emplace_back();
    its.name = layer.at("layer").string();
    naming(one_line(text("prediction of layer '", its.name, "'")),
           [&] { its.split = parse_split(one_line(layer.at("split").string())); });
    if (its.split.ways() > ranks) layer.at("split").fail(text("a split of ", ranks, " ranks"));
    if (const auto output = layer.find("output")) {
      if (output->size() != 3) output->fail("channels, height and width");
      std::int64_t* const extents[] = {&its.output.c, &its.output.h, &its.output.w};
      for (std::size_t k = 0; k < 3; ++k) *extents[k] = output->at(k).whole(1, INT32_MAX);
    }
    for (const auto& [pass, seconds] : passes)
      if (const auto s = layer.find(pass)) its.passes.*seconds = s->number(0);
    if (const auto s = layer.find("redistribution")) its.redistribution = s->number(0);
  }
  return p;
}

std::vector<PlanTime> times_in(const JsonPart& j) {
  std::vector<PlanTime> all;
  for (std::size_t i = 0; i < j.size(); ++i) {
    const JsonPart plan = j.at(i);
    allow_only(plan, "a plan that was timed", {"plan", "predicted_s", "median_s"});
    all.push_back({one_line(plan.at("plan").string()), plan.at("predicted_s").number(0),
                   plan.at("median_s").number(0)});
  }
  return all;
}

std::string quoted(const std::string& s) {
  return Json(s).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string json_of(const PlanPrediction& p) {
  std::string s = text(",\n  \"prediction\": {\n    \"cluster\": ", quoted(p.cluster),
                       ",\n    \"dtype\": ", quoted(p.dtype), ",\n    \"batch\": ", p.batch,
                       ",\n    \"step_s\": ", exact(p.seconds), ",\n    \"layers\": [");
  for (const PlanPrediction::Layer& layer : p.layers) {
    append(s, text(&layer == &p.layers[0] ? "\n" : ",\n", "      {\"layer\": ", quoted(layer.name),
                   ", \"split\": ", quoted(layer.split.text()), ", \"output\": [", layer.output.c,
                   ", ", layer.output.h, ", ", layer.output.w, "]"));
    const auto add = [&](const char* what, double seconds) {
      if (seconds > 0) append(s, text(", \"", what, "\": ", exact(seconds)));
    };
    for (const auto& [pass, seconds] : passes) add(pass, layer.passes.*seconds);
    add("redistribution", layer.redistribution);
    append(s, "}");
  }
  return s + "\n    ]\n  }";
}

}  // namespace

Plan parse_plan(const std::string& json) {
  const Json j = JsonPart::parse_written(json, "plan", schema, version, 6, "layer", 10000);
  const JsonPart whole(j);
  allow_only(whole, "a plan",
             {"schema", "version", "model", "ranks", "layers", "recompute", "shard_optimizer",
              "micro_batches", "timed", "prediction"});
  Plan plan;
  if (const auto model = whole.find("model")) plan.model = one_line(model->string());
  plan.ranks = int(whole.at("ranks").whole(1, most_ranks));
  const JsonPart layers = whole.at("layers");
  if (!layers.json().is_object()) layers.fail("an object");
  for (const auto& [layer, split] : layers.json().items())
    naming(one_line(text("layer '", layer, "'")), [&] {
      check(split.is_string(), "expected a split such as \"batch:2,channel:2\", got ",
            split.is_structured() ? one_line(split.type_name()) : one_line(split.dump()));
      check(!layer.empty(), "expected the name of a layer, or a pattern");
      const Split s = parse_split(one_line(split.get<std::string>()));
      check(s.ways() <= plan.ranks, "split ", s, " has ", s.ways(), " parts, but the plan is for ",
            plan.ranks, plan.ranks == 1 ? " rank" : " ranks");
      plan.split(layer, s);
    });
  if (const auto recompute = whole.find("recompute")) {
    if (!recompute->json().is_array()) recompute->fail("a list of layers or patterns");
    for (std::size_t i = 0; i < recompute->size(); ++i) {
      const JsonPart layer = recompute->at(i);
      if (!layer.json().is_string() || layer.string().empty())
        layer.fail("the name of a layer, or a pattern");
      plan.recompute(one_line(layer.string()));
    }
  }
  if (const auto shard = whole.find("shard_optimizer")) {
    if (!shard->json().is_boolean()) shard->fail("true or false");
    plan.shard_optimizer = shard->json().get<bool>();
  }
  if (const auto micro = whole.find("micro_batches"))
    plan.micro_batches = int(micro->whole(1, most_micro_batches));
  if (const auto timed = whole.find("timed")) plan.timed = times_in(*timed);
  if (const auto prediction = whole.find("prediction"))
    plan.prediction = prediction_in(*prediction, plan.ranks);
  return plan;
}

std::string plan_json(const Plan& plan) {
  std::string s = text("{\n  \"schema\": \"", schema, "\",\n  \"version\": ", version, ",\n");
  if (!plan.model.empty()) append(s, text("  \"model\": ", quoted(plan.model), ",\n"));
  append(s, text("  \"ranks\": ", plan.ranks, ",\n  \"layers\": {"));
  for (std::size_t i = 0; i < plan.rules.size(); ++i)
    append(s, text(i ? ",\n    " : "\n    ", quoted(plan.rules[i].layers), ": ",
                   quoted(plan.rules[i].split.text())));
  append(s, plan.rules.empty() ? "}" : "\n  }");
  for (std::size_t i = 0; i < plan.recomputed.size(); ++i)
    append(s,
           text(i ? ",\n    " : ",\n  \"recompute\": [\n    ", quoted(plan.recomputed[i].layers)));
  if (!plan.recomputed.empty()) append(s, "\n  ]");
  if (plan.shard_optimizer) append(s, ",\n  \"shard_optimizer\": true");
  if (plan.micro_batches > 1) append(s, text(",\n  \"micro_batches\": ", plan.micro_batches));
  for (const PlanTime& timed : plan.timed)
    append(s, text(&timed == &plan.timed[0] ? ",\n  \"timed\": [\n" : ",\n", "    {\"plan\": ",
                   quoted(timed.name), ", \"predicted_s\": ", exact(timed.predicted),
                   ", \"median_s\": ", exact(timed.median), "}"));
  if (!plan.timed.empty()) append(s, "\n  ]");
  if (plan.prediction) append(s, json_of(*plan.prediction));
  return s + "\n}\n";
}

Plan read_plan(const std::string& path) {
  constexpr std::uint64_t longest = 4 << 20;  // bytes
  const std::string content = read_file(path, longest);
  return naming(path, [&] {
    Plan plan = parse_plan(content);
    for (Plan::Rule& rule : plan.rules) rule.origin = path;
    for (Plan::Recompute& r : plan.recomputed) r.origin = path;
    return plan;
  });
}

void write_plan(const std::string& path, const Plan& plan) { write_file(path, plan_json(plan)); }

}  // namespace lamina
