// The report's drawings: their structure word for word, and their marks read back as numbers.
#include "../../src/report/drawings/svg.hpp"
#include "../catch.hpp"
#include "../support/golden.hpp"
#include "profile_made.hpp"

#include <lamina/profile/report.hpp>
#include <lamina/profile/roofline.hpp>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <sstream>

using namespace lamina;
using namespace lamina::test;
using namespace lamina::detail;

namespace {

struct Element {
  std::string tag, words;  // its own words, entities resolved
  std::map<std::string, std::string> attributes;
  int depth = 0, parent = -1;

  std::string at(const std::string& name) const {
    const auto found = attributes.find(name);
    return found == attributes.end() ? "" : found->second;
  }
  double number(const std::string& name) const { return std::stod(at(name)); }
  bool is(const std::string& kind) const {
    return (" " + at("class") + " ").find(" " + kind + " ") != std::string::npos;
  }
};

std::string resolved(const std::string& s) {
  std::string out;
  for (std::size_t i = 0; i < s.size(); ++i) {
    if (s[i] != '&') {
      out += s[i];
      continue;
    }
    bool known = false;
    for (const auto& [entity, c] :
         {std::pair{"&lt;", '<'}, {"&gt;", '>'}, {"&amp;", '&'}, {"&quot;", '"'}})
      if (s.compare(i, std::strlen(entity), entity) == 0)
        out += c, i += std::strlen(entity) - 1, known = true;
    check(known, "a bare & in ", s.substr(i, 20));
  }
  return out;
}

/// Reads what is well-formed as XML, as far as the drawings use it; throws otherwise.
std::vector<Element> parse(const std::string& xml) {
  std::vector<Element> all;
  std::vector<int> open;
  const auto until = [&](std::size_t from, const char* stop) {
    const std::size_t end = xml.find_first_of(stop, from);
    check(end != std::string::npos, "it ends within an element");
    return end;
  };
  std::size_t i = 0;
  while (i < xml.size()) {
    if (xml[i] != '<') {
      const std::size_t end = std::min(xml.find('<', i), xml.size());
      const std::string words = resolved(xml.substr(i, end - i));
      if (words.find_first_not_of(" \n") != std::string::npos) {
        check(!open.empty(), "words outside of all elements: ", words);
        all[std::size_t(open.back())].words += words;
      }
      i = end;
    } else if (xml[i + 1] == '/') {
      const std::size_t end = until(i, ">");
      const std::string tag = xml.substr(i + 2, end - i - 2);
      check(!open.empty() && all[std::size_t(open.back())].tag == tag, "</", tag, "> ends nothing");
      open.pop_back();
      i = end + 1;
    } else {
      Element e;
      e.depth = int(open.size()), e.parent = open.empty() ? -1 : open.back();
      check(e.depth > 0 || all.empty(), "two roots");
      std::size_t end = until(i, " />");
      e.tag = xml.substr(i + 1, end - i - 1);
      while (xml[end] == ' ') {
        const std::size_t equals = until(end, "="), quote = until(equals + 2, "\"<");
        check(xml[equals + 1] == '"' && xml[quote] == '"', "a bad attribute in <", e.tag, ">");
        const std::string name = xml.substr(end + 1, equals - end - 1);
        check(
            e.attributes.emplace(name, resolved(xml.substr(equals + 2, quote - equals - 2))).second,
            "two attributes ", name);
        end = quote + 1;
      }
      const bool empty = xml[end] == '/';
      check(xml[end + empty] == '>', "<", e.tag, "> does not end");
      all.push_back(e);
      if (!empty) open.push_back(int(all.size()) - 1);
      i = end + empty + 1;
    }
  }
  check(open.empty() && !all.empty(), "an element is not closed");
  return all;
}

/// Tags, classes, data and words, without places and sizes.
std::string structure(const std::string& svg) {
  std::string out;
  if (svg.empty()) return "nothing\n";
  for (const Element& e : parse(svg)) {
    out += std::string(std::size_t(2 * e.depth), ' ') + e.tag;
    if (!e.at("class").empty()) out += " ." + e.at("class");
    for (const auto& [name, value] : e.attributes)
      if (name.rfind("data-", 0) == 0) out += " " + name + "=" + value;
    std::string words = e.tag == "style" ? "" : e.words;
    for (std::size_t n = 0; (n = words.find('\n', n)) != std::string::npos;)
      words.replace(n, 1, " | ");
    if (!words.empty()) out += ": " + words;
    out += '\n';
  }
  return out;
}

std::string all_drawings(const Profile& p, const Profile* other, DrawingOptions options = {}) {
  const Profile& last = other ? *other : p;
  return draw_roofline(p, other, options) + "\f" + draw_communication(p, other, options) + "\f" +
         draw_timeline(last, options) + "\f" + draw_memory(last, options);
}

std::vector<std::string> each(const std::string& drawings) {
  std::vector<std::string> parts(1);
  for (const char c : drawings)
    if (c == '\f')
      parts.emplace_back();
    else
      parts.back() += c;
  return parts;
}

std::string structures(const std::string& drawings) {
  std::string out;
  for (const std::string& svg : each(drawings)) out += structure(svg) + "\n";
  return out;
}

std::vector<Element> of(const std::vector<Element>& all, const std::string& attribute) {
  std::vector<Element> some;
  for (const Element& e : all)
    if (e.attributes.count(attribute)) some.push_back(e);
  return some;
}
std::vector<Element> of_kind(const std::vector<Element>& all, const std::string& kind) {
  std::vector<Element> some;
  for (const Element& e : all)
    if (e.is(kind)) some.push_back(e);
  return some;
}

/// From pixels to values, by the axis' own labels.
struct AxisLabels {
  double pixel0 = 0, pixel1 = 0, value0 = 0, value1 = 0;

  AxisLabels(const std::vector<Element>& all, const std::string& side, const std::string& along,
             double baseline) {
    for (const Element& e : all)
      if (e.is("tick") && e.is(side)) {
        if (value0 == 0) pixel0 = e.number(along) - baseline, value0 = std::stod(e.words);
        pixel1 = e.number(along) - baseline, value1 = std::stod(e.words);
      }
  }
  double operator()(double pixel) const {
    const double part = (pixel - pixel0) / (pixel1 - pixel0);
    return value0 * std::pow(value1 / value0, part);
  }
};

std::pair<double, double> place(const Element& e) {
  if (e.tag == "circle") return {e.number("cx"), e.number("cy")};
  double x = 0, y = 0;
  REQUIRE(std::sscanf(e.at("transform").c_str(), "translate(%lf %lf)", &x, &y) == 2);
  return {x, y};
}

const std::string& title_of(const std::vector<Element>& all, const Element& e) {
  for (std::size_t i = 0; i + 1 < all.size(); ++i)
    if (all[i].attributes == e.attributes && all[i + 1].tag == "title") return all[i + 1].words;
  throw Error("a mark without a title");
}

}  // namespace

TEST_CASE("drawings have the structure that was approved", "[golden][drawings]") {
  for (const int ranks : {1, 2}) {
    const Profile p = made_profile_on_machine(ranks);
    golden(text("drawings-", ranks, ".svg.txt"), structures(all_drawings(p, nullptr)));
  }
  const Profile before = made_profile_on_machine(2);
  Profile after = before;
  after.rows[0].time.mean *= 0.5;
  after.rows.erase(after.rows.begin() + 4);
  after.rows[3].name = "renamed";
  golden("drawings-compared.svg.txt", structures(all_drawings(before, &after)));
}

TEST_CASE("a dot lies at its intensity and speed", "[drawings]") {
  const Profile p = made_profile_on_machine(2);
  const auto all = parse(draw_roofline(p, nullptr, {}));
  const AxisLabels x(all, "middle", "x", 0), y(all, "end", "y", 4);
  const auto dots = of(all, "data-row");
  std::size_t with_work = 0;
  for (std::size_t i = 0; i < p.rows.size(); ++i) {
    const ProfileRow& r = p.rows[i];
    std::vector<Element> its;
    for (const Element& e : dots)
      if (e.at("data-row") == text(i)) its.push_back(e);
    INFO(r.name << " " << name(r.pass));
    REQUIRE(its.size() == (r.work.flops > 0 ? 1 : 0));
    if (its.empty()) continue;
    ++with_work;
    const auto [px, py] = place(its[0]);
    CHECK(x(px) == Approx(r.work.intensity()).epsilon(0.01));
    CHECK(y(py) == Approx(r.flops_per_second() / 1e9).epsilon(0.01));
    CHECK(its[0].is(text("bound-", name(roof(p, r).bound))));
    CHECK(title_of(all, its[0]).find(r.name) == 0);
  }
  CHECK(with_work == 8);
}

TEST_CASE("ceilings lie where they were measured", "[drawings]") {
  const Profile p = made_profile_on_machine();
  const auto all = parse(draw_roofline(p, nullptr, {}));
  const AxisLabels x(all, "middle", "x", 0), y(all, "end", "y", 4);
  std::vector<double> flat, rates;
  for (const Element& e : of_kind(all, "roof")) {
    const double x1 = e.number("x1"), y1 = e.number("y1"), x2 = e.number("x2"), y2 = e.number("y2");
    if (y1 == y2) {
      flat.push_back(y(y1));
    } else {
      rates.push_back(y(y1) / x(x1));
      CHECK(y(y2) / x(x2) == Approx(rates.back()).epsilon(0.01));
    }
  }
  REQUIRE(rates.size() == 4);
  REQUIRE(flat.size() == 4);  // without that of f64
  const double bandwidths[] = {850, 300, 60, 20}, peaks[] = {200, 100, 180, 160};
  for (int i = 0; i < 4; ++i) {
    CHECK(rates[std::size_t(i)] == Approx(bandwidths[i]).epsilon(0.02));
    CHECK(flat[std::size_t(i)] == Approx(peaks[i]).epsilon(0.01));
  }
}

TEST_CASE("a dot above its roof is flagged, with the reason where there is one", "[drawings]") {
  Profile p = made_profile_on_machine();
  for (ProfileRow& r : p.rows) r.time.mean = r.time.mean > 0 ? 1 : 0;
  for (const std::size_t i : {std::size_t(0), std::size_t(5)})  // the second one is Winograd's
    p.rows[i].time.mean = p.rows[i].work.flops / 300e9;
  const auto all = parse(draw_roofline(p, nullptr, {}));
  for (const Element& e : of(all, "data-row")) {
    const std::string row = e.at("data-row");
    CHECK(e.is("above") == (row == "0" || row == "5"));
    CHECK(e.is("unexplained") == (row == "0"));
  }
  for (const Element& e : of(all, "data-row"))
    if (e.at("data-row") == "5") CHECK_THAT(title_of(all, e), ContainsSubstring("Winograd"));
}

TEST_CASE("any name can be drawn", "[drawings]") {
  CHECK(escape_xml("a<b & \"c\">") == "a&lt;b &amp; &quot;c&quot;&gt;");
  CHECK(escape_xml("\x01\xFFtail\xC3\xA9\xE2\x82") ==
        "\xEF\xBF\xBDtail\xC3\xA9\xEF\xBF\xBD\xEF\xBF\xBD");
  CHECK(escape_xml("\xED\xA0\x80") == "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");  // a surrogate
  Profile p = made_profile_on_machine(2);
  const std::string bad = "</title><script>&\"'\xFF\xC0\x80";
  for (ProfileRow& r : p.rows) r.name = r.type = r.algorithm = r.describe = bad;
  for (LayerMemory& m : p.layer_memory) m.name = m.type = bad;
  for (std::string& s : p.layers) s = bad;
  for (ComputeCeiling& c : p.machine->compute) c.name = bad;
  for (MemoryCeiling& m : p.machine->memory) m.level = bad;
  p.model = bad;
  for (const bool standalone : {false, true})
    for (const std::string& svg : each(all_drawings(p, &p, {standalone}))) {
      CHECK_NOTHROW(parse(svg));
      CHECK(svg.find('\xFF') == std::string::npos);
      CHECK(svg.find("<script") == std::string::npos);
    }
}

TEST_CASE("no row can put a dot nowhere", "[drawings]") {
  const double inf = std::numeric_limits<double>::infinity();
  Profile p = made_profile_on_machine(2);
  p.rows[0].time = {}, p.rows[1].work.bytes = 0, p.rows[2].work.flops = 0, p.rows[3].wire_bytes = 1;
  p.rows[3].comm.mean = 1, p.rows[4].work = {inf, 1}, p.rows[5].work = {},
  p.rows[6].work = {1, inf};
  p.layer_memory[1].memory.parameters = 1;
  p.timeline[0][0].end = std::nan("");
  p.machine->comm[0].seconds = 0;
  for (const std::string& svg : each(all_drawings(p, nullptr)))
    for (const Element& e : parse(svg))
      for (const auto& [attribute, value] : e.attributes)
        if (attribute != "class" && attribute != "aria-label") {
          INFO(e.tag << " " << attribute << "=" << value);
          CHECK(value.find("nan") == std::string::npos);
          CHECK(value.find("inf") == std::string::npos);
        }
  const auto all = parse(draw_roofline(p, nullptr, {}));
  CHECK(of(all, "data-row").size() == 2);
  CHECK_THAT(of_kind(all, "note").at(0).words, ContainsSubstring("7 rows without"));
}

TEST_CASE("an empty profile has no drawings but an empty roofline", "[drawings]") {
  const auto all = parse(draw_roofline({}, nullptr, {}));
  CHECK(of_kind(all, "mark").empty());
  CHECK(draw_communication({}, nullptr, {}).empty());
  CHECK(draw_timeline({}, {}).empty());
  CHECK(draw_memory({}, {}).empty());
  CHECK(draw_communication(made_profile_on_machine(1), nullptr, {}).empty());
}

TEST_CASE("without ceilings dots are coloured by pass, and there is no file", "[drawings]") {
  const Profile p = made_profile();
  const auto all = parse(draw_roofline(p, nullptr, {}));
  CHECK(of_kind(all, "roof").empty());
  CHECK(of_kind(of(all, "data-row"), "pass-weight_grad").size() == 2);
  CHECK_THROWS_WITH(roofline_svg(p), ContainsSubstring("ceilings"));
}

TEST_CASE("a drawing of its own brings its style", "[drawings]") {
  const std::string alone = roofline_svg(made_profile_on_machine());
  CHECK(parse(alone)[0].at("xmlns") == "http://www.w3.org/2000/svg");
  CHECK_THAT(alone, ContainsSubstring(drawing_style()));
  CHECK(drawing_style().find_first_of("<&") == std::string::npos);
  CHECK_THAT(drawing_style(), ContainsSubstring("prefers-color-scheme:dark"));
  CHECK(draw_roofline(made_profile_on_machine(), nullptr, {}).find("<style") == std::string::npos);
}

TEST_CASE("a comparison joins what both have", "[drawings]") {
  const Profile before = made_profile_on_machine();
  Profile after = before;
  after.rows[0].time.mean *= 0.5;
  after.rows.erase(after.rows.begin() + 3);
  const auto all = parse(draw_roofline(before, &after, {}));
  CHECK(of(all, "data-before").size() == 8);
  CHECK(of(all, "data-row").size() == 7);
  const auto joins = of_kind(all, "joined");
  REQUIRE(joins.size() == 7);
  int longer = 0;
  for (const Element& e : joins) {
    CHECK(e.at("x1") == e.at("x2"));
    longer += e.number("y2") < e.number("y1");  // twice as fast is further up
  }
  CHECK(longer == 1);
}

TEST_CASE("communication is drawn by what it hides", "[drawings]") {
  Profile p = made_profile_on_machine(2);
  for (ProfileRow& r : p.rows)
    if (r.comm.mean > 0) r.late.mean = 0, r.transfer.mean = r.layer == 1 ? 0 : r.comm.mean;
  const auto all = parse(draw_communication(p, nullptr, {}));
  const AxisLabels x(all, "middle", "x", 0), y(all, "end", "y", 4);
  const auto dots = of(all, "data-layer");
  REQUIRE(dots.size() == 2);
  for (const Element& e : dots) {
    const bool first = e.at("data-layer") == "1";
    CHECK(e.is("hidden-all") == first);
    CHECK(e.is("hidden-little") == !first);
    double flops = 0;
    for (const ProfileRow& r : p.rows)
      if (text(r.layer) == e.at("data-layer")) flops += r.work.flops;
    const auto [px, py] = place(e);
    CHECK(x(px) == Approx(flops / (9408 * 4)).epsilon(0.01));
    CHECK(y(py) == Approx(flops / 1000e-6 / 1e9).epsilon(0.01));
  }
}

TEST_CASE("the timeline is to scale", "[drawings]") {
  const Profile p = made_profile(2);
  const auto all = parse(draw_timeline(p, {}));
  double end = 0;
  for (const auto& spans : p.timeline)
    for (const TimelineSpan& s : spans) end = std::max(end, s.end);
  const Element lane = of_kind(all, "lane").at(0);
  const double scale = lane.number("width") / end;
  const auto conv = of_kind(of(all, "data-layer"), "pass-forward").at(0);
  CHECK(conv.number("width") == Approx(1200.25e-6 * scale).margin(0.02));
  const auto waits = of_kind(of(all, "data-layer"), "wait");
  REQUIRE(waits.size() == 4);
  for (const Element& e : waits) CHECK(e.number("width") == Approx(300e-6 * scale).margin(0.02));
}

TEST_CASE("what a timeline draws together can be taken apart", "[drawings]") {
  Profile p = made_profile();
  p.layers = {"input", "a", "b", "c"};
  p.timeline = {{{1, Pass::forward, Lane::compute, "k", 0, 1, 0}}};
  // Three kernels of 0.2 to 0.4 ms in a step of a second: far less than a pixel in all.
  double at = 0.5;
  for (const int layer : {1, 2, 3}) {
    p.timeline[0].push_back({layer, Pass::forward, Lane::compute, "k", at, at + 1e-4, 0});
    at += 1e-4;
  }
  p.timeline[0][0].end = 0.25;
  p.timeline[0].push_back({3, Pass::update, Lane::compute, "k", 0.9, 1, 0});
  const auto all = parse(draw_timeline(p, {}));
  const auto divided = of(all, "data-parts");
  REQUIRE(divided.size() == 1);
  CHECK(divided[0].at("data-what") == "forward");
  CHECK_THAT(title_of(all, divided[0]), ContainsSubstring("3 kernels from a on, forward"));
  const Element lane = of_kind(all, "lane").at(0);
  std::istringstream parts(divided[0].at("data-parts"));
  for (const int expected : {1, 2, 3}) {
    int layer = 0;
    double x = 0, width = 0;
    parts >> layer >> x >> width;
    CHECK(layer == expected);
    CHECK(x == Approx(lane.number("x") + (0.5 + 1e-4 * (layer - 1)) * lane.number("width")));
    CHECK(width == Approx(1e-4 * lane.number("width")).margin(2e-5));
  }
  CHECK_FALSE(parts >> at);
  CHECK(std::stod(of(all, "data-seconds").at(0).at("data-seconds")) == 1);
  CHECK(of(parse(draw_timeline(p, {.before = true})), "data-layer").empty());
  CHECK(of(parse(draw_timeline(p, {.before = true})), "data-layer-before").size() == 3);
}

TEST_CASE("what is told below a drawing is not cut off", "[drawings]") {
  CHECK(wrapped("", 100) == std::vector<std::string>{""});
  CHECK(wrapped("one two three", text_width("one two ")) ==
        std::vector<std::string>{"one two", "three"});
  CHECK(wrapped("incomprehensibilities are", 10) ==
        std::vector<std::string>{"incomprehensibilities", "are"});
  Profile p = made_profile_on_machine(2);
  while (p.timeline.size() < 40) p.timeline.push_back(p.timeline[1]);
  p.rows.push_back(made_row(3, "fc.reshard", "Reshard", Pass::forward, 5, {0, 1e6}));
  p.rows.back().comm.mean = 2e-3, p.rows.back().wire_bytes = 5e6;
  for (const std::string& svg : each(all_drawings(p, &p))) {
    const auto all = parse(svg);
    std::istringstream box(all[0].at("viewBox"));
    double x0 = 0, y0 = 0, wide = 0, high = 0;
    box >> x0 >> y0 >> wide >> high;
    for (const Element& e : of_kind(all, "note")) {
      CHECK(e.number("x") + text_width(e.words) <= wide);
      CHECK(e.number("y") < high);
    }
  }
}

TEST_CASE("of many ranks the first and the slowest are drawn", "[drawings]") {
  Profile p = made_profile(2);
  while (p.timeline.size() < 16) p.timeline.push_back(p.timeline[1]);
  CHECK(of(parse(draw_timeline(p, {})), "data-rank").size() == 16);
  while (p.timeline.size() < 40) p.timeline.push_back(p.timeline[1]);
  p.compute.slowest = 33;
  const auto all = parse(draw_timeline(p, {}));
  const auto ranks = of(all, "data-rank");
  REQUIRE(ranks.size() == 9);
  CHECK(ranks.back().at("data-rank") == "33");
  CHECK_THAT(of_kind(all, "note").at(0).words, ContainsSubstring("31 of 40 ranks are left out"));
}

TEST_CASE("layers that only move data are told below the communication roofline", "[drawings]") {
  Profile p = made_profile_on_machine(2);
  const auto note = [&] {
    return of_kind(parse(draw_communication(p, nullptr, {})), "note").at(0).words;
  };
  CHECK(note().find("compute nothing") == std::string::npos);
  p.rows.push_back(made_row(3, "fc.reshard", "Reshard", Pass::forward, 5, {0, 1e6}));
  p.rows.back().comm.mean = 2e-3, p.rows.back().exposed.mean = 3e-3;
  p.rows.back().wire_bytes = 5e6;
  CHECK_THAT(note(),
             ContainsSubstring("as they compute nothing: 1 layer, 5 MB on the wire in 2 ms, "
                               "waited for 3 ms."));
}

TEST_CASE("memory is drawn to scale, and the rest summed up", "[drawings]") {
  Profile p = made_profile();
  p.layer_memory.clear();
  for (std::size_t i = 1; i <= 30; ++i)
    p.layer_memory.push_back(
        {text("layer", i), "Conv2D", {.parameters = 1000000 * i, .activations = 2000000 * i}});
  p.memory = {.parameters = 465000000, .activations = 135000000};
  const auto all = parse(draw_memory(p, {}));
  std::vector<Element> parameters, activations;
  for (const Element& e : of_kind(all, "holds-parameters"))
    if (e.at("rx").empty()) parameters.push_back(e);
  for (const Element& e : of_kind(all, "holds-activations"))
    if (e.at("rx").empty()) activations.push_back(e);
  REQUIRE(parameters.size() == 26);
  CHECK(activations[0].number("width") == Approx(2 * parameters[0].number("width")).epsilon(0.001));
  CHECK(parameters[24].number("width") ==
        Approx(parameters[0].number("width") * 6 / 30).epsilon(0.001));
  CHECK_THAT(title_of(all, parameters[25]), ContainsSubstring("5 other layers\nparameters 15 MB"));
  CHECK_THAT(of_kind(all, "note").at(0).words,
             ContainsSubstring("In all 600 MB on rank 0, less than the 1.4 GB of the layers"));

  for (LayerMemory& m : p.layer_memory)
    m.memory.parameters = 1000000;  // the rest is longer than any layer
  while (p.layer_memory.size() < 100) p.layer_memory.push_back(p.layer_memory[0]);
  const auto torn = parse(draw_memory(p, {}));
  CHECK(of_kind(torn, "tear").size() == 2);
  for (const Element& e : torn)
    if (e.tag == "rect") CHECK(e.number("x") + e.number("width") < 1050);
}

TEST_CASE("ranks are drawn over the steps of a training, where they changed", "[drawings]") {
  Profile p = made_profile_on_machine(2);
  CHECK(draw_ranks(p, {}).empty());
  CHECK(report_html(p).find("Ranks over time") == std::string::npos);
  p.over_time = {100,
                 {{25, 1, 4, "<me>", 0.002},
                  {50, 4, 4, "--balance", 0.001, 0, 0, {3, 1, 1, 1}},
                  {75, 4, 2, "", 0.003}}};
  const auto all = parse(draw_ranks(p, {}));
  std::vector<double> x, y;
  std::vector<std::string> titles;
  for (std::size_t i = 0; i + 1 < all.size(); ++i) {
    if (all[i].tag != "circle") continue;
    x.push_back(all[i].number("cx")), y.push_back(all[i].number("cy"));
    titles.push_back(all[i + 1].words);
  }
  REQUIRE(x.size() == 3);
  CHECK(x[1] - x[0] == Approx(x[2] - x[1]));  // every 25 steps
  CHECK(y[0] == y[1]);                        // as many ranks
  CHECK(y[2] > y[1]);                         // fewer
  CHECK(titles[0] == "step 25: 1 to 4 ranks, <me>\npause 2 ms");
  CHECK(titles[1] == "step 50: workers moved, --balance\npause 1 ms");
  const std::string page = report_html(p);
  CHECK(page.find("Ranks over time") != std::string::npos);
  CHECK(page.find("workers 3, 1, 1, 1") != std::string::npos);
  CHECK(page.find("<me>") == std::string::npos);
}
