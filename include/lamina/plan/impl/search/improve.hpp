// improve(): makes a selection faster by small changes, each of which is tried by a whole step.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/plan/detail/search.hpp>

#include <algorithm>
#include <tuple>
#include <utility>

namespace lamina::detail::search {

/// Tries small changes of a selection, those first that promise most by the graph, and keeps each
/// that makes a step faster.
class Descent {
 public:
  Descent(Trials& trials, Selection selection, Score score, std::int64_t most_steps)
      : trials_(trials),
        graph_(trials.graph()),
        selection_(std::move(selection)),
        score_(score),
        last_(trials.steps() + most_steps),
        edges_(graph_.size()) {
    for (std::size_t e = 0; e < graph_.edges.size(); ++e) {
      edges_[std::size_t(graph_.edges[e].from)].push_back(e);
      edges_[std::size_t(graph_.edges[e].to)].push_back(e);
    }
  }

  void run() {
    while (better(single_moves()) || better(double_moves())) trials_.record();
  }
  /// With windows as well, whose tables have at most so many entries.
  void run_more(std::int64_t most_entries) {
    while (better(window_moves(1, most_entries)) || better(window_moves(0, most_entries))) run();
  }

 private:
  /// A change of one vertex, or of two.
  struct Move {
    double promise = 0;  // seconds more than now, as the graph says
    int v = 0, option = 0;
    int other = -1, other_option = 0;
  };
  /// A change of all vertices that are few edges from one.
  struct WindowMove {
    double promise = 0;
    std::vector<int> vertices;
    Selection options;
  };
  static constexpr std::size_t none = ~std::size_t(0);
  static constexpr int reach = 4;  // edges from the vertex in the middle of a window

  static std::size_t index(int v) { return std::size_t(v); }
  int now(int v) const { return selection_[index(v)]; }
  double between(const CostGraph::Edge& e, int from, int to) const {
    return e.seconds[std::size_t(from) * index(graph_.options(e.to)) + std::size_t(to)];
  }
  /// What v takes with an option, and what it and its neighbours take, but for the edge `left_out`.
  double around(int v, int option, std::size_t left_out = none) const {
    double seconds = graph_.seconds[index(v)][std::size_t(option)];
    for (const std::size_t i : edges_[index(v)])
      if (const CostGraph::Edge& e = graph_.edges[i]; i != left_out)
        seconds += e.from == v ? between(e, option, now(e.to)) : between(e, now(e.from), option);
    return seconds;
  }
  double hidden_more(int v, int option) const {
    return entry(graph_.hidden, index(v), option) - entry(graph_.hidden, index(v), now(v));
  }
  /// Of what is hidden, as little is counted as there can be: where there is more, perhaps nobody
  /// waits for it; where there is less, perhaps somebody did.
  static double promise(double after, double before, double hidden_more) {
    return (before < infinity ? after - before : -infinity) + std::min(0.0, hidden_more);
  }

  std::vector<Move> single_moves() const {
    std::vector<Move> moves;
    for (int v = 0; v < int(graph_.size()); ++v) {
      const double before = around(v, now(v));
      for (int o = 0; o < graph_.options(v); ++o)
        if (const double after = around(v, o); o != now(v) && after < infinity)
          moves.push_back({promise(after, before, hidden_more(v, o)), v, o});
    }
    return moves;
  }

  /// Of each edge, the most promising.
  std::vector<Move> double_moves() const {
    std::vector<Move> all, moves;
    for (std::size_t i = 0; i < graph_.edges.size(); ++i) {
      const CostGraph::Edge& e = graph_.edges[i];
      const int m = graph_.options(e.from), n = graph_.options(e.to);
      std::vector<double> to(index(n));
      for (int y = 0; y < n; ++y) to[index(y)] = around(e.to, y, i);
      moves.clear();
      const auto both = [&](double from, int x, int y) {
        return from + to[index(y)] + between(e, x, y);
      };
      const double before = both(around(e.from, now(e.from), i), now(e.from), now(e.to));
      for (int x = 0; x < m; ++x) {
        if (x == now(e.from)) continue;
        const double from = around(e.from, x, i), hidden = hidden_more(e.from, x);
        for (int y = 0; y < n; ++y)
          if (const double after = both(from, x, y); y != now(e.to) && after < infinity)
            moves.push_back(
                {promise(after, before, hidden + hidden_more(e.to, y)), e.from, x, e.to, y});
      }
      const auto kept =
          moves.begin() + std::min(std::ptrdiff_t(moves.size()), std::ptrdiff_t(m + n));
      std::ranges::partial_sort(moves, kept, {}, [](const Move& a) {
        return std::tuple(a.promise, a.option, a.other_option);
      });
      all.insert(all.end(), moves.begin(), kept);
    }
    return all;
  }

  /// A vertex, first of all, and those that are at most `reach` edges away.
  std::vector<int> window(int v) const {
    std::vector<int> members{v};
    std::vector<bool> in(graph_.size());
    in[index(v)] = true;
    for (std::size_t step = 0, first = 0; step < reach; ++step)
      for (const std::size_t last = members.size(); first < last; ++first)
        for (const std::size_t i : edges_[index(members[first])])
          for (const int u : {graph_.edges[i].from, graph_.edges[i].to}) {
            if (in[index(u)]) continue;
            in[index(u)] = true, members.push_back(u);
          }
    return members;
  }

  /// What they cost beside the others, which stay as they are.
  CostGraph part(const std::vector<int>& members) const {
    std::vector<int> number(graph_.size(), -1);
    for (std::size_t i = 0; i < members.size(); ++i) number[index(members[i])] = int(i);
    CostGraph part;
    for (const int v : members) {
      part.seconds.push_back(graph_.seconds[index(v)]);
      if (!graph_.hidden.empty()) part.hidden.push_back(graph_.hidden[index(v)]);
      for (const std::size_t i : edges_[index(v)]) {
        const CostGraph::Edge& e = graph_.edges[i];
        const int from = number[index(e.from)], to = number[index(e.to)];
        if (from >= 0 && to >= 0) {
          if (e.from == v) part.edges.push_back({from, to, e.seconds});
          continue;
        }
        for (int o = 0; o < graph_.options(v); ++o)
          part.seconds.back()[index(o)] +=
              from >= 0 ? between(e, o, now(e.to)) : between(e, now(e.from), o);
      }
    }
    return part;
  }

  /// Of each vertex every other option, each with those that suit it best in the window.
  std::vector<WindowMove> window_moves(double overlap, std::int64_t most_entries) const {
    std::vector<WindowMove> moves;
    const CostWeights weights{.overlap = overlap};
    for (int v = 0; v < int(graph_.size()); ++v) {
      const std::vector<int> members = window(v);
      const CostGraph part = this->part(members);
      Selection present;
      for (const int u : members) present.push_back(now(u));
      const double before = seconds_of(part, present, weights);
      std::vector<Selection> best;
      try {
        best = cheapest_with(0, part, weights, most_entries);
      } catch (const Error&) {  // too dense: it stays as it is
      }
      for (Selection& s : best) {
        const double after = seconds_of(part, s, weights);
        if (changes(present, s) > 1 && after < infinity)  // a single one has been tried
          moves.push_back({promise(after, before, 0), members, std::move(s)});
      }
    }
    return moves;
  }

  static int changes(const Selection& from, const Selection& to) {
    int count = 0;
    for (std::size_t i = 0; i < from.size(); ++i) count += from[i] != to[i];
    return count;
  }

  static void apply(const Move& move, Selection& to) {
    to[index(move.v)] = move.option;
    if (move.other >= 0) to[index(move.other)] = move.other_option;
  }
  static void apply(const WindowMove& move, Selection& to) {
    for (std::size_t i = 0; i < move.vertices.size(); ++i)
      to[index(move.vertices[i])] = move.options[i];
  }

  /// Tries the moves, the most promising first; whether one made it faster.
  template <class M>
  bool better(std::vector<M> moves) {
    std::ranges::stable_sort(moves, {}, &M::promise);
    bool found = false;
    for (const M& move : moves) {
      if (trials_.steps() >= last_) return false;
      Selection changed = selection_;
      apply(move, changed);
      const Score score = trials_.score(changed);
      if (!(score < score_)) continue;
      selection_ = std::move(changed), score_ = score;
      found = true;
    }
    return found;
  }

  Trials& trials_;
  const CostGraph& graph_;
  Selection selection_;
  Score score_;
  std::int64_t last_;
  std::vector<std::vector<std::size_t>> edges_;  // by vertex
};

LAMINA_INLINE void improve(Trials& trials, Selection selection, Score score,
                           std::int64_t most_steps) {
  Descent(trials, std::move(selection), score, most_steps).run();
}

LAMINA_INLINE void improve_more(Trials& trials, std::int64_t most_steps,
                                std::int64_t most_entries) {
  Descent(trials, trials.selection(), trials.best(), most_steps).run_more(most_entries);
}

}  // namespace lamina::detail::search
