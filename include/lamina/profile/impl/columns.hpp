// What stands in the columns of a profile's table.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/profile/detail/columns.hpp>

#include <algorithm>
#include <type_traits>

namespace lamina::detail {

namespace cells {

using Row = const ProfileRow&;
using In = const Line&;

inline constexpr const char* red = "\033[31m";
inline constexpr const char* bold = "\033[1m";
inline constexpr const char* dim = "\033[2m";

inline int digits_before_point(double v) {
  int digits = 1;
  for (; v >= 10; v /= 10) ++digits;
  return digits;
}

inline double ratio(double a, double b) { return b > 0 ? a / b : 0; }

inline Cell bound_cell(In l) {
  constexpr const char* names[] = {"compute", "memory", "comm", "overhead", "kernel"};
  constexpr const char* colours[] = {"\033[32m", "\033[36m", "\033[35m", "\033[33m", "\033[34m"};
  return {names[int(l.roof.bound)], colours[int(l.roof.bound)]};
}

/// Collects columns, and leaves out those with nothing to say.
class Columns {
 public:
  Columns(const Profile& profile, const std::vector<Line>& lines, const TableOptions& options)
      : profile_(profile), lines_(lines), options_(options) {
    double longest = 0;
    for (In l : lines) longest = std::max(longest, l.seconds() * 1e6);
    decimals_ = std::clamp(5 - digits_before_point(longest), 0, 2);
  }

  /// For a terminal: the passes of a layer side by side.
  std::vector<Column> narrow() {
    names(Worth::type);
    if (has_unlike_splits(profile_)) words("split", Worth::split, &ProfileRow::split);
    const auto pass = [&](const char* head, Pass p) {
      micros(head, Worth::needed, [p](Row r) { return r.pass == p ? r.time.mean : 0; });
    };
    pass("fwd_us", Pass::forward), pass("again_us", Pass::recompute);
    pass("dx_us", Pass::input_grad), pass("dw_us", Pass::weight_grad);
    pass("upd_us", Pass::update);
    comm(Worth::comm, Worth::exposed, Worth::late);
    micros("total_us", Worth::always, [](Row r) { return r.seconds(); });
    shares();
    apart();
    roof("%roof", Worth::roof, Worth::roof_share, Worth::bound, Worth::wasted);
    work(Worth::gflop, Worth::mbytes, Worth::intensity, Worth::gflops);
    counts();
    words("algo", Worth::algorithm, &ProfileRow::algorithm);
    words("what", Worth::description, &ProfileRow::describe);
    return std::move(columns_);
  }

  /// Everything: a row per pass.
  std::vector<Column> wide() {
    constexpr Worth always = Worth::always, rest = Worth::needed;
    names(always);
    words("split", always, &ProfileRow::split);
    column("pass", always, true, [](In l) {
      const auto same = [&](const ProfileRow* r) { return r->pass == l.first().pass; };
      const bool one = std::all_of(l.rows.begin(), l.rows.end(), same);
      return Cell{one ? std::string(name(l.first().pass)) : ""};
    });
    micros("time_us", always, [](In l) { return l.time(); });
    micros("std_us", rest, [](In l) { return l.rows.size() == 1 ? l.first().step_std : 0; });
    shares();
    apart();
    work(always, always, always, always);
    figures("gbs", always, 4, [](In l) { return ratio(l.work().bytes, l.time()) / 1e9; });
    roof("pct_roof", always, always, always, always);
    comm(always, always, always);
    fixed("comm_bytes", always, 0, [](Row r) { return r.comm_bytes; });
    counts();
    words("algo", always, &ProfileRow::algorithm);
    figures("ws_mb", always, 4,
            [](In l) { return l.rows.size() == 1 ? l.first().workspace / 1e6 : 0; });
    words("what", rest, &ProfileRow::describe);
    return std::move(columns_);
  }

 private:
  // ---- groups of columns ---------------------------------------------------------------------

  void names(Worth type) {
    using Group = TableOptions::Group;
    const Group by = options_.group;
    column(by == Group::type    ? "type"
           : by == Group::stage ? "stage"
                                : "layer",
           Worth::always, true, [](In l) { return Cell{l.name}; });
    if (by != Group::layer)
      fixed("layers", options_.wide ? Worth::needed : Worth::layers, 0,
            [](In l) { return l.first().layer < 0 ? 0 : l.layers(); });
    if (by != Group::type) words("type", type, &ProfileRow::type);
  }

  void comm(Worth all, Worth exposed, Worth late) {
    micros("comm_us", all, [](Row r) { return r.comm.mean; });
    micros("exposed_us", exposed, [](Row r) { return r.exposed.mean; });
    micros("late_us", late, [](Row r) { return r.late.mean; });
    micros("transfer_us", late, [](Row r) { return r.transfer.mean; });
  }

  void shares() {
    fixed("%", Worth::needed, 1,
          [this](In l) { return 100 * ratio(l.seconds(), profile_.end_to_end.mean); });
    if (profile_.ranks > 1) figures("imb", Worth::imbalance, 3, [](In l) { return l.imbalance(); });
  }

  /// Beside what a plan expected, and beside the same kernels without communication.
  void apart() {
    micros("pred_us", Worth::predicted, [](Row r) { return r.predicted; });
    micros("alone_us", Worth::alone, [](Row r) { return r.alone.mean; });
    column("slow", Worth::slowdown, false, [](In l) {
      const double slower = l.slowdown();
      return Cell{slower > 1 ? format("%.2f", slower) : slower > 0 ? "no" : "-"};
    });
  }

  void roof(const char* head, Worth attainable, Worth share, Worth bound, Worth wasted) {
    if (!has_ceilings(profile_)) return;
    figures("roof", attainable, 4, [](In l) { return l.roof.flops / 1e9; });
    // The mark has a place of its own, so that digits stand below digits.
    const auto above = [](In l) { return l.roof.above && l.roof.fraction > 1; };
    const char* blank = std::any_of(lines_.begin(), lines_.end(), above) ? " " : "";
    column(head, share, false, [&](In l) {
      if (l.roof.fraction <= 0) return Cell{text('-', blank)};
      return Cell{text(format("%.0f", 100 * l.roof.fraction), above(l) ? "^" : blank),
                  above(l) && l.roof.reason.empty() ? red : ""};
    });
    column("bound", bound, true, bound_cell);
    micros("wasted_us", wasted, [](In l) { return l.roof.wasted; });
    if (columns_.back().head != "wasted_us") return;
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      const double share_of_step = ratio(lines_[i].roof.wasted, profile_.end_to_end.mean);
      columns_.back().cells[i].style = share_of_step > 0.05   ? bold
                                       : share_of_step < 0.01 ? dim
                                                              : "";
    }
  }

  void work(Worth gflop, Worth mbytes, Worth intensity, Worth gflops) {
    figures("gflop", gflop, 5, [](Row r) { return r.work.flops / 1e9; });
    figures("mbytes", mbytes, 5, [](Row r) { return r.work.bytes / 1e6; });
    fixed("ai", intensity, 2, [](In l) { return l.work().intensity(); });
    figures("gflops", gflops, 4, [](In l) { return ratio(l.work().flops, l.time()) / 1e9; });
  }

  /// As processors counted, not as arithmetic says; a line of a cache has 64 bytes.
  void counts() {
    fixed("ipc", Worth::counters, 2,
          [](In l) { return ratio(l.counted(&Counts::instructions), l.counted(&Counts::cycles)); });
    figures("miss_mb", Worth::counters, 4, [](In l) { return l.counted(&Counts::misses) * 64e-6; });
    figures("dram_mb", Worth::counters, 4,
            [](In l) { return l.counted(&Counts::dram_bytes) * 1e-6; });
  }

  // ---- kinds of columns ----------------------------------------------------------------------

  template <class Of>
  void column(const char* head, Worth worth, bool left, Of cell) {
    Column c{head, worth, left, {}};
    for (In l : lines_) c.cells.push_back(cell(l));
    const bool empty = std::all_of(c.cells.begin(), c.cells.end(), [](const Cell& made) {
      return made.text.empty() || made.text[0] == '-';
    });
    if (!empty || worth == Worth::always) columns_.push_back(std::move(c));
  }

  void words(const char* head, Worth worth, std::string ProfileRow::*of) {
    column(head, worth, true, [of](In l) { return Cell{l.shared(of)}; });
  }

  /// `of` a line, or of its rows, to be summed up. Only numbers above zero are shown.
  template <class Of>
  void fixed(const char* head, Worth worth, int decimals, Of of) {
    column(head, worth, false, [&](In l) {
      const double v = value(l, of);
      return Cell{v > 0 ? format("%.*f", decimals, v) : "-"};
    });
  }

  /// With the decimals that the largest number has digits left for.
  template <class Of>
  void figures(const char* head, Worth worth, int digits, Of of) {
    double largest = 0;
    for (In l : lines_) largest = std::max(largest, value(l, of));
    fixed(head, worth, std::clamp(digits - digits_before_point(largest), 0, 3), of);
  }

  /// All times in the table have the same decimals.
  template <class Of>
  void micros(const char* head, Worth worth, Of seconds) {
    fixed(head, worth, decimals_, [&](In l) { return 1e6 * value(l, seconds); });
  }

  template <class Of>
  static double value(In l, Of of) {
    if constexpr (std::is_invocable_v<Of, In>)
      return of(l);
    else
      return l.sum(of);
  }

  const Profile& profile_;
  const std::vector<Line>& lines_;
  const TableOptions& options_;
  int decimals_;
  std::vector<Column> columns_;
};

}  // namespace cells

LAMINA_INLINE std::vector<Column> columns_of(const Profile& profile, const std::vector<Line>& lines,
                                             const TableOptions& options) {
  cells::Columns columns(profile, lines, options);
  return options.wide ? columns.wide() : columns.narrow();
}

}  // namespace lamina::detail
