// The roofline: a dot per layer and pass under every measured ceiling.
#include "svg.hpp"

#include <lamina/profile/report.hpp>
#include <lamina/profile/roofline.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>

namespace lamina::detail {

namespace {

constexpr double wide = 1120, high = 640;
constexpr double left = 66, right = 836, top = 18, bottom = 560, column = right + 26;

struct Dot {
  int row = 0;
  const ProfileRow* of = nullptr;
  double x = 0, y = 0;  // FLOP per byte, FLOP/s
  std::optional<Roof> roof = {};
};

/// The rows of a profile that have a place in the drawing, and those that have none.
struct Dots {
  const Profile& profile;
  std::vector<Dot> dots = {};  // the longest first, so that the short ones lie on top
  int still = 0;               // rows without arithmetic
  double still_seconds = 0, seconds = 0;

  explicit Dots(const Profile& p) : profile(p) {
    for (std::size_t i = 0; i < p.rows.size(); ++i) {
      const ProfileRow& r = p.rows[i];
      const Dot dot{int(i), &r, r.work.intensity(), r.flops_per_second()};
      seconds += r.time.mean;
      if (dot.x > 0 && dot.y > 0 && std::isfinite(dot.x) && std::isfinite(dot.y)) {
        dots.push_back(dot);
        if (has_ceilings(p)) dots.back().roof = roof(p, r);
      } else {
        ++still, still_seconds += r.time.mean;
      }
    }
    std::stable_sort(dots.begin(), dots.end(),
                     [](const Dot& a, const Dot& b) { return a.of->time.mean > b.of->time.mean; });
  }
};

std::string title_of(const Dot& d, double step) {
  const ProfileRow& r = *d.of;
  std::string s = text(r.name, r.type.empty() ? "" : text(" (", r.type, ")"), ", ",
                       words_of(r.pass), "\n", seconds_text(r.time.mean));
  if (step > 0) s += text(", ", percent_text(r.time.mean / step), " of the step");
  s += text("\n", brief(d.x), " FLOP/byte, ", brief(d.y / 1e9), " GFLOP/s");
  if (d.roof) {
    s += text("\n", percent_text(d.roof->fraction), " of its roof, bound by ",
              words_of(d.roof->bound));
    if (d.roof->above)
      s += text("\nabove its roof",
                d.roof->reason.empty() ? std::string() : text(": ", d.roof->reason));
  }
  if (!r.algorithm.empty()) s += text("\n", r.algorithm);
  return s;
}

std::string class_of(const Dot& d) {
  std::string s = "mark ";
  s += d.roof ? text("bound-", name(d.roof->bound)) : text("pass-", name(d.of->pass));
  if (d.roof && d.roof->above) s += d.roof->reason.empty() ? " above unexplained" : " above";
  return s;
}

/// Scales, ceilings, and what their labels have taken.
class Picture {
 public:
  Picture(Svg& svg, const Machine* machine, DType dtype, const std::vector<const Dots*>& all)
      : svg_(svg), machine_(machine), dtype_(dtype) {
    std::vector<double> xs, ys;
    for (const Dots* dots : all)
      for (const Dot& d : dots->dots)
        xs.push_back(d.x), ys.push_back(d.y), longest_ = std::max(longest_, d.of->time.mean);
    if (machine) {
      ys.push_back(machine->peak(dtype));
      for (const MemoryCeiling& m : machine->memory)  // with room for a name left of the ridge
        if (m.bandwidth() > 0) xs.push_back(machine->peak(dtype) / m.bandwidth() / 6);
    }
    x_ = LogScale::around(xs, left, right), y_ = LogScale::around(ys, bottom, top);
    const double alike = longest_ > 0 ? all.back()->seconds / longest_ : 1;
    largest_ = std::clamp(90 / std::sqrt(alike), 8.0, 20.0);  // many alike: smaller ones
  }

  double x(double v) const { return x_(v); }
  double y(double v) const { return y_(v); }
  /// The area goes with the time, down to what can still be seen and hit.
  double radius(double seconds) const {
    return longest_ > 0 ? std::max(2.5, largest_ * std::sqrt(seconds / longest_)) : 2.5;
  }
  double longest() const { return longest_; }

  void axes() {
    log_axes(svg_, x_, y_, 1, 1e-9, "FLOP per byte (compulsory bytes: each operand once)",
             "GFLOP/s of a rank");
  }

  void ceilings() {
    if (!machine_) return;
    const double peak = machine_->peak(dtype_);
    svg_.open("g", {{"class", "roofs"}});
    double fastest = 0;
    for (const MemoryCeiling& m : machine_->memory) fastest = std::max(fastest, m.bandwidth());
    for (const MemoryCeiling& m : machine_->memory)
      if (m.bandwidth() > 0) slanted(m, peak, &m == &machine_->memory.back());
    for (const ComputeCeiling& c : machine_->compute) {
      if (c.dtype != dtype_ || c.flops.together < y_.low) continue;
      const double from = fastest > 0 ? std::max(x_.low, c.flops.together / fastest) : x_.low;
      const bool library = c.kind != ComputeCeiling::Kind::fma;
      const bool main = !library && c.flops.together == peak;
      const double at = y_(c.flops.together);
      svg_.line(library ? "roof library" : main ? "roof main" : "roof", x_(from), at, right, at);
    }
    names();
    svg_.close();
  }

  /// Names of the dots that take the longest, where there is room.
  void dot_names(const Dots& dots) {
    for (const Dot& d : dots.dots) around(d);
    constexpr std::array<const char*, pass_count> passes = {"", " dx", " dw", " update", " again"};
    int named = 0;
    svg_.open("g", {{"class", "dot-names"}});
    for (std::size_t i = 0; i < std::min<std::size_t>(dots.dots.size(), 12) && named < 6; ++i) {
      const Dot& d = dots.dots[i];
      const std::string s = text(d.of->name, passes[std::size_t(d.of->pass)]);
      const double w = text_width(s, 11), r = radius(d.of->time.mean), cx = x_(d.x), cy = y_(d.y);
      const Boxes::Rectangle beside[] = {{cx + r + 3, cy - 7, cx + r + 3 + w, cy + 7},
                                         {cx - r - 3 - w, cy - 7, cx - r - 3, cy + 7},
                                         {cx - w / 2, cy - r - 16, cx + w / 2, cy - r - 2},
                                         {cx - w / 2, cy + r + 2, cx + w / 2, cy + r + 16}};
      for (const Boxes::Rectangle& b : beside) {
        if (b.x0 < left || b.x1 > right || b.y0 < top || b.y1 > bottom || !boxes_.free(b)) continue;
        svg_.words(b.x0, b.y1 - 3, s, "dot-name small");
        boxes_.taken.push_back(b), ++named;
        break;
      }
    }
    svg_.close();
  }

 private:
  void around(const Dot& d) {
    const double r = radius(d.of->time.mean) * 0.8, cx = x_(d.x), cy = y_(d.y);
    if (r >= 3) boxes_.taken.push_back({cx - r, cy - r, cx + r, cy + r});
  }

  /// A level of memory: the line up to the peak, and its name along it, as near to the peak as the
  /// names of the other lines allow.
  void slanted(const MemoryCeiling& m, double peak, bool main) {
    const double ridge = peak / m.bandwidth(), start = std::max(x_.low, y_.low / m.bandwidth());
    if (ridge <= x_.low) return;
    const double x0 = x_(start), y0 = y_(start * m.bandwidth()), x1 = x_(ridge), y1 = y_(peak);
    svg_.line(main ? "roof main" : "roof", x0, y0, x1, y1);
    const std::string s = text(m.level, "  ", brief(m.bandwidth() / 1e9), " GB/s");
    const double size = 12, length = text_width(s, size), angle = std::atan2(y1 - y0, x1 - x0);
    const double across = x1 * std::sin(angle) - y1 * std::cos(angle);
    double end = x1 * std::cos(angle) + y1 * std::sin(angle) - 24;
    for (const Boxes::Rectangle& b : along_.taken)  // in coordinates along and across the lines
      if (std::abs(b.y0 - across) < size + 6 && b.x0 < end && end - length < b.x1) end = b.x0 - 16;
    along_.taken.push_back({end - length, across, end, across});
    const double middle = end - length / 2;
    const double px = middle * std::cos(angle) + across * std::sin(angle);
    const double py = middle * std::sin(angle) - across * std::cos(angle);
    if (px - length / 2 * std::cos(angle) < left) return;
    for (double t = -length / 2; t <= length / 2; t += 6) {
      const double bx = px + t * std::cos(angle), by = py + t * std::sin(angle);
      boxes_.taken.push_back({bx - 10, by - 16, bx + 10, by + 6});
    }
    names_.push_back({s, px, py, angle * 180 / 3.14159265358979323846});
  }

  /// All names come last, above the lines; those of horizontal ceilings stand in a column.
  void names() {
    for (const Name& n : names_)
      svg_.words(n.words, {{"class", "roof-name middle"},
                           {"dy", -5},
                           {"transform", text("translate(", number(n.x), " ", number(n.y),
                                              ") rotate(", number(n.angle), ")")}});
    std::vector<const ComputeCeiling*> flat;
    for (const ComputeCeiling& c : machine_->compute)
      if (c.dtype == dtype_ && c.flops.together >= y_.low) flat.push_back(&c);
    std::stable_sort(flat.begin(), flat.end(), [](const auto* a, const auto* b) {
      return a->flops.together > b->flops.together;
    });
    std::vector<double> at;
    for (const ComputeCeiling* c : flat) at.push_back(y_(c->flops.together));
    spread_out(at, 16, top + 4, bottom - 216);
    for (std::size_t i = 0; i < flat.size(); ++i) {
      const ComputeCeiling& c = *flat[i];
      const std::string what = c.kind == ComputeCeiling::Kind::fma ? "FMA " + c.name : c.name;
      svg_.put("path", {{"class", "leader"},
                        {"d", text("M", number(right + 2), " ", number(y_(c.flops.together)), "L",
                                   number(column - 4), " ", number(at[i]))}});
      svg_.words(column + 28, at[i] + 4, brief(c.flops.together / 1e9), "end");
      svg_.words(column + 34, at[i] + 4, fitted(what, wide - column - 36, 11), "small muted");
    }
  }

  struct Name {
    std::string words;
    double x, y, angle;
  };
  Svg& svg_;
  const Machine* machine_;
  DType dtype_;
  LogScale x_, y_;
  double longest_ = 0, largest_ = 0;
  Boxes boxes_, along_;
  std::vector<Name> names_;
};

void legend(Svg& svg, const Picture& picture, const Dots& dots) {
  double y = bottom - 196;
  const auto entry = [&](std::string_view kind, Pass pass, double r, std::string_view words) {
    svg.put("path",
            {{"class", kind},
             {"d", shape_of(pass, r)},
             {"transform", text("translate(", number(column + 6), " ", number(y - 4), ")")}});
    svg.words(column + 20, y, words, "muted");
    y += 17;
  };
  svg.open("g", {{"class", "legend"}});
  if (has_ceilings(dots.profile)) {
    std::array<double, bound_count> share = {};
    int above = 0, unexplained = 0;
    svg.words(column, y, "bound by, share of kernel time", "small muted"), y += 18;
    for (const Dot& d : dots.dots)
      share[std::size_t(d.roof->bound)] += d.of->time.mean, above += d.roof->above,
          unexplained += d.roof->above && d.roof->reason.empty();
    for (const Bound b :
         {Bound::compute, Bound::memory, Bound::kernel, Bound::communication, Bound::overhead})
      entry(
          text("bound-", name(b)), Pass::forward, 5,
          text(name(b),
               dots.seconds > 0 ? ", " + percent_text(share[std::size_t(b)] / dots.seconds) : ""));
    if (above > unexplained)
      entry("paper above", Pass::forward, 5,
            text("above roof, explained (", above - unexplained, ")"));
    if (unexplained > 0)
      entry("paper above unexplained", Pass::forward, 5,
            text("above roof, unexplained (", unexplained, ")"));
    y += 6;
  }
  for (const Pass p : passes_of(dots.profile))
    entry(has_ceilings(dots.profile) ? "key" : text("pass-", name(p)), p, 4.5, words_of(p));
  if (picture.longest() > 0)
    svg.words(column, y + 6, text("area = time, up to ", seconds_text(picture.longest())), "muted");
  svg.close();
}

void marks(Svg& svg, const Picture& picture, const Dots& dots, bool before) {
  const double step = dots.profile.end_to_end.mean;
  svg.open("g", {{"class", before ? "marks-before" : "marks"}});
  for (const Dot& d : dots.dots)
    svg.put("path",
            {{"class", class_of(d) + (before ? " before" : "")},
             {before ? "data-before" : "data-row", double(d.row)},
             {"transform",
              text("translate(", number(picture.x(d.x)), " ", number(picture.y(d.y)), ")")},
             {"d", shape_of(d.of->pass, picture.radius(d.of->time.mean))}},
            title_of(d, step));
  svg.close();
}

void join(Svg& svg, const Picture& picture, const Dots& before, const Dots& after) {
  std::map<std::pair<std::string, Pass>, const Dot*> known;
  for (const Dot& d : before.dots) known[{d.of->name, d.of->pass}] = &d;
  svg.open("g", {{"class", "joins"}});
  for (const Dot& d : after.dots)
    if (const auto found = known.find({d.of->name, d.of->pass}); found != known.end()) {
      const Dot& b = *found->second;
      svg.line("joined", picture.x(b.x), picture.y(b.y), picture.x(d.x), picture.y(d.y));
    }
  svg.close();
}

}  // namespace

std::string draw_roofline(const Profile& profile, const Profile* other, DrawingOptions options) {
  const Dots first(profile);
  const std::optional<Dots> second = other ? std::optional<Dots>(*other) : std::nullopt;
  const Dots& shown = second ? *second : first;
  const Machine* machine = has_ceilings(shown.profile) ? &*shown.profile.machine
                           : has_ceilings(profile)     ? &*profile.machine
                                                       : nullptr;
  std::string note;
  if (shown.still > 0)
    note = text(shown.still, shown.still == 1 ? " row" : " rows", " without arithmetic not shown, ",
                seconds_text(shown.still_seconds), " of kernels. ");
  if (second) note += "Faint: before; full: after. ";
  if (!machine) note += "No ceilings were measured. ";
  const std::vector<std::string> told = wrapped(note, wide - left);
  Svg svg("roofline", wide, high - Svg::note_line + Svg::note_line * double(told.size()),
          text("Roofline of ", shown.profile.model.empty() ? "the network" : shown.profile.model),
          options);
  std::vector<const Dots*> all = {&first};
  if (second) all.push_back(&*second);
  const DType dtype = shown.profile.arithmetic;
  Picture picture(svg, machine, dtype, all);
  picture.axes();
  picture.ceilings();
  if (second) marks(svg, picture, first, true), join(svg, picture, first, *second);
  marks(svg, picture, shown, false);
  picture.dot_names(shown);
  legend(svg, picture, shown);
  svg.note(left, high - 14, told);
  return svg.finish();
}

}  // namespace lamina::detail

namespace lamina {

std::string roofline_svg(const Profile& profile, const Profile* other) {
  check(has_ceilings(profile) || (other && has_ceilings(*other)),
        "a roofline needs the machine's ceilings, and this profile has none");
  return detail::draw_roofline(profile, other, {.standalone = true});
}

}  // namespace lamina
