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

/// A column: the more important, the smaller its rank.
struct Column {
  const char* head;
  int rank;
  int digits;  // significant digits of the largest value; 0 marks text
  std::function<std::string(const Line&)> string = {};
  std::function<double(const Line&)> number = {};  // below zero: nothing to show
};

constexpr double nothing = -1;
double where(bool condition, double value) { return condition ? value : nothing; }

double percent(const Line& l, const Profile& p) {
  return p.end_to_end.mean > 0 ? 100 * l.row.seconds() / p.end_to_end.mean : 0;
}
double imbalance(const Line& l) { return where(l.row.time.mean > 0, l.slowest / l.row.time.mean); }

// Columns that both tables have; work is shown where a kernel ran.
std::vector<Column> work_columns() {
  return {
      {"gflop",
       6,
       5,
       {},
       [](const Line& l) { return where(l.row.work.flops > 0, l.row.work.flops / 1e9); }},
      {"mbytes",
       7,
       5,
       {},
       [](const Line& l) { return where(l.row.work.bytes > 0, l.row.work.bytes / 1e6); }},
      {"ai",
       5,
       4,
       {},
       [](const Line& l) { return where(l.row.work.bytes > 0, l.row.work.intensity()); }},
      {"gflops",
       2,
       4,
       {},
       [](const Line& l) {
         return where(l.row.work.flops > 0 && l.row.time.mean > 0, l.row.flops_per_second() / 1e9);
       }},
  };
}

std::vector<Column> comm_columns(const Profile& p) {
  std::vector<Column> columns = {
      {"comm_us",
       4,
       4,
       {},
       [](const Line& l) { return where(l.row.comm.mean > 0, l.row.comm.mean * 1e6); }},
      {"exposed_us",
       3,
       4,
       {},
       [](const Line& l) { return where(l.row.exposed.mean > 0, l.row.exposed.mean * 1e6); }},
  };
  if (p.ranks > 1) columns.push_back({"imb", 8, 3, {}, imbalance});
  return columns;
}

std::vector<Column> layer_columns(const Profile& p) {
  std::vector<Column> columns = {
      {"layer", 0, 0, [](const Line& l) { return l.row.name; }},
      {"type", 9, 0, [](const Line& l) { return l.row.type; }},
  };
  constexpr const char* heads[] = {"fwd_us", "dx_us", "dw_us", "upd_us"};
  for (int k = 0; k < pass_count; ++k)
    columns.push_back(
        {heads[k], 1, 4, {}, [k](const Line& l) { return where(l.ran[k], l.passes[k] * 1e6); }});
  const auto comm = comm_columns(p);
  columns.insert(columns.end(), comm.begin(), comm.end());
  columns.push_back({"total_us", 0, 4, {}, [](const Line& l) { return l.row.seconds() * 1e6; }});
  columns.push_back({"%", 1, 3, {}, [&p](const Line& l) { return percent(l, p); }});
  const auto work = work_columns();
  columns.insert(columns.end(), work.begin(), work.end());
  columns.push_back({"algo", 10, 0, [](const Line& l) { return l.row.algorithm; }});
  columns.push_back({"what", 11, 0, [](const Line& l) { return l.row.describe; }});
  return columns;
}

std::vector<Column> pass_columns(const Profile& p) {
  std::vector<Column> columns = {
      {"layer", 0, 0, [](const Line& l) { return l.row.name; }},
      {"type", 0, 0, [](const Line& l) { return l.row.type; }},
      {"split", 0, 0, [](const Line& l) { return l.row.split; }},
      {"pass", 0, 0, [](const Line& l) { return std::string(name(l.row.pass)); }},
      {"time_us", 0, 5, {}, [](const Line& l) { return l.row.time.mean * 1e6; }},
      {"%", 0, 3, {}, [&p](const Line& l) { return percent(l, p); }},
  };
  const auto work = work_columns();
  columns.insert(columns.end(), work.begin(), work.end());
  columns.push_back({"gbs", 0, 4, {}, [](const Line& l) {
                       return where(l.row.work.bytes > 0 && l.row.time.mean > 0,
                                    l.row.bytes_per_second() / 1e9);
                     }});
  const auto comm = comm_columns(p);
  columns.insert(columns.end(), comm.begin(), comm.end());
  columns.push_back({"comm_bytes", 0, 12, {}, [](const Line& l) {
                       return where(l.row.comm_bytes > 0, l.row.comm_bytes);
                     }});
  columns.push_back({"std_us", 0, 4, {}, [](const Line& l) { return l.row.step_std * 1e6; }});
  columns.push_back({"algo", 0, 0, [](const Line& l) { return l.row.algorithm; }});
  columns.push_back({"ws_mb", 0, 4, {}, [](const Line& l) {
                       return where(l.row.workspace > 0, l.row.workspace / 1e6);
                     }});
  columns.push_back({"what", 0, 0, [](const Line& l) { return l.row.describe; }});
  return columns;
}

/// All values of a column with the same decimals, so that the points stand in line.
Cells cells(const Column& column, const std::vector<Line>& lines) {
  Cells out;
  if (!column.digits) {
    for (const Line& l : lines) out.push_back(column.string(l));
    return out;
  }
  double largest = 0;
  for (const Line& l : lines) largest = std::max(largest, column.number(l));
  int before = 1;
  for (double v = largest; v >= 10; v /= 10) ++before;
  const int decimals = std::clamp(column.digits - before, 0, 3);
  for (const Line& l : lines) {
    const double v = column.number(l);
    out.push_back(v < 0 ? "-" : format("%.*f", column.digits == 12 ? 0 : decimals, v));
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
  for (auto& c : options.wide ? pass_columns(profile) : layer_columns(profile)) {
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
      s += r.column.digits ? blank + c : c + blank;
    }
    s.erase(s.find_last_not_of(' ') + 1);
    out += s + '\n';
  };
  line([](const Ready& r) { return std::string(r.column.head); });
  for (std::size_t i = 0; i < lines.size(); ++i) line([i](const Ready& r) { return r.cells[i]; });
  return out + footer(profile);
}

}  // namespace lamina
