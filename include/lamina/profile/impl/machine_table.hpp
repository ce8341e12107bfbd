// The ceilings of a machine as a table.
#pragma once

#include <lamina/base/detail/wrap.hpp>
#include <lamina/base/inline.hpp>
#include <lamina/profile/machine.hpp>

#include <algorithm>
#include <array>
#include <string_view>

namespace lamina {

namespace detail::machine_table {

/// Columns as wide as they need to be: the first `words` to the left, numbers to the right.
template <std::size_t Columns>
std::string aligned(const std::vector<std::array<std::string, Columns>>& rows, std::size_t words) {
  std::array<std::size_t, Columns> width{};
  for (const auto& row : rows)
    for (std::size_t i = 0; i < Columns; ++i) width[i] = std::max(width[i], row[i].size());
  std::string lines;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < Columns; ++i) {
      const std::string space(width[i] - row[i].size(), ' ');
      line += (i > 0 ? "  " : "") + (i < words ? row[i] + space : space + row[i]);
    }
    lines += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
  }
  return lines;
}

/// Behind the names of ceilings that may be too low.
inline std::string mark(bool disturbed) { return disturbed ? " ?" : ""; }

inline std::string giga(double x) { return format("%.1f", x * 1e-9); }

/// "1 KiB", "16 MiB", or plain bytes.
inline std::string size(double bytes) {
  const auto whole = [](double x) { return x >= 1 && x == double(std::int64_t(x)); };
  return whole(bytes / 1048576) ? format("%.0f MiB", bytes / 1048576)
         : whole(bytes / 1024)  ? format("%.0f KiB", bytes / 1024)
                                : format("%.0f", bytes);
}

}  // namespace detail::machine_table

LAMINA_INLINE std::string table(const Machine& m) {
  std::string all = detail::wrap(
      text("# ", m.host, ": ", m.cpu, "; ", m.ranks, m.ranks == 1 ? " rank" : " ranks", " on ",
           m.nodes, m.nodes == 1 ? " node, " : " nodes, ", m.threads,
           m.threads == 1 ? " thread" : " threads", " each; ", m.backend, "; measured ", m.date,
           "\n# per rank, alone on its node and all ranks together\n\n"),
      80, "#   ");

  std::vector<std::array<std::string, 5>> compute = {
      {"compute", "type", "what", "GFLOP/s alone", "together"}};
  constexpr std::string_view kinds[] = {"fma", "gemm", "conv"};
  for (const ComputeCeiling& c : m.compute)
    compute.push_back({std::string(kinds[int(c.kind)]), std::string(name(c.dtype)),
                       c.name + detail::machine_table::mark(c.disturbed),
                       detail::machine_table::giga(c.flops.alone),
                       detail::machine_table::giga(c.flops.together)});
  all += detail::machine_table::aligned(compute, 3) + '\n';

  std::vector<std::array<std::string, 8>> memory = {{"memory", "KiB of a rank", "triad GB/s alone",
                                                     "together", "read GB/s alone", "together",
                                                     "scale GB/s alone", "together"}};
  for (const MemoryCeiling& l : m.memory)
    memory.push_back(
        {l.level + detail::machine_table::mark(l.disturbed),
         l.capacity > 0 ? format("%.0f", l.capacity / 1024) : "",
         detail::machine_table::giga(l.triad.alone), detail::machine_table::giga(l.triad.together),
         detail::machine_table::giga(l.read.alone), detail::machine_table::giga(l.read.together),
         detail::machine_table::giga(l.scale.alone),
         detail::machine_table::giga(l.scale.together)});
  all += detail::machine_table::aligned(memory, 1) + '\n';
  all += format("launch of a kernel  %.2f us\n", m.launch * 1e6);
  if (m.disturbed() > 0)
    all += text("\n? disturbed: others used the machine while this was measured, again and again. ",
                "It may do better;\n  what is marked (", m.disturbed(),
                ") is not kept for later runs\n");
  if (m.missing > 0)
    all += text("\nnot here, since disturbed when they were measured: ", m.missing, "\n");
  if (m.comm.empty()) return all;

  // Sizes go down, operations across: time in us and bus bandwidth in GB/s of each.
  std::vector<const CommCeiling*> groups;
  for (const CommCeiling& c : m.comm)
    if (std::none_of(groups.begin(), groups.end(), [&](const CommCeiling* g) {
          return g->ranks == c.ranks && g->stride == c.stride;
        }))
      groups.push_back(&c);
  constexpr std::array ops = {Collective::all_reduce, Collective::all_gather,
                              Collective::reduce_scatter, Collective::all_to_all, Collective::halo};
  for (const CommCeiling* g : groups) {
    std::vector<std::array<std::string, ops.size() + 1>> rows(1);
    rows[0][0] = "us (busbw GB/s)";
    for (std::size_t i = 0; i < ops.size(); ++i) rows[0][i + 1] = name(ops[i]);
    std::vector<double> sizes;
    for (const CommCeiling& c : m.comm) {
      const auto op = std::size_t(std::find(ops.begin(), ops.end(), c.op) - ops.begin());
      if (c.ranks != g->ranks || c.stride != g->stride || op == ops.size()) continue;
      auto at = std::size_t(std::find(sizes.begin(), sizes.end(), c.bytes) - sizes.begin());
      if (at == sizes.size()) {
        sizes.push_back(c.bytes);
        rows.push_back({detail::machine_table::size(c.bytes)});
      }
      rows[at + 1][op + 1] = format("%.1f (%.2f)", c.seconds * 1e6, c.bus_bandwidth() * 1e-9) +
                             (c.disturbed ? "?" : "");
    }
    all += text("\ncollectives of ", g->ranks, " ranks",
                g->stride > 1 ? text(", each ", g->stride, " apart") : std::string(), '\n');
    all += detail::machine_table::aligned(rows, 1);
  }
  return all;
}

}  // namespace lamina
