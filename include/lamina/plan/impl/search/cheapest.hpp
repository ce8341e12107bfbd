// The cheapest selection of a sum over vertices and edges, by elimination of one vertex after the
// other.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/plan/detail/search.hpp>

#include <algorithm>
#include <cmath>
#include <utility>

namespace lamina {

namespace detail::search {

/// Seconds of the options of a few vertices, in the order of `scope`, the last one fastest.
struct Table {
  std::vector<int> scope;
  std::vector<double> seconds;
};

/// The next place among so many along each axis, the last one fastest; false behind the last place.
inline bool advance(std::vector<std::size_t>& place, const std::vector<std::size_t>& sizes) {
  for (std::size_t i = sizes.size(); i-- > 0;) {
    if (++place[i] < sizes[i]) return true;
    place[i] = 0;
  }
  return false;
}

inline std::size_t offset(const std::vector<std::size_t>& place,
                          const std::vector<std::size_t>& strides) {
  std::size_t sum = 0;
  for (std::size_t i = 0; i < place.size(); ++i) sum += place[i] * strides[i];
  return sum;
}

/// to[j] = min(to[j], plus + row[j])
inline void lower(double* to, double plus, const double* row, std::size_t n) {
  for (std::size_t j = 0; j < n; ++j) to[j] = std::min(to[j], plus + row[j]);
}

/// Has all costs as tables, and replaces those of a vertex by one over its neighbours until no
/// vertex is left; then each takes its best option beside those that went after it.
class Elimination {
 public:
  /// An option that is not as in `simple` costs `surcharge` seconds more.
  Elimination(const CostGraph& graph, const CostWeights& weights, const Selection& simple,
              double surcharge, std::int64_t most)
      : most_(double(most)), own_(graph.seconds), of_(graph.size()), entries_(graph.size()) {
    for (std::size_t v = 0; v < graph.size(); ++v)
      for (int o = 0; o < graph.options(int(v)); ++o)
        own_[v][std::size_t(o)] += (1 - weights.overlap) * entry(graph.hidden, v, o) +
                                   weights.seconds_per_byte * entry(graph.bytes, v, o) +
                                   (simple.empty() || simple[v] == o ? 0 : surcharge);
    for (const CostGraph::Edge& e : graph.edges) add({{e.from, e.to}, e.seconds});
  }

  Selection selection() {
    eliminate_all(-1);
    Selection selection(own_.size());
    choose_all(selection);
    return selection;
  }

  /// Of each option of a vertex.
  std::vector<Selection> selections(int of) {
    eliminate_all(of);
    std::vector<Selection> all(options(of), Selection(own_.size()));
    for (std::size_t o = 0; o < all.size(); ++o) {
      all[o][index(of)] = int(o);
      choose_all(all[o]);
    }
    return all;
  }

 private:
  /// A table of the vertex that goes, arranged for the loops over its neighbours.
  struct Operand {
    Table table;
    std::vector<std::size_t> strides;  // of all neighbours but the last
    std::size_t stride = 0;            // of the vertex
  };

  static std::size_t index(int v) { return std::size_t(v); }
  std::size_t options(int v) const { return own_[index(v)].size(); }
  std::vector<std::size_t> sizes(const std::vector<int>& scope) const {
    std::vector<std::size_t> to;
    for (const int v : scope) to.push_back(options(v));
    return to;
  }
  std::vector<std::size_t> strides(const Table& table, const std::vector<int>& of) const {
    std::vector<std::size_t> to(of.size());
    std::size_t stride = 1;
    for (std::size_t i = table.scope.size(); i-- > 0; stride *= options(table.scope[i]))
      if (const auto at = std::ranges::find(of, table.scope[i]); at != of.end())
        to[std::size_t(at - of.begin())] = stride;
    return to;
  }

  /// Sums up tables of the same vertices.
  void add(Table table) {
    for (const std::size_t i : of_[index(table.scope[0])])
      if (tables_[i].scope == table.scope) return accumulate(tables_[i].seconds, table.seconds);
    for (const int v : table.scope) of_[index(v)].push_back(tables_.size());
    tables_.push_back(std::move(table));
  }
  static void accumulate(std::vector<double>& to, const std::vector<double>& more) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += more[i];
  }

  /// Of all vertices but one, or of all.
  void eliminate_all(int but) {
    std::vector<int> left;
    for (int v = 0; v < int(own_.size()); ++v) {
      entries_[index(v)] = entries(v, neighbours(v));
      if (v != but) left.push_back(v);
    }
    while (!left.empty()) {
      const auto next =
          std::ranges::min_element(left, {}, [&](int v) { return entries_[index(v)]; });
      eliminate(*next);
      order_.push_back(*next);
      left.erase(next);
    }
  }
  /// The options of those that were eliminated.
  void choose_all(Selection& selection) const {
    for (std::size_t i = order_.size(); i-- > 0;) choose(order_[i], selection);
  }

  std::vector<int> neighbours(int v) const {
    std::vector<int> all;
    for (const std::size_t i : of_[index(v)])
      for (const int u : tables_[i].scope)
        if (u != v) all.push_back(u);
    std::ranges::sort(all);
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
  }
  double entries(int v, const std::vector<int>& scope) const {
    double product = double(options(v));
    for (const int u : scope) product *= double(options(u));
    return product;
  }

  void eliminate(int v) {
    const std::vector<int> scope = neighbours(v);
    check(entries_[index(v)] <= most_, "vertex ", v, " and the ", scope.size(),
          " that it depends on make a table of ", entries_[index(v)], " entries: expected at most ",
          most_,
          ": the graph is too dense for an exact search; tie vertices, or search by swarm or ",
          "mcmc, not seeded");
    if (scope.empty()) return;
    Table table = least(v, scope);
    for (const int u : scope)
      std::erase_if(of_[index(u)], [&](std::size_t i) {
        return std::ranges::find(tables_[i].scope, v) != tables_[i].scope.end();
      });
    if (scope.size() == 1)
      accumulate(own_[index(scope[0])], table.seconds);
    else
      add(std::move(table));
    for (const int u : scope) entries_[index(u)] = entries(u, neighbours(u));
  }

  /// The least that v costs, over the options of its neighbours. The innermost loop is over those
  /// of the last one, so that it runs through memory and through nothing else.
  Table least(int v, const std::vector<int>& scope) const {
    const std::vector<int> outer(scope.begin(), scope.end() - 1);
    std::vector<Operand> rows, points;  // those that depend on the last neighbour, and others
    for (const std::size_t i : of_[index(v)]) {
      const bool row = std::ranges::find(tables_[i].scope, scope.back()) != tables_[i].scope.end();
      (row ? rows : points).push_back(operand(tables_[i], v, outer, row ? scope.back() : -1));
    }
    const std::size_t n = options(scope.back());
    const std::vector<std::size_t> outer_sizes = sizes(outer);
    Table to{scope, std::vector<double>(std::size_t(entries(v, scope)) / options(v), infinity)};
    std::vector<std::size_t> place(outer.size());
    std::vector<double> sum(n);
    double* out = to.seconds.data();
    do {
      for (std::size_t o = 0; o < options(v); ++o) {
        const auto at = [&](const Operand& x) {
          return x.table.seconds.data() + offset(place, x.strides) + o * x.stride;
        };
        double plus = own_[index(v)][o];
        for (const Operand& x : points) plus += *at(x);
        const double* row = at(rows[0]);
        if (rows.size() > 1) {
          std::copy(row, row + n, sum.begin());
          for (std::size_t i = 1; i < rows.size(); ++i) {
            const double* more = at(rows[i]);
            for (std::size_t j = 0; j < n; ++j) sum[j] += more[j];
          }
          row = sum.data();
        }
        lower(out, plus, row, n);
      }
      out += n;
    } while (advance(place, outer_sizes));
    return to;
  }

  /// With the axes of `outer` first, then v, then the last neighbour, if that is one of them.
  Operand operand(const Table& table, int v, const std::vector<int>& outer, int last) const {
    std::vector<int> order;
    for (const int u : outer)
      if (std::ranges::find(table.scope, u) != table.scope.end()) order.push_back(u);
    order.push_back(v);
    if (last >= 0) order.push_back(last);
    Operand to{arranged(table, order), {}};
    to.strides = strides(to.table, outer);
    to.stride = last >= 0 ? options(last) : 1;
    return to;
  }

  Table arranged(const Table& from, const std::vector<int>& order) const {
    if (order == from.scope) return from;
    Table to{order, {}};
    to.seconds.reserve(from.seconds.size());
    const auto from_strides = strides(from, order), to_sizes = sizes(order);
    std::vector<std::size_t> place(order.size());
    do to.seconds.push_back(from.seconds[offset(place, from_strides)]);
    while (advance(place, to_sizes));
    return to;
  }

  /// The best option of v beside those of its neighbours; the first of several.
  void choose(int v, Selection& selection) const {
    double best = infinity;
    int option = 0;
    for (std::size_t o = 0; o < options(v); ++o) {
      double seconds = own_[index(v)][o];
      selection[index(v)] = int(o);
      for (const std::size_t i : of_[index(v)]) {
        std::size_t at = 0;
        for (const int u : tables_[i].scope)
          at = at * options(u) + std::size_t(selection[index(u)]);
        seconds += tables_[i].seconds[at];
      }
      if (seconds < best) best = seconds, option = int(o);
    }
    selection[index(v)] = option;
  }

  double most_;
  std::vector<std::vector<double>> own_;      // by vertex: what depends on it alone
  std::vector<Table> tables_;                 // what depends on several
  std::vector<std::vector<std::size_t>> of_;  // by vertex: its tables when it goes
  std::vector<double> entries_;               // by vertex: of the table that it needs to go
  std::vector<int> order_;                    // in which they went
};

LAMINA_INLINE std::vector<Selection> cheapest_with(int vertex, const CostGraph& graph,
                                                   const CostWeights& weights, std::int64_t most) {
  return Elimination(graph, weights, {}, 0, most).selections(vertex);
}

}  // namespace detail::search

LAMINA_INLINE Selection cheapest(const CostGraph& graph, const CostWeights& weights,
                                 const Selection& simple, std::int64_t most) {
  graph.validate();
  if (!simple.empty()) graph.validate(simple, "simple");
  check(weights.overlap >= 0 && weights.overlap <= 1, "overlap: expected 0 to 1, got ",
        weights.overlap);
  check(detail::search::is_cost(weights.seconds_per_byte, true),
        "seconds per byte: expected a finite number of at least 0, got ", weights.seconds_per_byte);
  const auto solve = [&](double surcharge) {
    return detail::search::Elimination(graph, weights, simple, surcharge, most).selection();
  };
  const Selection selection = solve(0);
  const double least = seconds_of(graph, selection, weights);
  if (simple.empty() || !std::isfinite(least)) return selection;
  // Enough to tell a tie from another order of the same additions, and too little to matter.
  return solve(std::max(least * 0x1p-46, 1e-300));
}

}  // namespace lamina
