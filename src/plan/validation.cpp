// Validations as JSON: a line per plan.
#include <lamina/base/file.hpp>
#include <lamina/plan/validation.hpp>

#include <nlohmann/json.hpp>

namespace lamina {

namespace {

using Json = nlohmann::ordered_json;

Json to_json(const std::vector<Compared>& all) {
  Json j = Json::array();
  for (const Compared& c : all)
    j.push_back({{"layer", c.layer},
                 {"kind", c.kind},
                 {"predicted", c.predicted},
                 {"measured", c.measured}});
  return j;
}

Json to_json(const ValidatedPlan& p) {
  return {{"name", p.name},
          {"formulas", p.formulas},
          {"calibrated", p.calibrated},
          {"measured", p.measured},
          {"rounds", p.rounds},
          {"kernels", to_json(p.kernels)},
          {"waiting", to_json(p.waiting)}};
}

Json errors(const Validation& v, double ValidatedPlan::*predicted) {
  return {{"mean_error", v.error(predicted)}, {"kendall", v.rank_correlation(predicted)}};
}

Json name_of(const ValidatedPlan* plan) { return plan ? Json(plan->name) : Json(); }

std::string validation_json(const Validation& v) {
  const Json head = {{"schema", validation_schema},
                     {"version", validation_schema_version},
                     {"model", v.model},
                     {"cluster", v.cluster},
                     {"ranks", v.ranks},
                     {"nodes", v.nodes},
                     {"batch", v.batch},
                     {"calibrated", errors(v, &ValidatedPlan::calibrated)},
                     {"formulas", errors(v, &ValidatedPlan::formulas)},
                     {"chosen", name_of(v.chosen())},
                     {"fastest", name_of(v.fastest())}};
  // Names may be of any bytes; JSON holds UTF-8 only.
  const auto dumped = [](const Json& j) {
    return j.dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  std::string s = "{";
  for (const auto& [key, value] : head.items())
    append(s, text("\n  \"", key, "\": ", dumped(value), ','));
  append(s, "\n  \"plans\": [");
  for (std::size_t i = 0; i < v.plans.size(); ++i)
    append(s, text(i ? ",\n    " : "\n    ", dumped(to_json(v.plans[i]))));
  return s + "\n  ]\n}\n";
}

}  // namespace

void write_validation_json(const std::string& path, const Validation& validation) {
  write_file(path, validation_json(validation));
}

}  // namespace lamina
