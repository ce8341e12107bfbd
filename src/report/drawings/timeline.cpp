// The timeline of the last measured step: what each rank computed, sent and waited for. The page's
// script zooms into it (page/timeline.js): to this end pieces that stand for several spans, or are
// drawn wider than they are, carry what they are made of.
#include "svg.hpp"

#include <algorithm>
#include <cmath>

namespace lamina::detail {

namespace {

constexpr double wide = 1120, left = 76, right = 1000, top = 56;
constexpr std::size_t most = 16, shown_of_many = 8;
constexpr double least = 0.3;  // pixels: to be seen at all

/// Fine enough to be looked at a thousand times as large.
std::string fine(double pixels) { return format("%.5f", pixels); }

/// Spans of one lane that belong together: of one layer and pass, without a gap that can be seen.
struct Piece {
  int layer;
  Pass pass;
  Lane lane;
  double begin, end, bytes;
  std::vector<TimelineSpan> spans;
  bool several = false;  // layers: too short to be told apart
};

std::vector<Piece> pieces_of(const std::vector<TimelineSpan>& spans, Lane lane, double visible) {
  std::vector<TimelineSpan> sorted;
  for (const TimelineSpan& s : spans)
    if (s.lane == lane && s.end >= s.begin && std::isfinite(s.end - s.begin)) sorted.push_back(s);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.begin < b.begin; });
  std::vector<Piece> all;
  for (const TimelineSpan& s : sorted) {
    if (!all.empty()) {
      Piece& last = all.back();
      const bool same = last.layer == s.layer && last.pass == s.pass;
      const bool tiny = lane == Lane::compute && last.pass == s.pass &&
                        std::max(last.end, s.end) - last.begin < visible;
      if (s.begin - last.end < visible / 2 && (same || tiny)) {
        last.end = std::max(last.end, s.end), last.bytes += s.bytes;
        last.spans.push_back(s);
        last.several |= !same;
        continue;
      }
    }
    all.push_back({s.layer, s.pass, lane, s.begin, s.end, s.bytes, {s}});
  }
  return all;
}

/// The ranks to draw: all, or the first ones and the slowest.
std::vector<int> ranks_of(const Profile& p) {
  std::vector<int> ranks;
  const std::size_t n = p.timeline.size() <= most ? p.timeline.size() : shown_of_many;
  for (std::size_t r = 0; r < n; ++r) ranks.push_back(int(r));
  const int slowest = p.compute.slowest;
  if (slowest >= int(n) && slowest < int(p.timeline.size())) ranks.push_back(slowest);
  return ranks;
}

class Lanes {
 public:
  Lanes(Svg& svg, const Profile& profile, double end, bool low, bool before)
      : svg_(svg),
        profile_(profile),
        scale_((right - left) / end),
        height_(kernels_height(low)),
        before_(before) {}

  /// With the gap below.
  static double rank_height(bool low) { return std::round(1.5 * kernels_height(low)) + 14; }

  void rank(int r, double y, bool communicates) {
    const auto& spans = profile_.timeline[std::size_t(r)];
    const double visible = 0.6 / scale_;
    const double both = height_ + (communicates ? comm_height() + 2 : 0);
    double kernels = 0, waiting = 0;
    svg_.open("g", {{"class", "rank"}, {"data-rank", double(r)}});
    svg_.words(left - 10, y + height_ / 2 + 4, text("rank ", r), "end");
    svg_.put(
        "rect",
        {{"class", "lane"}, {"x", left}, {"y", y}, {"width", right - left}, {"height", height_}});
    for (const Piece& p : pieces_of(spans, Lane::compute, visible)) {
      box(p, text("span pass-", name(p.pass)), y, height_, p.end);
      kernels += p.end - p.begin;
    }
    const std::vector<Piece> waits = pieces_of(spans, Lane::wait, visible);
    for (const Piece& p : pieces_of(spans, Lane::communication, visible)) {
      double clear = p.end;  // the name shall not lie under a hatch
      for (const Piece& w : waits)
        if (w.end > p.begin) clear = std::min(clear, std::max(w.begin, p.begin));
      box(p, "span lane-communication", y + height_ + 2, comm_height(), clear);
    }
    for (const Piece& p : waits) {
      box(p, "span wait", y, both, p.end);
      waiting += p.end - p.begin;
    }
    svg_.words(right + 10, y + (communicates ? 12 : height_ / 2 + 4),
               text("kernels ", seconds_text(kernels)), "small muted");
    if (communicates)
      svg_.words(right + 10, y + 27, text("waits ", seconds_text(waiting)), "small muted");
    svg_.close();
  }

 private:
  static double kernels_height(bool low) { return low ? 17 : 26; }
  double comm_height() const { return std::round(height_ * 0.5); }

  double pixels(double seconds) const { return left + std::max(0.0, seconds) * scale_; }

  /// Of each span the layer, the place and the width.
  std::string parts_of(const Piece& p) const {
    std::string s;
    for (const TimelineSpan& span : p.spans) {
      const double x = pixels(span.begin);
      append(s,
             text(s.empty() ? "" : " ", span.layer, ' ', fine(x), ' ', fine(pixels(span.end) - x)));
    }
    return s;
  }

  std::string layer(int i) const {
    if (i >= 0 && i < int(profile_.layers.size())) return profile_.layers[std::size_t(i)];
    return i < 0 ? outside_layers : text("layer ", i);
  }

  /// A name fits in up to the second `clear`.
  void box(const Piece& p, std::string_view kind, double y, double height, double clear) {
    const double x = pixels(p.begin), w = std::max(least, pixels(p.end) - x);
    const std::string all = layer(p.layer);
    constexpr const char* lanes[] = {"", ", communication", ", waiting for communication"};
    const std::string what = text(words_of(p.pass), lanes[int(p.lane)]);
    std::string title = p.several ? text(p.spans.size(), " kernels from ", all, " on, ", what)
                                  : text(all, ", ", what);
    title += text("\n", seconds_text(p.end - p.begin), " at ", seconds_text(p.begin));
    if (p.bytes > 0) title += text("\n", bytes_text(p.bytes));
    const bool divides = p.spans.size() > 1 || w == least;
    svg_.put("rect",
             {{"class", kind},
              {before_ ? "data-layer-before" : "data-layer", double(p.layer)},
              {"data-what", divides ? what : ""},
              {"data-parts", divides ? parts_of(p) : ""},
              {"x", fine(x)},
              {"y", y},
              {"width", fine(w)},
              {"height", height},
              {"fill", p.lane == Lane::wait ? "url(#lamina-hatch)" : ""}},
             title);
    if (p.several || p.lane == Lane::wait || height < 13) return;
    const double room = std::min(w, pixels(clear) - x);
    const std::string tail = all.substr(all.rfind('.') + 1);  // where that is more than a number
    const std::string shorter =
        tail.find_first_not_of("0123456789") != std::string::npos ? "\u2026" + tail : all;
    for (const std::string& s : {all, shorter})
      if (text_width(s, 11) + 6 <= room) {
        svg_.words(
            x + room / 2, y + height / 2 + 4, s,
            p.lane == Lane::communication ? "box-name on-communication middle" : "box-name middle");
        break;
      }
  }

  Svg& svg_;
  const Profile& profile_;
  double scale_, height_;
  bool before_;
};

void legend(Svg& svg, const Profile& profile, bool communicates) {
  double x = left;
  const auto entry = [&](std::string_view kind, std::string_view words, bool hatched) {
    svg.put("rect", {{"class", kind},
                     {"x", x},
                     {"y", 12},
                     {"width", 14},
                     {"height", 11},
                     {"fill", hatched ? "url(#lamina-hatch)" : ""}});
    svg.words(x + 19, 22, words, "muted");
    x += 34 + text_width(words);
  };
  svg.open("g", {{"class", "legend"}});
  for (const Pass p : passes_of(profile)) entry(text("pass-", name(p)), words_of(p), false);
  if (communicates) {
    entry("lane-communication", "communication", false);
    entry("wait", "waiting for it (exposed)", true);
  }
  svg.close();
}

}  // namespace

std::string draw_timeline(const Profile& profile, DrawingOptions options) {
  double end = 0;
  bool communicates = false;
  const std::vector<int> ranks = ranks_of(profile);
  for (const int r : ranks)
    for (const TimelineSpan& s : profile.timeline[std::size_t(r)]) {
      if (std::isfinite(s.end)) end = std::max(end, s.end);
      communicates |= s.lane != Lane::compute;
    }
  if (!(end > 0)) return "";

  const bool low = ranks.size() > 4;
  const double rank_height = Lanes::rank_height(low);
  const double bottom = top + rank_height * double(ranks.size());
  std::string note = "Spans too short to be seen are drawn together.";
  if (ranks.size() < profile.timeline.size())
    note = text(profile.timeline.size() - ranks.size(), " of ", profile.timeline.size(),
                " ranks are left out: shown are the first ones and the slowest. ", note);
  const std::vector<std::string> told = wrapped(note, wide - left);
  Svg svg("timeline", wide, bottom + 34 + Svg::note_line * double(told.size()),
          "The last measured step", options);
  svg.open("defs", {});
  svg.open("pattern", {{"id", "lamina-hatch"},
                       {"width", 6},
                       {"height", 6},
                       {"patternUnits", "userSpaceOnUse"},
                       {"patternTransform", "rotate(45)"}});
  svg.put("rect", {{"class", "hatch-paper"}, {"width", 6}, {"height", 6}});
  svg.line("hatch", 0, 0, 0, 6);
  svg.close();
  svg.close();
  legend(svg, profile, communicates);
  svg.open("g", {{"class", "axes"}});
  const double step = tick_step(end, 9);
  for (int i = 0; i * step <= end; ++i) {
    const double x = left + i * step / end * (right - left);
    svg.line("grid", x, top - 8, x, bottom);
    svg.words(x, bottom + 16, brief(i * step * 1e3), "tick middle");
  }
  svg.words(right + 10, bottom + 16, "ms", "tick");
  svg.close();
  Lanes lanes(svg, profile, end, low, options.before);
  double y = top;
  svg.open("g", {{"data-seconds", format("%.9f", end)}});
  for (const int r : ranks) lanes.rank(r, y, communicates), y += rank_height;
  svg.close();

  svg.note(left, bottom + 40, told);
  return svg.finish();
}

}  // namespace lamina::detail
