// Ranks over time: how many trained, step by step, and where that changed.
#include "svg.hpp"

#include <algorithm>

namespace lamina::detail {

namespace {

constexpr double wide = 1120, left = 60, right = 1090, above = 24, bottom = 200;

}  // namespace

std::string draw_ranks(const Profile& profile, DrawingOptions options) {
  const RanksOverTime& over = profile.over_time;
  if (over.changes.empty()) return "";
  int most = 1;
  for (const RanksChange& c : over.changes) most = std::max({most, c.from, c.to});
  const double steps = std::max(1.0, double(over.steps));
  const auto x = [&](double step) { return left + (right - left) * step / steps; };
  const auto y = [&](int ranks) { return bottom - (bottom - above) * ranks / most; };
  Svg svg("ranks", wide, bottom + 44, "Ranks over time", options);

  svg.open("g", {{"class", "axes"}});
  const double every = std::max(1.0, tick_step(most, 6)), step = std::max(1.0, tick_step(steps, 8));
  for (double r = 0; r <= most; r += every) {
    svg.line("grid", left, y(int(r)), right, y(int(r)));
    svg.words(left - 8, y(int(r)) + 4, number(r), "tick end");
  }
  for (double s = 0; s <= steps; s += step) svg.words(x(s), bottom + 18, number(s), "tick middle");
  svg.words(left, above - 10, "ranks", "muted");
  svg.words(right, bottom + 36, "steps", "muted end");
  svg.close();

  std::string path = text("M", number(left), ' ', number(y(over.changes[0].from)));
  for (const RanksChange& c : over.changes)
    append(path, text("H", number(x(double(c.step))), "V", number(y(c.to))));
  append(path, text("H", number(right)));
  svg.put("path", {{"class", "roof main"}, {"d", path}});
  for (const RanksChange& c : over.changes)
    svg.put(
        "circle",
        {{"class", c.from == c.to ? "bound-overhead" : "bound-communication"},
         {"cx", x(double(c.step))},
         {"cy", y(c.to)},
         {"r", 4.5}},
        text("step ", c.step, ": ",
             c.from == c.to ? std::string("workers moved") : text(c.from, " to ", c.to, " ranks"),
             c.why.empty() ? "" : ", " + c.why, "\npause ", seconds_text(c.pause)));
  return svg.finish();
}

}  // namespace lamina::detail
