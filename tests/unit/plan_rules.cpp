// Plans by hand: how splits and patterns are written, which rule wins, what is refused and how.
#include "catch.hpp"
#include "support/error_of.hpp"

#include <lamina/base/pattern.hpp>
#include <lamina/layers/relu.hpp>
#include <lamina/network/models.hpp>
#include <lamina/plan/plan.hpp>

#include <fstream>

using namespace lamina;
using lamina::test::error_of;

namespace {

Split used(const std::vector<Decision>& decisions, std::string_view layer) {
  for (const Decision& d : decisions)
    if (d.layer == layer) return d.used;
  FAIL("no layer " << layer);
  return {};
}

std::string plan_with(const std::string& layers) {
  return R"({"schema": "lamina-plan", "version": 1, "ranks": 4, "layers": {)" + layers + "}}";
}

}  // namespace

TEST_CASE("splits are read as they are written") {
  for (const Split& s : {Split{}, Split{.batch = 2}, Split{.input = 3, .width = 2},
                         Split{.batch = 2, .channel = 3, .input = 4, .height = 5, .width = 6}})
    CHECK(parse_split(s.text()) == s);
  CHECK(parse_split("height:2,batch:4") == Split{.batch = 4, .height = 2});
  CHECK(parse_split("batch:1") == Split{});
}

TEST_CASE("a split that is none says what is wrong with it") {
  const auto why = [](const char* s) { return error_of([&] { parse_split(s); }); };
  CHECK(why("heigth:2") ==
        "split 'heigth:2': unknown axis 'heigth' (did you mean height?): "
        "expected batch, channel, input, height or width");
  CHECK(why("height:2,height:2") == "split 'height:2,height:2': height is given twice");
  for (const char* s :
       {"batch:0", "batch:-1", "batch:two", "batch:2x", "batch:", "batch: 2", "batch:99999999999"})
    CHECK_THAT(why(s),
               ContainsSubstring("expected a whole number of parts from 1 to 65536, got '"));
  for (const char* s : {"", "2", "batch", "batch:2,", ",batch:2", "batch=2"})
    CHECK_THAT(why(s), ContainsSubstring("expected AXIS:PARTS, as in batch:2,channel:2"));
  CHECK_THAT(why("batch:65536,height:65536"), ContainsSubstring("more than 65536 parts"));
}

TEST_CASE("patterns match names") {
  for (const char* p : {"conv1", "conv?", "conv*", "*", "c*1", "*v*", "conv1*", "**1", "?onv1"})
    CHECK(matches(p, "conv1"));
  for (const char* p : {"conv", "conv1?", "onv1", "*2", "", "c*2*1", "CONV1", "conv1.*"})
    CHECK_FALSE(matches(p, "conv1"));
  CHECK(matches("*.conv2", "layer1.0.conv2"));
  CHECK(matches("a*b*c", "abbxbc"));
  CHECK_FALSE(matches("a*b*c", "abbxb"));
}

TEST_CASE("the last rule that matches wins, and what is not said is split by samples") {
  const Network net = lenet();
  Plan plan{.ranks = 4};
  plan.split("conv*", {.batch = 2, .height = 2}).split("fc?", {.channel = 4});
  plan.split("conv1", {.height = 4}).split("fc1", {.batch = 2});
  const auto decisions = decide(plan, net, 8);
  REQUIRE(decisions.size() == net.graph().size());
  CHECK(used(decisions, "conv1") == Split{.height = 4});
  CHECK(used(decisions, "conv2") == Split{.batch = 2, .height = 2});
  CHECK(used(decisions, "fc1") == Split{.batch = 2});
  CHECK(used(decisions, "fc3") == Split{.channel = 4});
  CHECK(used(decisions, "relu1") == Split{.batch = 4});
  CHECK(splits_of(decisions).front() == Split{.batch = 4});
  // The other way round the pattern wins.
  plan.split("fc*", {.input = 2});
  CHECK(used(decide(plan, net, 8), "fc1") == Split{.input = 2});
}

TEST_CASE("a rule for no layer is an error that suggests one") {
  const Network net = lenet();
  const auto why = [&](const char* layers, const char* origin = "") {
    return error_of([&] { decide(Plan{.ranks = 2}.split(layers, {.batch = 2}, origin), net, 8); });
  };
  CHECK(why("fc11") == "there is no layer 'fc11' (did you mean fc1?)");
  CHECK(why("comv*", "my.json") == "my.json: no layer matches 'comv*' (did you mean conv1?)");
  CHECK(why("quite.unlike.any") == "there is no layer 'quite.unlike.any'");
  CHECK(why("input").empty());  // it is split so
  CHECK(error_of([&] { decide(Plan{.ranks = 2}.split("input", {.height = 2}, "x"), net, 8); }) ==
        "x: 'input' is no layer: it is always split by batch over all ranks: expected batch:2, or "
        "shares for as many parts, got height:2");
  CHECK(why("*").empty());  // all but the input
}

TEST_CASE("an impossible split is an error, or falls back and says why") {
  const Network net = lenet();
  Plan plan{.ranks = 4};
  plan.split("fc1", {.height = 2}, "my.json");
  CHECK(error_of([&] { decide(plan, net, 8); }) ==
        "my.json: fc1 (Linear): cannot be split by height: its output has no rows or columns");
  const auto decisions = decide(plan, net, 8, true);
  CHECK(used(decisions, "fc1") == Split{.batch = 4});
  for (const Decision& d : decisions) {
    CHECK(d.reason.empty() == (d.layer != "fc1"));
    if (d.layer == "fc1")
      CHECK(d.reason == "cannot be split by height: its output has no rows or columns");
    if (d.layer == "fc1") CHECK(d.requested == Split{.height = 2});
  }
  const auto why = [&](const Split& s) {
    return error_of([&] { decide(Plan{.ranks = 4}.split("conv1", s), net, 8); });
  };
  CHECK_THAT(why({.batch = 8}),
             ContainsSubstring("conv1 (Conv2D): ") && ContainsSubstring("there are 4 ranks"));
  CHECK_THAT(why({.batch = 9}), ContainsSubstring("there are only 8 samples to be cut"));
  CHECK(why({.batch = 3}).empty());  // the fourth rank has nothing to do
  const Shape large{1 << 16, 1 << 16, 1, 1};
  CHECK_THAT(why_illegal(ReLU({}), {&large, 1}, {.batch = 1 << 16, .channel = 1 << 16}, 4),
             ContainsSubstring("but there are 4 ranks"));
}

TEST_CASE("a plan survives its file") {
  Plan plan{.model = "le \"net\"", .ranks = 6};
  plan.split("conv*", {.batch = 3, .height = 2}).split("fc1", {.channel = 6}).split("fc2", {});
  const std::string path = "plan_rules.json";
  write_plan(path, plan);
  const Plan read = read_plan(path);
  std::remove(path.c_str());
  CHECK(read.model == plan.model);
  CHECK(read.ranks == plan.ranks);
  REQUIRE(read.rules.size() == plan.rules.size());
  for (std::size_t i = 0; i < plan.rules.size(); ++i) {
    CHECK(read.rules[i].layers == plan.rules[i].layers);
    CHECK(read.rules[i].split == plan.rules[i].split);
    CHECK(read.rules[i].origin == path);
  }
  CHECK(plan_json(read) == plan_json(plan));
  CHECK(plan_json(Plan{.ranks = 2}.split("conv1", {.height = 2})) ==
        "{\n  \"schema\": \"lamina-plan\",\n  \"version\": 1,\n  \"ranks\": 2,\n"
        "  \"layers\": {\n    \"conv1\": \"height:2\"\n  }\n}\n");
  CHECK(parse_plan(plan_json(Plan{})).rules.empty());
  CHECK_FALSE(parse_plan(plan_json(Plan{})).shard_optimizer);
  CHECK(parse_plan(plan_json(Plan{})).micro_batches == 1);
}

TEST_CASE("a plan's options survive its file") {
  Plan plan{.ranks = 2};
  plan.recompute("conv*").recompute("relu1").shard_optimizer = true;
  plan.micro_batches = 4;
  CHECK(plan_json(plan) ==
        "{\n  \"schema\": \"lamina-plan\",\n  \"version\": 1,\n  \"ranks\": 2,\n"
        "  \"layers\": {},\n  \"recompute\": [\n    \"conv*\",\n    \"relu1\"\n  ],\n"
        "  \"shard_optimizer\": true,\n  \"micro_batches\": 4\n}\n");
  const std::string path = "plan_options.json";
  write_plan(path, plan);
  const Plan read = read_plan(path);
  std::remove(path.c_str());
  CHECK(plan_json(read) == plan_json(plan));
  REQUIRE(read.recomputed.size() == 2);
  CHECK(read.recomputed[1].origin == path);
}

TEST_CASE("why a plan was chosen survives its file, to the last digit") {
  Plan plan{.ranks = 2};
  plan.split("conv1", {.height = 2});
  plan.timed = {{"auto", 1.0 / 3, 0.1}, {"data", 5e-324, 1.0 / 7}};
  plan.prediction = {.cluster = "two \"boxes\"", .dtype = "bf16", .batch = 64, .seconds = 2.0 / 3};
  plan.prediction->layers = {{"input", {.batch = 2}, {.c = 3, .h = 8, .w = 6}},
                             {"conv1", {.height = 2}, {}, {1.0 / 3, 0, 1e-7, 0.1, 1e22}, 1.0 / 9}};
  const Plan read = parse_plan(plan_json(plan));
  CHECK(plan_json(read) == plan_json(plan));
  REQUIRE(read.timed.size() == 2);
  CHECK(read.timed[0].name == "auto");
  CHECK(read.timed[0].predicted == 1.0 / 3);
  CHECK(read.timed[1].predicted == 5e-324);
  CHECK(read.timed[1].median == 1.0 / 7);
  REQUIRE(read.prediction);
  CHECK(read.prediction->cluster == "two \"boxes\"");
  CHECK(read.prediction->dtype == "bf16");
  CHECK(read.prediction->batch == 64);
  CHECK(read.prediction->seconds == 2.0 / 3);
  REQUIRE(read.prediction->layers.size() == 2);
  CHECK(read.prediction->layers[0].output == Shape{1, 3, 8, 6});
  const PlanPrediction::Layer& conv = read.prediction->layers[1];
  CHECK(conv.name == "conv1");
  CHECK(conv.split == Split{.height = 2});
  CHECK(conv.passes.forward == 1.0 / 3);
  CHECK(conv.passes.input_grad == 0);
  CHECK(conv.passes.weight_grad == 1e-7);
  CHECK(conv.passes.recompute == 0.1);
  CHECK(conv.passes.update == 1e22);
  CHECK(conv.redistribution == 1.0 / 9);
  CHECK(parse_plan(plan_json(Plan{.ranks = 2})).prediction == std::nullopt);
}

TEST_CASE("layers to recompute are found by pattern") {
  const Network net = lenet({});
  const auto decisions = decide(Plan{.ranks = 1}.recompute("conv*").recompute("fc1"), net, 4);
  std::vector<std::string> names;
  for (const Decision& d : decisions)
    if (d.recompute) names.push_back(d.layer);
  CHECK(names == std::vector<std::string>{"conv1", "conv2", "fc1"});
  CHECK(recompute_of(decisions).size() == net.graph().size());
  CHECK(recompute_of(decide(plan_of(decisions, "", 1), net, 4)) == recompute_of(decisions));
  CHECK(error_of([&] { decide(Plan{.ranks = 1}.recompute("comv*", "my.json"), net, 4); }) ==
        "my.json: no layer matches 'comv*' (did you mean conv1?)");
}

TEST_CASE("decisions become a plan that decides the same") {
  const Network net = alexnet({.classes = 10, .width = 1.0 / 16});
  const auto decisions = decide(built_in_plan("owt", net, 8, 4), net, 8);
  const Plan plan = plan_of(decisions, "alexnet", 4);
  CHECK(plan.rules.size() == net.graph().size() - 1);
  const auto again = decide(parse_plan(plan_json(plan)), net, 8);
  CHECK(splits_of(again) == splits_of(decisions));
}

TEST_CASE("a file that is no good plan says so in one line") {
  const auto why = [](const std::string& json) { return error_of([&] { parse_plan(json); }); };
  CHECK_THAT(why(""), ContainsSubstring("not valid JSON"));
  CHECK_THAT(why("{\"schema\": \"lamina-plan\""), ContainsSubstring("not valid JSON, near byte"));
  CHECK_THAT(why("[]"), ContainsSubstring("expected schema 'lamina-plan'"));
  CHECK_THAT(why("{\"schema\": \"lamina-profile\"}"),
             ContainsSubstring("not a plan: expected schema"));
  CHECK_THAT(why(R"({"schema": "lamina-plan", "version": 2})"),
             ContainsSubstring("of the plan schema"));
  CHECK_THAT(why(R"({"schema": "lamina-plan"})"), ContainsSubstring("'version'"));
  CHECK_THAT(why(R"({"schema": "lamina-plan", "version": 1, "layers": {}})"),
             ContainsSubstring("'ranks'"));
  CHECK_THAT(why(R"({"schema": "lamina-plan", "version": 1, "ranks": 0, "layers": {}})"),
             ContainsSubstring("ranks: expected a whole number from 1 to"));
  CHECK_THAT(why(R"({"schema": "lamina-plan", "version": 1, "ranks": 2, "layers": []})"),
             ContainsSubstring("layers: expected an object"));
  CHECK_THAT(why(R"({"schema": "lamina-plan", "version": 1, "ranks": 2, "layer": {}})"),
             ContainsSubstring("'layer' is no member of a plan"));
  CHECK(why(plan_with(R"("a": "batch:2", "b": "none")")).empty());
  CHECK(why(plan_with(R"("a": "batch:2", "a": "batch:2")")) == "'a' is given twice");
  CHECK_THAT(why(plan_with(R"("a": "rows:2")")),
             ContainsSubstring("layer 'a': ") && ContainsSubstring("'rows'"));
  CHECK(why(plan_with(R"("a": "batch:5")")) ==
        "layer 'a': split batch:5 has 5 parts, but the plan is for 4 ranks");
  CHECK_THAT(why(plan_with(R"("a": 2)")), ContainsSubstring("layer 'a': expected a split such as"));
  CHECK_THAT(why(plan_with(R"("a": {"batch": 2})")),
             ContainsSubstring("layer 'a': expected a split"));
  CHECK_THAT(why(plan_with(R"("a": {"b": {"c": {"d": {"e": {}}}}})")), ContainsSubstring("nested"));
  CHECK_THAT(why(plan_with(R"("": "batch:2")")), ContainsSubstring("expected the name of a layer"));
  const auto with = [&](const std::string& member) {
    return why(R"({"schema": "lamina-plan", "version": 1, "ranks": 2, "layers": {}, )" + member +
               "}");
  };
  CHECK(with(R"("recompute": ["a*", "b"], "shard_optimizer": false)").empty());
  for (const char* value : {"true", "\"a\"", "{}"})
    CHECK_THAT(with(text("\"recompute\": ", value)),
               ContainsSubstring("recompute: expected a list of layers or patterns, got "));
  CHECK(with(R"("recompute": ["a", 1])") ==
        "recompute[1]: expected the name of a layer, or a pattern, got 1");
  CHECK(with(R"("recompute": [""])") ==
        "recompute[0]: expected the name of a layer, or a pattern, got \"\"");
  CHECK_THAT(with(R"("shard_optimizer": 1)"),
             ContainsSubstring("shard_optimizer: expected true or false"));
  CHECK_THAT(with(R"("micro_batches": 0)"), ContainsSubstring("micro_batches: expected "));
  CHECK(with(R"("timed": 1)") == "timed: expected a list, got 1");
  CHECK(with(R"("timed": [{"plan": "a", "predicted_s": -1, "median_s": 1}])") ==
        "timed[0].predicted_s: expected a number of at least 0, got -1");
  CHECK(with(R"("timed": [{"plan": "a", "seconds": 1}])") ==
        "'seconds' is no member of a plan that was timed: expected plan, predicted_s, median_s");
  CHECK(with(R"("prediction": [])") == "prediction: expected an object, got a list of 0");
  CHECK(with(R"("prediction": {"batch": 1})") == "prediction: expected a member 'cluster'");
  CHECK(with(R"("prediction": {"steps": 1})") ==
        "'steps' is no member of a prediction: expected cluster, dtype, batch, step_s, layers");
  const auto layer = [&](const std::string& s) {
    return with(
        R"("prediction": {"cluster": "c", "dtype": "f32", "batch": 2, "step_s": 1, "layers": [)" +
        s + "]}");
  };
  const std::string a = R"({"layer": "a", "output": [1, 2, 3], "split": )";
  CHECK(layer(a + R"("batch:2"})").empty());
  CHECK(layer(R"({"layer": "a", "split": "batch:2"})") == "");  // of an older version
  CHECK(layer(R"({"layer": "a", "split": "batch:2", "output": [1, 2]})") ==
        "prediction.layers[0].output: expected channels, height and width, got a list of 2");
  CHECK(layer(a + R"("batch:2", "forward": "1"})") ==
        "prediction.layers[0].forward: expected a number of at least 0, got \"1\"");
  CHECK(layer(a + R"("batch:3"})") ==
        "prediction.layers[0].split: expected a split of 2 ranks, got \"batch:3\"");
  CHECK_THAT(layer(a + R"("rows:2"})"),
             ContainsSubstring("prediction of layer 'a': ") && ContainsSubstring("'rows'"));
  CHECK(layer(a + R"("none", "backward": 1})")
            .starts_with("'backward' is no member of a layer's prediction: expected layer, split"));
  CHECK_THAT(error_of([] { read_plan("there/is/none.json"); }),
             ContainsSubstring("there/is/none.json"));
}

TEST_CASE("no byte of a plan can do harm", "[fuzz]") {
  Plan plan{.model = "lenet", .ranks = 4};
  plan.split("conv*", {.batch = 2, .height = 2}).split("f", {});
  plan.timed = {{"auto", 1, 2}};
  plan.prediction = {.cluster = "c", .layers = {{"f", {.batch = 2}, {}, {.forward = 0.5}, 0.25}}};
  const std::string good = plan_json(plan);
  REQUIRE(error_of([&] { parse_plan(good); }).empty());
  for (std::size_t i = 0; i < good.size(); ++i) {
    const bool whole = i + 1 == good.size();  // all but the last newline
    CHECK(error_of([&] { parse_plan(good.substr(0, i)); }).empty() == whole);
    for (const char c : {'\0', '"', '{', '}', ':', '9', '\xff', ','}) {
      std::string bad = good;
      bad[i] = c;
      const std::string why = error_of([&] { parse_plan(bad); });
      CHECK(why.find('\n') == std::string::npos);
      CHECK(why.size() < 600);
    }
  }
}

TEST_CASE("splits with shares are written and read") {
  const Split s = parse_split("batch:3:1,channel:2,height:1:2:1");
  CHECK(s == Split{.batch = 2,
                   .channel = 2,
                   .height = 3,
                   .shares = {.batch = {3, 1}, .height = {1, 2, 1}}});
  CHECK(s.ways() == 12);
  CHECK(s.text() == "batch:3:1,channel:2,height:1:2:1");
  CHECK(parse_split("batch:6:2") == parse_split("batch:3:1"));  // in lowest terms
  CHECK(parse_split("width:5:5:5") == Split{.width = 3});
  const auto why = [](const char* split) { return error_of([&] { parse_split(split); }); };
  CHECK(why("batch:3:0") ==
        "split 'batch:3:0': expected shares that are whole numbers from 1 to 65536, got '0'");
  CHECK_THAT(why("batch:3:"), ContainsSubstring("got ''"));
  CHECK_THAT(why("batch:3:x"), ContainsSubstring("got 'x'"));
  CHECK_THAT(why("batch:3:-1"), ContainsSubstring("got '-1'"));
  CHECK(why("batch:0") ==
        "split 'batch:0': expected a whole number of parts from 1 to 65536, got '0'");
}

TEST_CASE("a plan with shares survives its file and says what is wrong") {
  const Network net = lenet();
  Plan plan{.ranks = 4};
  plan.split("input", parse_split("batch:3:1:2:2"));
  plan.split("conv*", parse_split("batch:2,height:3:1"));
  const Plan read = parse_plan(plan_json(plan));
  CHECK(plan_json(read) == plan_json(plan));
  const auto decisions = decide(read, net, 8);
  CHECK(decisions[0].used.text() == "batch:3:1:2:2");
  CHECK(used(decisions, "conv1").text() == "batch:2,height:3:1");
  CHECK(used(decisions, "fc1").text() == "batch:3:1:2:2");  // as the input
  const Plan again = plan_of(decisions, "lenet", 4);
  CHECK(splits_of(decide(again, net, 8)) == splits_of(decisions));
  const auto why = [&](const char* layer, const Split& split) {
    return error_of([&] { decide(Plan{.ranks = 4}.split(layer, split), net, 8); });
  };
  CHECK_THAT(why("conv1", {.batch = 2, .shares = {.batch = {3, 1, 1}}}),
             ContainsSubstring("expected a share for each of 2 parts, got 3"));
  CHECK_THAT(why("conv1", {.batch = 2, .shares = {.batch = {3, 0}}}),
             ContainsSubstring("expected shares of at least 1, got 0"));
  CHECK_THAT(why("fc3", parse_split("channel:3:1:1:1:1:1:1:1:1:1:1")),
             ContainsSubstring("there are only 10 channels to be cut"));
  CHECK_THAT(why("input", parse_split("batch:3:1")), ContainsSubstring("expected batch:4"));
}
