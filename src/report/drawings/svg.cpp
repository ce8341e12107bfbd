// Svg, scales and words for quantities.
#include "svg.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace lamina::detail {

namespace {

/// The length of the UTF-8 sequence that s begins with; 0 where it is none that XML may hold.
std::size_t utf8_length(std::string_view s) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t n = first >= 0xF5   ? 0
                        : first >= 0xF0 ? 4
                        : first >= 0xE0 ? 3
                        : first >= 0xC2 ? 2
                                        : 0;
  if (n == 0 || s.size() < n) return 0;
  for (std::size_t i = 1; i < n; ++i)
    if (byte(i) >> 6 != 2) return 0;
  const unsigned char second = byte(1);
  const bool overlong = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
  const bool surrogate = first == 0xED && second >= 0xA0;
  const bool beyond = first == 0xF4 && second >= 0x90;
  const bool no_character = first == 0xEF && second == 0xBF && byte(2) >= 0xBE;
  return overlong || surrogate || beyond || no_character ? 0 : n;
}

std::string without_zeros(std::string s) {
  if (s.find('.') == std::string::npos) return s;
  s.erase(s.find_last_not_of('0') + 1);
  if (s.back() == '.') s.pop_back();
  return s;
}

std::string scaled(double v, std::initializer_list<std::pair<double, const char*>> units) {
  for (const auto& [unit, name] : units)
    if (v >= 0.9995 * unit) return text(brief(v / unit), " ", name);
  const auto& [unit, name] = *(units.end() - 1);
  return text(brief(v / unit), " ", name);
}

}  // namespace

std::string number(double v) {
  if (!std::isfinite(v)) return "0";
  const std::string s = without_zeros(format("%.2f", v));
  return s == "-0" ? "0" : s;
}

std::string brief(double v) {
  if (!std::isfinite(v)) return "0";
  const double size = std::abs(v);
  if (size >= 99.95) return format("%.0f", v);
  if (size >= 9.995) return without_zeros(format("%.1f", v));
  if (size >= 0.0995 || size == 0) return without_zeros(format("%.2f", v));
  return format("%.2g", v);
}

std::string seconds_text(double s) {
  return scaled(s, {{1, "s"}, {1e-3, "ms"}, {1e-6, "\u00B5s"}});
}
std::string bytes_text(double b) {
  return scaled(b, {{1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}, {1, "B"}});
}
std::string flops_text(double f) {
  return scaled(f, {{1e12, "TFLOP"}, {1e9, "GFLOP"}, {1e6, "MFLOP"}, {1e3, "kFLOP"}, {1, "FLOP"}});
}
std::string percent_text(double fraction) {
  return text(brief(std::round(fraction * 1000) / 10), " %");
}

std::string escape_xml(std::string_view s) {
  std::string out;
  while (!s.empty()) {
    const std::size_t n = utf8_length(s);
    const char c = s[0];
    if (n == 0)
      out += "\uFFFD";
    else if (n > 1)
      out += s.substr(0, n);
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else if (static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t')
      out += c;
    s.remove_prefix(std::max<std::size_t>(n, 1));
  }
  return out;
}

double text_width(std::string_view s, double size) {
  std::size_t n = 0;
  for (const char c : s) n += (static_cast<unsigned char>(c) >> 6) != 2;
  return 0.6 * size * double(n);
}

std::string fitted(std::string_view s, double width, double size) {
  if (text_width(s, size) <= width) return std::string(s);
  std::size_t cut = s.size();
  while (cut > 0 && text_width(s.substr(0, cut), size) + text_width(".", size) > width) {
    do --cut;
    while (cut > 0 && (static_cast<unsigned char>(s[cut]) >> 6) == 2);
  }
  return text(s.substr(0, cut), "\u2026");
}

std::vector<std::string> wrapped(std::string_view s, double width, double size) {
  std::vector<std::string> lines(1);
  while (!s.empty()) {
    const std::size_t end = std::min(s.find(' '), s.size());
    const std::string longer =
        text(lines.back(), lines.back().empty() ? "" : " ", s.substr(0, end));
    if (!lines.back().empty() && text_width(longer, size) > width)
      lines.emplace_back(s.substr(0, end));
    else
      lines.back() = longer;
    s.remove_prefix(std::min(end + 1, s.size()));
  }
  return lines;
}

Svg::Svg(std::string_view kind, double width, double height, std::string_view title,
         DrawingOptions options) {
  const std::string box = text("0 0 ", number(width), " ", number(height));
  const std::string all = text("drawing ", kind);
  if (options.standalone) {
    start("svg", {{"xmlns", "http://www.w3.org/2000/svg"},
                  {"class", all},
                  {"viewBox", box},
                  {"width", "100%"},
                  {"role", "img"},
                  {"aria-label", title}});
    out_ += ">\n<style>\n" + drawing_style() + "</style>\n";
    put("rect", {{"class", "paper"}, {"width", width}, {"height", height}});
  } else {
    start("svg", {{"class", all},
                  {"viewBox", box},
                  {"width", "100%"},
                  {"role", "group"},
                  {"aria-label", title}});
    out_ += ">\n";
  }
  open_.push_back("svg");
}

void Svg::start(std::string_view tag, Attributes attributes) {
  append(out_, "<"), append(out_, tag);
  for (const Attribute& a : attributes)
    if (!a.value.empty()) out_ += text(" ", a.name, "=\"", a.value, "\"");
}

void Svg::open(std::string_view tag, Attributes attributes) {
  start(tag, attributes);
  out_ += ">\n";
  open_.emplace_back(tag);
}

void Svg::close() {
  out_ += text("</", open_.back(), ">\n");
  open_.pop_back();
}

void Svg::put(std::string_view tag, Attributes attributes, std::string_view title) {
  start(tag, attributes);
  if (title.empty())
    out_ += "/>\n";
  else
    out_ += text("><title>", escape_xml(title), "</title></", tag, ">\n");
}

void Svg::line(std::string_view kind, double x1, double y1, double x2, double y2) {
  put("line", {{"class", kind}, {"x1", x1}, {"y1", y1}, {"x2", x2}, {"y2", y2}});
}

void Svg::words(double x, double y, std::string_view s, std::string_view kind) {
  words(s, {{"class", kind}, {"x", x}, {"y", y}});
}

void Svg::words(std::string_view s, Attributes attributes) {
  start("text", attributes);
  out_ += text(">", escape_xml(s), "</text>\n");
}

void Svg::note(double x, double y, const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    if (!line.empty()) words(x, y, line, "note muted");
    y += note_line;
  }
}

std::string Svg::finish() {
  while (!open_.empty()) close();
  return std::move(out_);
}

double LogScale::operator()(double v) const {
  return from + (std::log10(v) - std::log10(low)) * pixels_per_decade();
}

double LogScale::pixels_per_decade() const {
  return (to - from) / (std::log10(high) - std::log10(low));
}

std::vector<double> LogScale::ticks() const {
  std::vector<double> at;
  const bool few = std::log10(high / low) < 2.5;
  for (int e = int(std::floor(std::log10(low))); e <= int(std::ceil(std::log10(high))); ++e)
    for (const double step : {1., 2., 5.}) {
      const double v = step * std::pow(10., e);
      if ((few || step == 1) && v >= low * 0.999 && v <= high * 1.001) at.push_back(v);
    }
  return at;
}

LogScale LogScale::around(const std::vector<double>& values, double from, double to) {
  double low = 0, high = 0;
  for (const double v : values) {
    if (!(v > 0) || !std::isfinite(v)) continue;
    low = low > 0 ? std::min(low, v) : v, high = std::max(high, v);
  }
  if (low == 0) return {1, 10, from, to};
  const auto step = [](double v, bool down) {  // to a whole step, leaving some room
    const double decade = std::pow(10., std::floor(std::log10(v)));
    const std::array<double, 5> steps = {0.5, 1, 2, 5, 10};
    if (down) {
      for (std::size_t i = steps.size(); i-- > 0;)
        if (steps[i] * decade <= v / 1.15) return steps[i] * decade;
      return 0.2 * decade;
    }
    for (const double s : steps)
      if (s * decade >= v * 1.15) return s * decade;
    return 20 * decade;
  };
  return {step(low, true), step(high, false), from, to};
}

double tick_step(double range, int most) {
  const double decade = std::pow(10., std::floor(std::log10(range / most)));
  for (const double s : {1., 2., 5.})
    if (range <= s * decade * most) return s * decade;
  return 10 * decade;
}

void log_axes(Svg& svg, const LogScale& x, const LogScale& y, double x_unit, double y_unit,
              std::string_view x_title, std::string_view y_title) {
  svg.open("g", {{"class", "axes"}});
  for (const double v : x.ticks()) {
    svg.line("grid", x(v), y.from, x(v), y.to);
    svg.words(x(v), y.from + 17, brief(v * x_unit), "tick middle");
  }
  for (const double v : y.ticks()) {
    svg.line("grid", x.from, y(v), x.to, y(v));
    svg.words(x.from - 8, y(v) + 4, brief(v * y_unit), "tick end");
  }
  svg.line("axis", x.from, y.from, x.to, y.from);
  svg.words((x.from + x.to) / 2, y.from + 37, x_title, "muted middle");
  const double middle = (y.from + y.to) / 2;
  svg.words(y_title, {{"class", "muted middle"},
                      {"x", 14},
                      {"y", middle},
                      {"transform", text("rotate(-90 14 ", number(middle), ")")}});
  svg.close();
}

std::string shape_of(Pass pass, double r) {
  const double pi = 3.14159265358979323846;
  const std::string n = number(r);
  switch (pass) {
    case Pass::input_grad: {
      const std::string half = number(r * std::sqrt(pi) / 2), side = number(r * std::sqrt(pi));
      return text("M-", half, "-", half, "h", side, "v", side, "h-", side, "z");
    }
    case Pass::weight_grad: {
      const std::string d = number(r * std::sqrt(pi / 2));
      return text("M0-", d, "L", d, " 0L0 ", d, "L-", d, " 0z");
    }
    case Pass::update:
    case Pass::recompute: {  // a triangle that stands on a side, or on its tip
      const double side = 2 * r * std::sqrt(pi / std::sqrt(3.)), height = side * std::sqrt(3.) / 2;
      const double up = pass == Pass::update ? 1 : -1;
      const std::string s = number(side / 2), low = number(up * height / 3);
      return text("M0 ", number(-up * height * 2 / 3), "L", s, " ", low, "L-", s, " ", low, "z");
    }
    case Pass::forward:
      break;
  }
  const std::string across = number(2 * r);
  return text("M-", n, " 0a", n, " ", n, " 0 1 0 ", across, " 0a", n, " ", n, " 0 1 0-", across,
              " 0z");
}

std::string_view words_of(Bound bound) {
  return bound == Bound::kernel ? "kernels far below both roofs" : name(bound);
}

const char* words_of(Pass pass) {
  constexpr const char* words[] = {"forward", "input gradient", "weight gradient", "update",
                                   "forward again"};
  return words[int(pass)];
}

std::vector<Pass> passes_of(const Profile& profile) {
  std::vector<Pass> passes = {Pass::forward, Pass::recompute, Pass::input_grad, Pass::weight_grad,
                              Pass::update};
  std::erase_if(passes, [&](Pass p) {
    return std::none_of(profile.rows.begin(), profile.rows.end(),
                        [&](const ProfileRow& row) { return row.pass == p; });
  });
  return passes;
}

void spread_out(std::vector<double>& at, double gap, double low, double high) {
  for (std::size_t i = 0; i < at.size(); ++i)
    at[i] = std::max({at[i], low, i > 0 ? at[i - 1] + gap : low});
  double limit = high;
  for (std::size_t i = at.size(); i-- > 0; limit = at[i] - gap) at[i] = std::min(at[i], limit);
}

bool Boxes::free(const Rectangle& b) const {
  return std::none_of(taken.begin(), taken.end(), [&](const Rectangle& t) {
    return b.x0 < t.x1 && t.x0 < b.x1 && b.y0 < t.y1 && t.y0 < b.y1;
  });
}

}  // namespace lamina::detail
