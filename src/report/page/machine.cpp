// The machine's section of the report's page: all that its ceilings were measured to be.
#include "report/drawings/svg.hpp"
#include "sections.hpp"
#include "small_table.hpp"

#include <map>
#include <set>

namespace lamina::detail {

namespace {

/// Behind the names of ceilings that may be too low.
const char* mark(bool disturbed) { return disturbed ? " ?" : ""; }

std::string compute_table(const Machine& m) {
  if (m.compute.empty()) return "";
  constexpr const char* kinds[] = {"register-only FMA", "GEMM", "convolution"};
  SmallTable table("Compute, GFLOP/s of a rank", {"", "dtype", "alone", "all ranks"});
  for (const ComputeCeiling& c : m.compute)
    table.row(
        {text(kinds[int(c.kind)], " <small>", escape_xml(c.name), "</small>", mark(c.disturbed)),
         escape_xml(name(c.dtype)), format("%.1f", c.flops.alone / 1e9),
         format("%.1f", c.flops.together / 1e9)});
  return table.done();
}

std::string memory_table(const Machine& m) {
  if (m.memory.empty()) return "";
  SmallTable table("Memory, GB/s of a rank",
                   {"", "capacity", "triad alone", "triad all ranks", "read alone",
                    "read all ranks", "scale alone", "scale all ranks"});
  for (const MemoryCeiling& c : m.memory)
    table.row({escape_xml(c.level) + mark(c.disturbed),
               c.capacity > 0 ? bytes_text(c.capacity) : "", format("%.1f", c.triad.alone / 1e9),
               format("%.1f", c.triad.together / 1e9), format("%.1f", c.read.alone / 1e9),
               format("%.1f", c.read.together / 1e9), format("%.1f", c.scale.alone / 1e9),
               format("%.1f", c.scale.together / 1e9)});
  return table.done();
}

/// A table per group of ranks: a row per size, and for each collective its time and bus bandwidth.
std::string comm_tables(const Machine& m) {
  std::map<std::pair<int, int>, std::map<double, std::map<Collective, const CommCeiling*>>> groups;
  std::set<Collective> ops;
  for (const CommCeiling& c : m.comm) {
    groups[{c.ranks, c.stride}][c.bytes][c.op] = &c;
    ops.insert(c.op);
  }
  std::string out;
  for (const auto& [group, sizes] : groups) {
    std::vector<std::string> heads = {"size"};
    for (const Collective op : ops)
      heads.push_back(escape_xml(op == Collective::halo ? "point to point" : name(op)));
    SmallTable table(text("Collectives of ", group.first, " ranks",
                          group.second > 1 ? text(", every ", group.second, "th") : std::string(),
                          ": bus bandwidth in GB/s <small>time</small>"),
                     heads);
    for (const auto& [size, found] : sizes) {
      std::vector<std::string> cells = {bytes_text(size)};
      for (const Collective op : ops) {
        const auto c = found.find(op);
        cells.push_back(c == found.end() ? std::string()
                                         : text(brief(c->second->bus_bandwidth() / 1e9), " <small>",
                                                seconds_text(c->second->seconds), "</small>",
                                                mark(c->second->disturbed)));
      }
      table.row(cells);
    }
    append(out, table.done());
  }
  return out;
}

/// What could not be measured without disturbance.
std::string disturbance(const Machine& m) {
  std::string out;
  if (m.disturbed() > 0)
    append(out, text("<p>? disturbed: others used the machine while this was measured, again and "
                     "again. It may do better; what is marked (",
                     m.disturbed(), ") is not kept for later runs.</p>\n"));
  if (m.missing > 0)
    append(out, text("<p>Not here, since disturbed when they were measured: ",
                     plural(std::size_t(m.missing), "ceiling"), ".</p>\n"));
  return out;
}

}  // namespace

std::string machine_tables(const Machine& m) {
  return text("<p>", escape_xml(m.cpu), " on ", escape_xml(m.host), ": ",
              plural(std::size_t(m.ranks), "rank"), " of ",
              plural(std::size_t(m.threads), "thread"), " on ",
              plural(std::size_t(m.nodes), "node"), ", back end ", escape_xml(m.backend),
              ", measured ", escape_xml(m.date), ". A kernel with next to nothing to do takes ",
              seconds_text(m.launch), ".</p>\n<div class=\"tables\">", compute_table(m),
              memory_table(m), comm_tables(m), "</div>\n", disturbance(m));
}

}  // namespace lamina::detail
