// Memory: what each layer keeps, as bars.
#include "svg.hpp"

#include <algorithm>
#include <array>

namespace lamina::detail {

namespace {

constexpr double wide = 1120, left = 230, right = 1030, row = 21, above = 62, gap = 28;
constexpr std::size_t most = 25;

struct Kind {
  const char* words;
  std::size_t Memory::*bytes;
};
constexpr std::array<Kind, 6> kinds = {{{"parameters", &Memory::parameters},
                                        {"gradients", &Memory::gradients},
                                        {"optimizer", &Memory::optimizer},
                                        {"activations", &Memory::activations},
                                        {"workspace", &Memory::workspace},
                                        {"messages", &Memory::messages}}};

std::string note_of(const Profile& profile) {
  std::string note = text("In all ", bytes_text(double(profile.memory.total())), " on rank 0");
  std::size_t sum = 0;
  for (const LayerMemory& m : profile.layer_memory) sum += m.memory.total();
  if (sum > profile.memory.total())
    note += text(", less than the ", bytes_text(double(sum)),
                 " of the layers: activations and their gradients share one arena, and kernels"
                 " their scratch");
  return note + ".";
}

}  // namespace

std::string draw_memory(const Profile& profile, DrawingOptions options) {
  std::vector<LayerMemory> all;
  LayerMemory others;
  for (const LayerMemory& m : profile.layer_memory)
    if (m.memory.total() > 0) all.push_back(m);
  if (all.empty()) return "";
  std::stable_sort(all.begin(), all.end(), [](const LayerMemory& a, const LayerMemory& b) {
    return a.memory.total() > b.memory.total();
  });
  const std::size_t rest = all.size() > most ? all.size() - most : 0;
  for (const Kind& k : kinds)
    for (std::size_t i = all.size() - rest; i < all.size(); ++i)
      others.memory.*k.bytes += all[i].memory.*k.bytes;
  all.resize(all.size() - rest);
  if (rest > 0) {
    others.name = text(rest, rest == 1 ? " other layer" : " other layers");
    all.push_back(others);
  }

  double longest = 0;
  for (std::size_t i = 0; i < all.size() - (rest > 0); ++i)
    longest = std::max(longest, double(all[i].memory.total()));
  const double bottom = above + row * double(all.size()), scale = (right - left) / longest;
  const std::vector<std::string> note = wrapped(note_of(profile), wide - left);
  Svg svg("memory", wide, bottom + 32 + Svg::note_line * double(note.size()), "Memory per layer",
          options);

  const auto words_of = [&](const Kind& k) {
    return text(k.words, " ", bytes_text(double(profile.memory.*k.bytes)));
  };
  double legend = 0;
  for (const Kind& k : kinds)
    if (profile.memory.*k.bytes > 0) legend += gap + text_width(words_of(k));

  svg.open("g", {{"class", "legend"}});
  double x = std::max(0.0, std::min(left, wide - legend));  // six do not fit behind the names
  for (const Kind& k : kinds) {
    if (profile.memory.*k.bytes == 0) continue;
    const std::string words = words_of(k);
    svg.put("rect", {{"class", text("holds-", k.words)},
                     {"x", x},
                     {"y", 11},
                     {"width", 11},
                     {"height", 11},
                     {"rx", 2}});
    svg.words(x + 16, 21, words, "muted");
    x += gap + text_width(words);
  }
  svg.close();

  svg.open("g", {{"class", "axes"}});
  const double step = tick_step(longest, 6);
  for (int i = 0; i * step <= longest; ++i) {
    const double at = left + i * step * scale;
    svg.line("grid", at, above - 6, at, bottom);
    svg.words(at, above - 12, i == 0 ? "0" : bytes_text(i * step), "tick middle");
  }
  svg.close();

  svg.open("g", {{"class", "bars"}});
  double y = above;
  for (const LayerMemory& m : all) {
    svg.words(left - 10, y + 14, fitted(m.name, left - 24), "end");
    // All others together may be too long: their bar is torn.
    const auto total = double(m.memory.total());
    const double pixels = std::min(scale, (right - left) / total);
    double at = left;
    for (const Kind& k : kinds) {
      const double bytes = double(m.memory.*k.bytes), w = bytes * pixels;
      if (w <= 0) continue;
      if (w >= 0.05)
        svg.put("rect",
                {{"class", text("holds-", k.words)},
                 {"x", at},
                 {"y", y + 3},
                 {"width", w},
                 {"height", row - 6}},
                text(m.name, m.type.empty() ? "" : text(" (", m.type, ")"), "\n", k.words, " ",
                     bytes_text(bytes), " of ", bytes_text(total)));
      at += w;
    }
    if (pixels < scale)
      for (const double tear : {at - 24, at - 18})
        svg.line("tear", tear, y + row - 1, tear + 6, y + 1);
    svg.words(at + 6, y + 14, bytes_text(total), "small muted");
    y += row;
  }
  svg.close();
  svg.note(left, bottom + 28, note);
  return svg.finish();
}

}  // namespace lamina::detail
