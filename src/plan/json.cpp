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
constexpr std::int64_t most_ranks = 1 << 16;
constexpr std::string_view members[] = {"schema", "version",   "model",          "ranks",
                                        "layers", "recompute", "shard_optimizer"};

}  // namespace

Plan parse_plan(const std::string& json) {
  const Json j = JsonPart::parse_written(json, "plan", schema, version, 4, "layer", 10000);
  const JsonPart whole(j);
  for (const auto& [key, value] : j.items())
    check(
        std::ranges::find(members, key) != std::end(members), "'", one_line(key),
        "' is no member of a plan: expected schema, version, model, ranks, layers, recompute and ",
        "shard_optimizer");
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
  return plan;
}

std::string plan_json(const Plan& plan) {
  const auto quoted = [](const std::string& s) {
    return Json(s).dump(-1, ' ', false, Json::error_handler_t::replace);
  };
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
