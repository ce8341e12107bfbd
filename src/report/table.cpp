// The table of a profile: which columns fit into a terminal, and what stands in them.
#include <lamina/profile/table.hpp>

#include <algorithm>
#include <functional>
#include <numeric>

namespace lamina {

namespace {

using Cells = std::vector<std::string>;

/// A layer with its passes, or one pass, or the sum of several layers.
struct Line {
  ProfileRow row;                  // of the first pass; times, work and bytes are those of all
  double passes[pass_count] = {};  // seconds in kernels
  bool ran[pass_count] = {};
  double slowest = 0;  // the sum of the slowest ranks' times

  explicit Line(const ProfileRow& r) : row(r), slowest(r.time.max) {
    passes[int(r.pass)] = r.time.mean, ran[int(r.pass)] = true;
  }
  Line& operator+=(const Line& other) {
    row.work += other.row.work;
    row.time.mean += other.row.time.mean, row.comm.mean += other.row.comm.mean;
    row.exposed.mean += other.row.exposed.mean, row.comm_bytes += other.row.comm_bytes;
    slowest += other.slowest;
    for (int k = 0; k < pass_count; ++k) passes[k] += other.passes[k], ran[k] |= other.ran[k];
    return *this;
  }
};

/// A column: the more important, the smaller its rank. It holds either words or numbers, which are
/// shown with the same decimals: so many, or as many as the largest number has digits left for.
struct Column {
  const char* head;
  int rank;
  std::function<std::string(const Line&)> words = {};
  std::function<double(const Line&)> number = {};  // of which only those above zero are shown
  int digits = 0, decimals = -1;
};

using Words = std::string (*)(const Line&);
using Number = double (*)(const Line&);

Column words(const char* head, int rank, Words of) { return {head, rank, of, {}}; }
Column numbers(const char* head, int rank, int digits, Number of) {
  return {head, rank, {}, of, digits};
}

int digits_before_point(double v) {
  int digits = 1;
  for (; v >= 10; v /= 10) ++digits;
  return digits;
}

std::vector<Column> columns_of(const Profile& p, const std::vector<Line>& lines, bool wide) {
  double longest = 0;
  for (const Line& l : lines) longest = std::max(longest, l.row.seconds() * 1e6);
  const int decimals = std::clamp(5 - digits_before_point(longest), 0, 2);
  std::vector<Column> c;
  const auto micros = [&](const char* head, int rank, std::function<double(const Line&)> seconds) {
    const auto us = [seconds](const Line& l) { return seconds(l) * 1e6; };
    c.push_back({head, rank, {}, us, 0, decimals});
  };

  c.push_back(words("layer", 0, [](const Line& l) { return l.row.name; }));
  c.push_back(words("type", 9, [](const Line& l) { return l.row.type; }));
  if (wide) {
    c.push_back(words("split", 0, [](const Line& l) { return l.row.split; }));
    c.push_back(words("pass", 0, [](const Line& l) { return std::string(name(l.row.pass)); }));
    micros("time_us", 0, [](const Line& l) { return l.row.time.mean; });
    micros("std_us", 0, [](const Line& l) { return l.row.step_std; });
  } else {
    constexpr const char* heads[] = {"fwd_us", "dx_us", "dw_us", "upd_us"};
    for (int k = 0; k < pass_count; ++k)
      micros(heads[k], 1, [k](const Line& l) { return l.passes[k]; });
  }
  micros("comm_us", 4, [](const Line& l) { return l.row.comm.mean; });
  micros("exposed_us", 3, [](const Line& l) { return l.row.exposed.mean; });
  if (wide)
    c.push_back({"comm_bytes", 0, {}, [](const Line& l) { return l.row.comm_bytes; }, 0, 0});
  if (!wide) micros("total_us", 0, [](const Line& l) { return l.row.seconds(); });
  const auto share = [&p](const Line& l) {
    return p.end_to_end.mean > 0 ? 100 * l.row.seconds() / p.end_to_end.mean : 0;
  };
  c.push_back({"%", 1, {}, share, 0, 1});
  if (p.ranks > 1)
    c.push_back(numbers("imb", 8, 3, [](const Line& l) {
      return l.row.time.mean > 0 ? l.slowest / l.row.time.mean : 0;
    }));
  c.push_back(numbers("gflop", 6, 5, [](const Line& l) { return l.row.work.flops / 1e9; }));
  c.push_back(numbers("mbytes", 7, 5, [](const Line& l) { return l.row.work.bytes / 1e6; }));
  c.push_back({"ai", 5, {}, [](const Line& l) { return l.row.work.intensity(); }, 0, 2});
  c.push_back(
      numbers("gflops", 2, 4, [](const Line& l) { return l.row.flops_per_second() / 1e9; }));
  if (wide)
    c.push_back(numbers("gbs", 0, 4, [](const Line& l) { return l.row.bytes_per_second() / 1e9; }));
  c.push_back(words("algo", 10, [](const Line& l) { return l.row.algorithm; }));
  if (wide)
    c.push_back(numbers("ws_mb", 0, 4, [](const Line& l) { return l.row.workspace / 1e6; }));
  c.push_back(words("what", 11, [](const Line& l) { return l.row.describe; }));
  return c;
}

Cells cells(const Column& column, const std::vector<Line>& lines) {
  Cells out;
  double largest = 0;
  if (column.number)
    for (const Line& l : lines) largest = std::max(largest, column.number(l));
  const int decimals = column.decimals >= 0
                           ? column.decimals
                           : std::clamp(column.digits - digits_before_point(largest), 0, 3);
  for (const Line& l : lines) {
    const double v = column.number ? column.number(l) : 0;
    out.push_back(column.words ? column.words(l) : v > 0 ? format("%.*f", decimals, v) : "-");
  }
  return out;
}

std::size_t widest(const Cells& cells, std::string_view head) {
  std::size_t width = head.size();
  for (const auto& c : cells) width = std::max(width, c.size());
  return width;
}

/// "layer4.2.downsample.conv" -> "layer4.2..conv": both ends of a long name tell most.
std::string shorten(const std::string& s, std::size_t width) {
  if (s.size() <= width) return s;
  const std::size_t tail = (width - 2) / 2, head = width - 2 - tail;
  return s.substr(0, head) + ".." + s.substr(s.size() - tail);
}

/// The lines in the wanted order; those that are not among the top ones are summed up in the last.
std::vector<Line> collect(const Profile& p, const TableOptions& options) {
  std::vector<Line> lines;
  for (std::size_t i = 0; i < p.rows.size(); ++i) {
    if (!options.wide && i > 0 && p.rows[i].layer == p.rows[i - 1].layer)
      lines.back() += Line(p.rows[i]);
    else
      lines.emplace_back(p.rows[i]);
  }
  std::vector<std::size_t> order(lines.size());
  std::iota(order.begin(), order.end(), 0);
  const auto longer = [&](std::size_t a, std::size_t b) {
    return lines[a].row.seconds() > lines[b].row.seconds();
  };
  const auto before = [&](std::size_t a, std::size_t b) {
    return lines[a].row.name < lines[b].row.name;
  };
  std::vector<std::size_t> others;
  if (options.top > 0 && order.size() > std::size_t(options.top)) {
    std::stable_sort(order.begin(), order.end(), longer);
    others.assign(order.begin() + options.top, order.end());
    order.resize(std::size_t(options.top));
    std::sort(order.begin(), order.end());
  }
  if (options.sort == TableOptions::Sort::time)
    std::stable_sort(order.begin(), order.end(), longer);
  if (options.sort == TableOptions::Sort::name)
    std::stable_sort(order.begin(), order.end(), before);

  std::vector<Line> chosen;
  for (const std::size_t i : order) chosen.push_back(lines[i]);
  if (!others.empty()) {
    Line sum = lines[others[0]];
    for (std::size_t i = 1; i < others.size(); ++i) sum += lines[others[i]];
    sum.row.name = text('(', others.size(), " more)");
    sum.row.type = sum.row.split = sum.row.algorithm = sum.row.describe = "";
    sum.row.workspace = sum.row.step_std = 0;
    chosen.push_back(std::move(sum));
  }
  return chosen;
}

std::string footer(const Profile& p) {
  const auto us = [](double seconds) { return format("%12.1f us", seconds * 1e6); };
  std::string s = "sum_layers  " + us(p.sum_layers.mean);
  append(s, format("   kernels %.1f, waiting %.1f\n", p.compute.mean * 1e6,
                   (p.sum_layers.mean - p.compute.mean) * 1e6));
  append(s, "end_to_end  " + us(p.end_to_end.mean));
  append(s, text("   mean of ", p.steps, p.steps == 1 ? " step" : " steps"));
  if (p.ranks > 1) append(s, text(" on ", p.ranks, " ranks"));
  append(s, format("\nunaccounted %12.1f %%\n", 100 * p.unaccounted()));
  double comm = 0, hidden = 0;
  for (const ProfileRow& r : p.rows) {
    comm += r.comm.mean;
    hidden += std::max(0.0, r.comm.mean - r.exposed.mean);  // waking up counts as waiting, too
  }
  if (comm > 0)
    append(s, format("communication %.1f us, %.1f %% of it behind kernels\n", comm * 1e6,
                     100 * hidden / comm));
  if (p.ranks > 1)
    append(s, format("slowest rank %d: kernels %.1f us, imbalance %.3f (max / mean)\n",
                     p.compute.slowest, p.compute.max * 1e6, p.compute.imbalance()));
  append(s, "bytes: compulsory, each operand once; 1 FMA = 2 FLOP\n");
  return s;
}

}  // namespace

TableOptions::Sort parse_sort(std::string_view name) {
  if (name == "order") return TableOptions::Sort::order;
  if (name == "time") return TableOptions::Sort::time;
  if (name == "name") return TableOptions::Sort::name;
  throw Error(text("sort '", name, "' is not known: expected order, time or name"));
}

std::string table(const Profile& profile, const TableOptions& options) {
  const std::vector<Line> lines = collect(profile, options);
  struct Ready {
    Column column;
    Cells cells;
    std::size_t width;
  };
  std::vector<Ready> columns;
  for (Column& c : columns_of(profile, lines, options.wide)) {
    Cells all = cells(c, lines);
    const bool empty = std::all_of(all.begin(), all.end(),
                                   [](const std::string& s) { return s.empty() || s == "-"; });
    if (empty && c.rank > 0) continue;
    const std::size_t width = widest(all, c.head);
    columns.push_back({std::move(c), std::move(all), width});
  }

  // Columns go, the least important first, until the rest fits beside names of a fair length; then
  // names get what is left.
  Ready& names = columns[0];
  constexpr std::size_t fair = 20, least = 8;
  const std::size_t natural = names.width;
  names.width = std::min(natural, fair);
  const auto total = [&] {
    std::size_t sum = columns.size() - 1;
    for (const Ready& r : columns) sum += r.width;
    return sum;
  };
  if (options.wide) {
    names.width = natural;
  } else {
    const auto limit = std::size_t(std::max(options.width, 0));
    while (total() > limit) {
      const auto worst = std::max_element(
          columns.begin(), columns.end(),
          [](const Ready& a, const Ready& b) { return a.column.rank < b.column.rank; });
      if (worst->column.rank <= 1) break;
      columns.erase(worst);
    }
    const std::size_t rest = total() - columns[0].width;
    columns[0].width =
        std::clamp(limit > rest ? limit - rest : 0, std::min(least, natural), natural);
  }

  std::string out;
  const auto line = [&](auto&& cell) {
    std::string s;
    for (const Ready& r : columns) {
      const std::string c = shorten(cell(r), r.width);
      const std::string blank(r.width - c.size(), ' ');
      if (&r != &columns[0]) s += ' ';
      s += r.column.words ? c + blank : blank + c;
    }
    s.erase(s.find_last_not_of(' ') + 1);
    out += s + '\n';
  };
  line([](const Ready& r) { return std::string(r.column.head); });
  for (std::size_t i = 0; i < lines.size(); ++i) line([i](const Ready& r) { return r.cells[i]; });
  return out + footer(profile);
}

}  // namespace lamina
