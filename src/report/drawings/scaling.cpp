// Scaling and convergence: what was predicted over devices, and what a search found over time.
#include "svg.hpp"

#include <lamina/base/error.hpp>
#include <lamina/plan/prediction.hpp>

#include <algorithm>
#include <cmath>

namespace lamina {

namespace {

using namespace detail;

constexpr double full = 1120, above = 58, high = 400, bottom = above + high;

struct Series {
  const char* name;
  const char* kind;  // class of its marks
  const char* colour;
  double ScalingPoint::*seconds;
  double width;  // of its curve; both show where they are one
};
constexpr Series series[] = {
    {"auto", "bound-communication", "var(--communication)", &ScalingPoint::best, 5},
    {"data", "bound-compute", "var(--compute)", &ScalingPoint::data, 2}};

/// A path through points in pixels.
std::string path_through(const std::vector<std::pair<double, double>>& at) {
  std::string d;
  for (const auto& [x, y] : at) append(d, text(d.empty() ? "M" : "L", number(x), " ", number(y)));
  return d;
}

void curve(Svg& svg, const std::vector<std::pair<double, double>>& at, const char* colour,
           double width, const char* dashes = "") {
  if (at.size() > 1)
    svg.put("path", {{"d", path_through(at)},
                     {"fill", "none"},
                     {"style", text("stroke:", colour)},
                     {"stroke-width", width},
                     {"stroke-dasharray", dashes}});
}

/// One of the two, between `left` and `right`.
class Panel {
 public:
  Panel(Svg& svg, const std::vector<ScalingPoint>& points, double left, double right)
      : svg_(svg), points_(points) {
    std::vector<double> speeds;
    for (const ScalingPoint& p : points)
      for (const Series& s : series) speeds.push_back(p.images_per_second(p.*s.seconds));
    const double first = points.front().devices, last = points.back().devices;
    x_ = {first / 1.3, last * 1.3, left, right};
    y_ = LogScale::around(speeds, bottom, above);
  }

  void draw(const std::string& title) {
    svg_.words(x_.from, above - 18, title, "strong");
    axes();
    ideal();
    for (const Series& s : series) draw(s);
    turns();
  }

 private:
  /// Ticks where the points are: those of log_axes would be at powers of ten.
  void axes() {
    svg_.open("g", {{"class", "axes"}});
    double taken = 0;
    for (const ScalingPoint& p : points_) {
      const double x = x_(p.devices);
      svg_.line("grid", x, bottom, x, above);
      const std::string words = text(p.devices);
      if (x - text_width(words) / 2 < taken) continue;
      svg_.words(x, bottom + 17, words, "tick middle");
      taken = x + text_width(words) / 2 + 4;
    }
    for (const double v : y_.ticks()) {
      svg_.line("grid", x_.from, y_(v), x_.to, y_(v));
      svg_.words(x_.from - 8, y_(v) + 4, brief(v), "tick end");
    }
    svg_.line("axis", x_.from, bottom, x_.to, bottom);
    svg_.words((x_.from + x_.to) / 2, bottom + 37, "devices", "muted middle");
    const double middle = (above + bottom) / 2, x = x_.from - 66;
    svg_.words("images/s",
               {{"class", "muted middle"},
                {"x", x},
                {"y", middle},
                {"transform", text("rotate(-90 ", number(x), " ", number(middle), ")")}});
    svg_.close();
  }

  /// As many times as fast on as many devices.
  void ideal() {
    for (const ScalingPoint& p : points_) {
      if (!std::isfinite(p.best)) continue;
      const double each = p.images_per_second(p.best) / p.devices;
      const double last = std::min(double(points_.back().devices), y_.high / each);
      curve(svg_, {{x_(p.devices), y_(each * p.devices)}, {x_(last), y_(each * last)}},
            "var(--axis)", 2, "5 4");
      return;
    }
  }

  void draw(const Series& s) {
    std::vector<std::pair<double, double>> at;
    for (const ScalingPoint& p : points_)
      if (std::isfinite(p.*s.seconds))
        at.push_back({x_(p.devices), y_(p.images_per_second(p.*s.seconds))});
    curve(svg_, at, s.colour, s.width);
    for (const ScalingPoint& p : points_)
      if (std::isfinite(p.*s.seconds))
        svg_.put(
            "circle",
            {{"class", s.kind},
             {"cx", x_(p.devices)},
             {"cy", y_(p.images_per_second(p.*s.seconds))},
             {"r", s.seconds == &ScalingPoint::best ? 4.5 : 3}},
            text(s.name, " on ", p.devices, ", batch ", p.batch, "\n", seconds_text(p.*s.seconds),
                 " a step, ", brief(p.images_per_second(p.*s.seconds)), " images/s"));
  }

  void turns() {
    const TurningPoints t = turning_points(points_);
    const auto mark = [&](int devices, const std::string& words, double y) {
      if (devices == 0) return;
      const double x = x_(devices);
      svg_.put("path", {{"class", "leader"},
                        {"stroke-dasharray", "2 3"},
                        {"d", text("M", number(x), " ", number(above), "V", number(bottom))}});
      const bool room = x + 6 + text_width(words, 11) < x_.to;
      svg_.words(x + (room ? 6 : -6), y, words, room ? "small roof-name" : "small roof-name end");
    };
    mark(t.overtaken, "auto more than 5 % faster", bottom - 26);
    mark(t.fastest, "data no faster beyond", bottom - 10);
  }

  Svg& svg_;
  const std::vector<ScalingPoint>& points_;
  LogScale x_, y_;
};

void legend(Svg& svg, double x) {
  svg.open("g", {{"class", "legend"}});
  for (const Series& s : series) {
    svg.put("circle", {{"class", s.kind}, {"cx", x}, {"cy", 16}, {"r", 4.5}});
    svg.words(x + 10, 20, s.name, "muted");
    x += 34 + text_width(s.name);
  }
  curve(svg, {{x, 16}, {x + 22, 16}}, "var(--axis)", 2, "5 4");
  svg.words(x + 28, 20, "ideal", "muted");
  svg.close();
}

}  // namespace

std::string scaling_svg(const Prediction& p) {
  check(!p.strong.empty() && !p.weak.empty(), "a drawing of scaling needs points of it");
  Svg svg("scaling", full, bottom + 64, text("Predicted scaling of ", p.model, " on ", p.cluster),
          {.standalone = true});
  svg.words(80, 20, text(p.model, " on ", p.cluster, ", ", p.dtype, ", predicted"), "strong");
  legend(svg, 860);
  Panel(svg, p.strong, 80, 540).draw(text("strong scaling, batch ", p.strong.front().batch));
  const ScalingPoint& one = p.weak.front();
  Panel(svg, p.weak, 640, 1100)
      .draw(text("weak scaling, ", brief(double(one.batch) / one.devices), " per device"));
  return svg.finish();
}

std::string convergence_svg(const Prediction& p) {
  const std::vector<double>& best = p.convergence;
  check(!best.empty(), "the search had no iterations to be drawn");
  std::vector<double> finite;
  for (const double s : best)
    if (std::isfinite(s)) finite.push_back(s * 1e3);
  check(!finite.empty(), "the search found nothing that fits: there is nothing to be drawn");
  const auto [low, top] = std::minmax_element(finite.begin(), finite.end());
  const double margin = std::max((*top - *low) * 0.1, *top * 1e-3);
  const double from = std::max(0.0, *low - margin), to = *top + margin;
  const double left = 90, right = 1080;
  Svg svg("convergence", full, bottom + 64, text("Search of ", p.searcher), {.standalone = true});
  svg.words(left, 20,
            text("best step so far, searcher ", p.searcher, ": ", p.model, " on ", p.devices,
                 " devices of ", p.cluster),
            "strong");
  const auto x = [&](double i) {
    return left + (right - left) * i / double(std::max<std::size_t>(best.size() - 1, 1));
  };
  const auto y = [&](double ms) { return bottom - high * (ms - from) / (to - from); };
  svg.open("g", {{"class", "axes"}});
  const double step = tick_step(to - from, 8);
  for (double v = std::ceil(from / step) * step; v <= to; v += step) {
    svg.line("grid", left, y(v), right, y(v));
    svg.words(left - 8, y(v) + 4, text(number(v)), "tick end");
  }
  const double every = std::max(1.0, tick_step(double(best.size()), 10));
  for (double i = 0; i < double(best.size()); i += every) {
    svg.line("grid", x(i), bottom, x(i), above);
    svg.words(x(i), bottom + 17, text(std::int64_t(i) + 1), "tick middle");
  }
  svg.line("axis", left, bottom, right, bottom);
  svg.words((left + right) / 2, bottom + 37, "iteration", "muted middle");
  svg.words(left - 8, above - 16, "ms", "muted end");
  svg.close();
  std::vector<std::pair<double, double>> at;
  for (std::size_t i = 0; i < best.size(); ++i) {
    if (!std::isfinite(best[i])) continue;
    if (!at.empty()) at.push_back({x(double(i)), at.back().second});  // a stair
    at.push_back({x(double(i)), y(best[i] * 1e3)});
  }
  curve(svg, at, "var(--compute)", 2);
  return svg.finish();
}

}  // namespace lamina
