// Svg: writes a drawing element by element; scales, and words for quantities.
#pragma once

#include "drawings.hpp"

#include <lamina/profile/roofline.hpp>

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace lamina::detail {

/// At most two decimals and no zeros behind them; 0 for what is no number.
std::string number(double v);
/// With three digits, as people read them: "0.042", "1.23", "45.6", "1234".
std::string brief(double v);
std::string seconds_text(double seconds);  ///< "1.23 ms"
std::string bytes_text(double bytes);      ///< "45.6 MB"
std::string flops_text(double flops);      ///< "1.23 GFLOP"
std::string percent_text(double fraction);
/// For text and attributes: markup escaped, invalid UTF-8 replaced, control characters left out.
std::string escape_xml(std::string_view s);
/// Pixels that text of 12 px takes up, on the safe side.
double text_width(std::string_view s, double size = 12);
/// Cut at the end to fit into so many pixels.
std::string fitted(std::string_view s, double width, double size = 12);
/// Cut at blanks into lines that fit into so many pixels.
std::vector<std::string> wrapped(std::string_view s, double width, double size = 12);

class Svg {
 public:
  struct Attribute {
    Attribute(std::string_view n, double v) : name(n), value(number(v)) {}
    Attribute(std::string_view n, std::string_view v) : name(n), value(escape_xml(v)) {}
    Attribute(std::string_view n, const std::string& v) : name(n), value(escape_xml(v)) {}
    Attribute(std::string_view n, const char* v) : name(n), value(escape_xml(v)) {}
    std::string_view name;
    std::string value;
  };
  using Attributes = std::initializer_list<Attribute>;

  /// `kind` is the drawing's class; `title` says what it shows, to those who cannot see it.
  Svg(std::string_view kind, double width, double height, std::string_view title,
      DrawingOptions options);

  void open(std::string_view tag, Attributes attributes);
  void close();
  /// An element with nothing inside but its <title>, if any.
  void put(std::string_view tag, Attributes attributes, std::string_view title = {});
  void line(std::string_view kind, double x1, double y1, double x2, double y2);
  /// Words at the baseline (x, y); `kind` is a class: "muted", "strong", "end", "middle", ...
  void words(double x, double y, std::string_view s, std::string_view kind = {});
  void words(std::string_view s, Attributes attributes);
  /// What is told below a drawing, from the baseline (x, y) downwards.
  void note(double x, double y, const std::vector<std::string>& lines);
  static constexpr double note_line = 16;  ///< pixels from one line of a note to the next
  /// Closes all that is open.
  std::string finish();

 private:
  void start(std::string_view tag, Attributes attributes);

  std::string out_;
  std::vector<std::string> open_;
};

/// Maps [low, high] to pixels [from, to] by their logarithms.
struct LogScale {
  double low = 1, high = 10, from = 0, to = 1;

  double operator()(double v) const;
  double pixels_per_decade() const;
  /// Powers of ten in range; with few of them 2 and 5 times those too.
  std::vector<double> ticks() const;
  /// The smallest scale of whole steps 1, 2, 5 around values above zero.
  static LogScale around(const std::vector<double>& values, double from, double to);
};

/// Between the ticks of a linear axis: 1, 2 or 5 times a power of ten, at most `most` of them.
double tick_step(double range, int most);

/// Grid, ticks and titles of both axes. Ticks show value * unit.
void log_axes(Svg& svg, const LogScale& x, const LogScale& y, double x_unit, double y_unit,
              std::string_view x_title, std::string_view y_title);

/// A path around (0, 0) with the area of a circle of radius r: a circle, square, diamond or
/// triangle for the four passes.
std::string shape_of(Pass pass, double r);

/// Names of passes, for people.
const char* words_of(Pass pass);
/// What held rows up, after "bound by".
std::string_view words_of(Bound bound);
/// Those that the profile has rows of, in the order of a step.
std::vector<Pass> passes_of(const Profile& profile);

/// Moves positions (sorted, ascending) as little as it takes to be `gap` apart within [low, high].
void spread_out(std::vector<double>& at, double gap, double low, double high);

/// Rectangles that are taken, for labels that must not collide.
struct Boxes {
  struct Rectangle {
    double x0, y0, x1, y1;
  };
  std::vector<Rectangle> taken;
  bool free(const Rectangle& b) const;
};

}  // namespace lamina::detail
