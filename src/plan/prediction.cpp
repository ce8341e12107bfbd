// Predictions as JSON: units are seconds and bytes, a line per layer, plan and point.
#include <lamina/base/file.hpp>
#include <lamina/plan/prediction.hpp>

#include <nlohmann/json.hpp>

#include <cmath>

namespace lamina {

namespace {

using Json = nlohmann::ordered_json;

/// JSON knows no infinity: null is what does not exist.
Json number(double v) { return std::isfinite(v) ? Json(v) : Json(); }

Json components(const PredictedLayer& l) {
  return {{"seconds", l.seconds()},
          {"kernels", l.kernel_seconds()},
          {"forward", l.kernels.forward},
          {"input_grad", l.kernels.input_grad},
          {"weight_grad", l.kernels.weight_grad},
          {"recompute", l.kernels.recompute},
          {"update", l.kernels.update},
          {"collectives", l.collectives},
          {"halo", l.halo},
          {"redistribution", l.redistribution},
          {"gradients", l.gradients},
          {"reduction", l.reduction}};
}

Json to_json(const Memory& m) {
  return {{"total", m.total()},       {"parameters", m.parameters},   {"gradients", m.gradients},
          {"optimizer", m.optimizer}, {"activations", m.activations}, {"workspace", m.workspace},
          {"messages", m.messages}};
}

Json to_json(const PredictedPlan& plan, const Prediction& p) {
  const PredictedPlan* data = p.plan("data");
  Json j = {{"name", plan.name}};
  j.update(components(plan.step.total()));
  j["seconds"] = plan.step.seconds;
  j["images_per_sec"] = double(p.batch) / plan.step.seconds;
  j["times_data"] = data ? Json(data->step.seconds / plan.step.seconds) : Json();
  j["fits"] = plan.fits, j["memory"] = to_json(plan.memory);
  return j;
}

Json layer(const Prediction& p, std::size_t v) {
  const PredictedLayer& l = p.best().step.layers[v];
  const PredictedPlan* data = p.plan("data");
  const RunnerUp& next = p.runners_up[v];
  Json j = {{"layer", l.name}, {"split", l.split.text()}};
  j.update(components(l));
  if (!p.recompute.empty()) j["recomputed"] = bool(p.recompute[v]);
  j["data_seconds"] = data ? Json(data->step.layers[v].seconds()) : Json();
  j["runner_up"] = std::isfinite(next.seconds)
                       ? Json({{"split", next.split.text()}, {"slower_seconds", next.seconds}})
                       : Json();
  return j;
}

Json to_json(const ScalingPoint& p) {
  Json j = {{"devices", p.devices},
            {"batch", p.batch},
            {"data_seconds", number(p.data)},
            {"auto_seconds", number(p.best)},
            {"data_images_per_sec", p.images_per_second(p.data)},
            {"auto_images_per_sec", p.images_per_second(p.best)},
            {"bought", p.bought},
            {"data_bought", p.data_bought}};
  if (!p.reason.empty()) j["reason"] = p.reason;
  return j;
}

Json turns(const std::vector<ScalingPoint>& points) {
  const TurningPoints t = turning_points(points);
  const auto devices = [](int n) { return n > 0 ? Json(n) : Json(); };
  return {{"data_fastest_devices", devices(t.fastest)},
          {"auto_faster_devices", devices(t.overtaken)}};
}

/// Names may be of any bytes; JSON holds UTF-8 only.
std::string dumped(const Json& j) { return j.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string lines(const std::vector<Json>& items) {
  std::string s = "[";
  for (std::size_t i = 0; i < items.size(); ++i)
    append(s, text(i ? ",\n    " : "\n    ", dumped(items[i])));
  return s + (items.empty() ? "]" : "\n  ]");
}

std::string prediction_json(const Prediction& p) {
  std::string s = "{";
  const auto member = [&](const char* name, const std::string& value) {
    append(s, text(s.size() > 1 ? ",\n  \"" : "\n  \"", name, "\": ", value));
  };
  const auto plain = [&](const char* name, const Json& value) { member(name, dumped(value)); };
  plain("schema", prediction_schema), plain("version", prediction_schema_version);
  plain("model", p.model), plain("cluster", p.cluster), plain("device", p.device);
  plain("dtype", p.dtype), plain("devices", p.devices), plain("batch", p.batch);
  plain("micro_batches", p.micro_batches), plain("shard_optimizer", p.shard_optimizer);
  plain("bought", p.bought), plain("data_bought", p.data_bought);
  plain("device_memory", p.device_memory);
  plain("searcher", p.searcher), plain("steps_tried", p.steps_tried);
  plain("convergence", p.convergence);
  std::vector<Json> plans, layers;
  for (const PredictedPlan& plan : p.plans) plans.push_back(to_json(plan, p));
  for (std::size_t v = 1; v < p.best().step.layers.size(); ++v) layers.push_back(layer(p, v));
  member("plans", lines(plans)), member("layers", lines(layers));
  const auto scaling = [&](const char* name, const std::vector<ScalingPoint>& points) {
    if (points.empty()) return;
    std::vector<Json> items;
    for (const ScalingPoint& point : points) items.push_back(to_json(point));
    member(name, lines(items));
  };
  scaling("strong", p.strong), scaling("weak", p.weak), scaling("sweep", p.sweep);
  if (!p.strong.empty()) plain("strong_turns", turns(p.strong));
  if (!p.weak.empty()) plain("weak_turns", turns(p.weak));
  return s + "\n}\n";
}

}  // namespace

void write_prediction_json(const std::string& path, const Prediction& prediction) {
  write_file(path, prediction_json(prediction));
}

}  // namespace lamina
