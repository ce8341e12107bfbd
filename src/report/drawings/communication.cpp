// The roofline of communication: what a layer computes for each byte that it sends, and how fast it
// could compute if sending were all that takes time.
#include "svg.hpp"

#include <lamina/profile/detail/lines.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

namespace lamina::detail {

namespace {

constexpr double wide = 1120, high = 560;
constexpr double left = 66, right = 856, top = 18, bottom = 480, column = right + 26;

/// A layer, all of its passes.
struct Talker {
  const ProfileRow* any = nullptr;
  double flops = 0, wire = 0, comm = 0, exposed = 0, late = 0, transfer = 0, behind = 0,
         kernels = 0;

  double x() const { return flops / wire; }
  double y() const { return flops / comm; }
  double hidden() const { return std::min(behind / comm, 1.0); }
};

/// Layers that communicate, those that take the longest first. `moving` is the sum of those that
/// have no place in the drawing, as they compute nothing: above all reshards.
struct Talkers {
  std::vector<Talker> all;
  Talker moving;
  std::size_t moves = 0;
};

Talkers talkers_of(const Profile& p) {
  std::map<std::string, Talker> by_name;
  for (const ProfileRow& r : p.rows) {
    Talker& t = by_name[r.name];
    if (!t.any) t.any = &r;
    t.flops += r.work.flops, t.wire += r.wire_bytes, t.kernels += r.time.mean;
    t.comm += r.comm.mean, t.exposed += r.exposed.mean;
    t.late += r.late.mean, t.transfer += r.transfer.mean;
  }
  for (auto& [name, t] : by_name) t.behind = detail::hidden(t.comm, t.late, t.transfer);
  Talkers found;
  for (const auto& [name, t] : by_name) {
    if (t.comm > 0 && t.wire > 0 && t.flops > 0) found.all.push_back(t);
    if (t.comm <= 0 || t.flops > 0) continue;
    ++found.moves, found.moving.wire += t.wire;
    found.moving.comm += t.comm, found.moving.exposed += t.exposed;
  }
  std::sort(found.all.begin(), found.all.end(), [](const Talker& a, const Talker& b) {
    return a.comm != b.comm ? a.comm > b.comm : a.any->layer < b.any->layer;
  });
  return found;
}

constexpr std::array<const char*, 4> shades = {"hidden-all", "hidden-most", "hidden-part",
                                               "hidden-little"};

std::size_t shade_of(const Talker& t) {
  const double h = t.hidden();
  return h > 0.95 ? 0 : h > 2. / 3 ? 1 : h > 1. / 3 ? 2 : 3;
}

std::string title_of(const Talker& t) {
  std::string s = text(t.any->name, t.any->type.empty() ? "" : text(" (", t.any->type, ")"), "\n");
  s += text(bytes_text(t.wire), " on the wire in ", seconds_text(t.comm), ", ",
            brief(t.wire / t.comm / 1e9), " GB/s\n");
  s += text(seconds_text(t.exposed), " of it waited for, ", percent_text(t.hidden()), " hidden\n");
  s += text(brief(t.x()), " FLOP per byte on the wire, ", brief(t.y() / 1e9), " GFLOP/s\n");
  s += text("the layer's own kernels (", seconds_text(t.kernels),
            t.kernels >= t.comm ? ") can hide it" : ") are too short to hide it");
  return s;
}

/// Bus bandwidths of the collective that carries most of the profile's bytes.
struct Links {
  Collective op = Collective::all_reduce;
  double best = 0, small = 0, small_bytes = 0;

  Links() = default;
  Links(const Profile& p, const Machine& m) {
    double bytes[int(Collective::barrier) + 1] = {};
    for (const ProfileRow& r : p.rows)
      for (const ProfileKernel& k : r.kernels)
        for (int c = 0; c < int(Collective::barrier); ++c)
          if (k.lane == Lane::communication && k.what == name(Collective(c))) bytes[c] += k.bytes;
    for (int c = 0; c < int(Collective::barrier); ++c)
      if (bytes[c] > bytes[int(op)]) op = Collective(c);
    const bool same = std::any_of(m.comm.begin(), m.comm.end(), [&](const CommCeiling& c) {
      return c.op == op && c.ranks == p.ranks;
    });
    for (const CommCeiling& c : m.comm) {
      if (c.op != op || (same && c.ranks != p.ranks)) continue;
      best = std::max(best, c.bus_bandwidth());
      if (c.bus_bandwidth() > 0 && (small_bytes == 0 || c.bytes < small_bytes))
        small = c.bus_bandwidth(), small_bytes = c.bytes;
    }
  }
};

/// What the links can sustain: y = bandwidth * x within the plot.
class LinkLine {
 public:
  LinkLine(const LogScale& x, const LogScale& y, double bandwidth, std::string words)
      : words_(std::move(words)) {
    const double from = std::max(x.low, y.low / bandwidth);
    const double to = std::min(x.high, y.high / bandwidth);
    if (!(from < to)) return;
    x0_ = x(from), y0_ = y(from * bandwidth), x1_ = x(to), y1_ = y(to * bandwidth);
    length_ = std::hypot(x1_ - x0_, y1_ - y0_);
    dx_ = (x1_ - x0_) / length_, dy_ = (y1_ - y0_) / length_;
  }

  void draw(Svg& svg, const char* kind) const {
    if (length_ > 0) svg.line(kind, x0_, y0_, x1_, y1_);
  }

  /// Below the line, as near to its upper end as there is room.
  void name(Svg& svg, const Boxes& boxes) const {
    const double width = text_width(words_), upper = length_ - width / 2 - 30;
    if (length_ < width + 40) {
      if (length_ > 0 && x1_ + 12 + width < right)
        svg.words(x1_ + 12, y1_ + 14, words_, "roof-name");
      return;
    }
    double middle = upper;
    while (middle > width / 2 + 10 && !free(boxes, middle, width)) middle -= 10;
    if (middle <= width / 2 + 10) middle = upper;
    svg.words(words_, {{"class", "roof-name middle"},
                       {"dy", 15},
                       {"transform", text("translate(", number(x0_ + middle * dx_), " ",
                                          number(y0_ + middle * dy_), ") rotate(",
                                          number(std::atan2(dy_, dx_) * 57.29578), ")")}});
  }

 private:
  /// Whether words of this width, as a row of small boxes along the line, collide with nothing.
  bool free(const Boxes& boxes, double middle, double width) const {
    for (double t = middle - width / 2; t <= middle + width / 2; t += 6) {
      const double cx = x0_ + t * dx_ - 10 * dy_, cy = y0_ + t * dy_ + 10 * dx_;
      if (!boxes.free({cx - 6, cy - 8, cx + 6, cy + 8})) return false;
    }
    return true;
  }

  std::string words_;
  double x0_ = 0, y0_ = 0, x1_ = 0, y1_ = 0, length_ = 0, dx_ = 0, dy_ = 0;
};

double radius(double seconds, double longest) {
  return std::max(3.0, 18 * std::sqrt(seconds / longest));
}

void marks(Svg& svg, const LogScale& x, const LogScale& y, const std::vector<Talker>& talkers,
           double longest, bool before) {
  svg.open("g", {{"class", before ? "marks-before" : "marks"}});
  for (const Talker& t : talkers)
    svg.put("circle",
            {{"class", text("mark ", shades[shade_of(t)], before ? " before" : "")},
             {before ? "data-layer-before" : "data-layer", double(t.any->layer)},
             {"cx", x(t.x())},
             {"cy", y(t.y())},
             {"r", radius(t.comm, longest)}},
            title_of(t));
  svg.close();
}

void legend(Svg& svg, const std::vector<Talker>& talkers, double longest) {
  double comm = 0, exposed = 0;
  std::array<double, 4> share = {};
  for (const Talker& t : talkers)
    comm += t.comm, exposed += t.exposed, share[shade_of(t)] += t.comm;
  svg.open("g", {{"class", "legend"}});
  double at = bottom - 150;
  svg.words(column, at, "hidden behind kernels, with its share", "small muted");
  constexpr std::array<const char*, 4> words = {"over 95 %", "67 to 95 %", "33 to 67 %",
                                                "under 33 %"};
  for (std::size_t i = 0; i < 4; ++i) {
    at += 18;
    svg.put("circle", {{"class", shades[i]}, {"cx", column + 6}, {"cy", at - 4}, {"r", 5}});
    svg.words(column + 20, at, text(words[i], ": ", percent_text(share[i] / comm)), "muted");
  }
  svg.words(column, at += 25, text("in all ", seconds_text(comm)), "muted");
  svg.words(column, at += 17, text("waited for ", seconds_text(exposed)), "muted");
  svg.words(column, at + 17, text("area = time, up to ", seconds_text(longest)), "muted");
  svg.close();
}

}  // namespace

std::string draw_communication(const Profile& profile, const Profile* other,
                               DrawingOptions options) {
  const Profile& shown = other ? *other : profile;
  const Talkers before = talkers_of(profile), after = other ? talkers_of(*other) : Talkers();
  const std::vector<Talker>&first = before.all, &second = after.all;
  const std::vector<Talker>& talkers = other ? second : first;
  if (talkers.empty()) return "";

  std::vector<double> xs, ys;
  double longest = 0;
  for (const auto* all : {&first, &second})
    for (const Talker& t : *all)
      xs.push_back(t.x()), ys.push_back(t.y()), longest = std::max(longest, t.comm);
  const double peak = shown.machine ? shown.machine->peak(shown.arithmetic) : 0;
  const Links links = peak > 0 ? Links(shown, *shown.machine) : Links();
  if (peak > 0) ys.push_back(peak);
  if (links.best > 0) xs.push_back(peak / links.best / 3);  // where its line starts to be seen
  const auto x = LogScale::around(xs, left, right), y = LogScale::around(ys, bottom, top);

  std::string note = other ? "Faint: before; full: after. " : "";
  if (const auto& [all, moving, n] = other ? after : before; n > 0)
    note += text("Not shown, as they compute nothing: ", n, n == 1 ? " layer, " : " layers, ",
                 bytes_text(moving.wire), " on the wire in ", seconds_text(moving.comm),
                 ", waited for ", seconds_text(moving.exposed), ". ");
  const std::vector<std::string> told = wrapped(
      note + "All passes of a layer; the reduction of a bucket is shared by bytes.", wide - left);
  Svg svg("communication", wide, high - Svg::note_line + Svg::note_line * double(told.size()),
          "What each layer computes per byte on the wire", options);
  log_axes(svg, x, y, 1, 1e-9, "FLOP per byte on the wire", "GFLOP/s, over time in communication");
  Boxes boxes;
  for (const Talker& t : talkers) {
    const double r = radius(t.comm, longest), cx = x(t.x()), cy = y(t.y());
    boxes.taken.push_back({cx - r, cy - r, cx + r, cy + r});
  }
  std::vector<LinkLine> lines;
  if (links.best > 0)
    lines.emplace_back(x, y, links.best,
                       text(name(links.op), ", best  ", brief(links.best / 1e9), " GB/s"));
  if (links.small > 0 && links.small < 0.7 * links.best)
    lines.emplace_back(x, y, links.small,
                       text(name(links.op), " of ", bytes_text(links.small_bytes), "  ",
                            brief(links.small / 1e9), " GB/s"));
  svg.open("g", {{"class", "roofs"}});
  if (peak > 0) {
    svg.line("roof main", left, y(peak), right, y(peak));
    svg.words(column - 16, y(peak) + 4, text(brief(peak / 1e9), " GFLOP/s FMA peak"));
    for (const auto& [down, words] : {std::pair{21, "above: hidden even by kernels at peak"},
                                      std::pair{36, "below: hidden only by slower ones"}})
      svg.words(column - 16, y(peak) + down, words, "small muted");
  }
  for (const LinkLine& line : lines)
    line.draw(svg, &line == &lines[0] ? "roof main" : "roof library");
  svg.close();
  if (other) {
    marks(svg, x, y, first, longest, true);
    std::map<std::string, const Talker*> known;
    for (const Talker& t : first) known[t.any->name] = &t;
    svg.open("g", {{"class", "joins"}});
    for (const Talker& t : second)
      if (const auto found = known.find(t.any->name); found != known.end())
        svg.line("joined", x(found->second->x()), y(found->second->y()), x(t.x()), y(t.y()));
    svg.close();
  }
  marks(svg, x, y, talkers, longest, false);

  svg.open("g", {{"class", "dot-names"}});
  for (std::size_t i = 0; i < std::min<std::size_t>(talkers.size(), 8); ++i) {
    const Talker& t = talkers[i];
    const double r = radius(t.comm, longest) + 4, w = text_width(t.any->name, 11);
    const double cx = x(t.x()), cy = y(t.y());
    for (const double x0 : {cx + r, cx - r - w}) {
      const Boxes::Rectangle b{x0, cy - 7, x0 + w, cy + 7};
      if (b.x0 < left || b.x1 > right || !boxes.free(b)) continue;
      svg.words(x0, cy + 4, t.any->name, "dot-name small");
      boxes.taken.push_back(b);
      break;
    }
  }
  for (const LinkLine& line : lines) line.name(svg, boxes);
  svg.close();
  legend(svg, talkers, longest);
  svg.note(left, high - 12, told);
  return svg.finish();
}

}  // namespace lamina::detail
