// What must be so before an update, or a file, takes the values of a placed network.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/train/detail/values.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

namespace lamina::detail {

/// The ranks that train it together.
inline const Communicator& together(const PlacedNetwork& network) {
  const PlaceOptions& o = network.placing();
  return o.workers.count > 0 ? o.workers.ranks : o.ranks;
}

/// What a rank holds of a parameter.
struct Held {
  double squares = 0;  ///< their sum
  int replicas = 0;    ///< ranks that sum up its gradient
};

/// By rank, what it holds of each of all parameters.
inline std::vector<std::vector<Held>> values_held(const PlacedNetwork& network) {
  const Backend& backend = *network.placing().backend;
  const auto& mine = network.parameters();
  const Form form{{1, std::int64_t(mine.size()), 1, 1}, DType::f64, {}};
  const Tensor squares(form, backend.memory()), found(form);
  std::vector<SquaresPart> parts;
  for (const NamedParameter& n : mine)
    parts.push_back({n.parameter->value, squares.view().at(parts.size() * sizeof(double),
                                                           {{1, 1, 1, 1}, DType::f64, {}})});
  Stream stream;
  backend.squares(std::move(parts))->run(stream, Pass::update);
  copy_bytes(squares, found);
  std::vector<Held> all(network.all_parameters().size());
  for (std::size_t i = 0; i < mine.size(); ++i)
    all[std::size_t(mine[i].number)] = {found.as<double>()[i], mine[i].parameter->replicas.size()};
  std::vector<std::vector<Held>> by_rank;
  const std::string bytes(reinterpret_cast<const char*>(all.data()), all.size() * sizeof all[0]);
  for (const std::string& theirs : together(network).all_gather_text(bytes))
    std::memcpy(by_rank.emplace_back(all.size()).data(), theirs.data(), bytes.size());
  return by_rank;
}

/// The same values on all ranks: their sums may be taken in other orders.
inline bool about_equal(double a, double b) {
  return std::abs(a - b) <= 1e-6 * std::max(std::abs(a), std::abs(b));
}

/// Whether ranks that hold the same block of it have the same values. Where layers are split along
/// their input, ranks have a bias each, which only the first of them reads: these are summed apart.
inline bool are_alike(const PlacedNetwork& network, const WholeParameter& p, std::size_t rank,
                      const Held& held) {
  const bool workers = network.placing().workers.count > 0;
  if (!p.trained) return p.frozen || (!workers && p.variants == 1);
  return workers || std::ranges::count(p.blocks, p.blocks[rank]) <= held.replicas;
}

/// What is wrong where ranks hold the same block of a parameter, but other values; empty where
/// nothing is. Those that are not finite are not compared.
inline std::string unlike_values(const PlacedNetwork& network,
                                 const std::vector<std::vector<Held>>& held) {
  const auto& all = network.all_parameters();
  const bool workers = network.placing().workers.count > 0;  // each rank has all there is
  for (std::size_t i = 0; i < all.size(); ++i) {
    const WholeParameter& p = all[i];
    for (std::size_t r = 1; r < held.size(); ++r) {
      std::size_t first = 0;
      while (!workers && p.blocks[first] != p.blocks[r]) ++first;
      if (first == r || !are_alike(network, p, first, held[first][i])) continue;
      const double a = held[first][i].squares, b = held[r][i].squares;
      if (about_equal(a, b) || !std::isfinite(a) || !std::isfinite(b)) continue;
      return text(p.name, " has other values on rank ", r, " than on rank ", first,
                  " (sums of squares: ", format("%.6g", b), " and ", format("%.6g", a), "): ",
                  p.trained || p.frozen
                      ? "expected initialize() with one seed, and load_parameters(), on all ranks"
                      : "expected `replicas` where ranks have statistics of their own");
    }
  }
  return {};
}

/// What is wrong where ranks that take part in the loss found another one; empty where nothing is.
inline std::string unlike_loss(const PlacedNetwork& network) {
  const Step& loss = network.steps().back();
  const PlaceOptions& o = network.placing();
  if (!loss.layer->is_loss() || o.workers.count > 0) return {};
  struct Found {
    double loss, rows;
    bool takes_part;
  } mine{0, 0, loss.active()};
  if (mine.takes_part) {
    const Tensor y(loss.buffers.y.form());
    copy_bytes(loss.buffers.y, y);
    mine.loss = y.as<double>()[0], mine.rows = y.as<double>()[3];
  }
  const auto all = o.ranks.all_gather_value(mine);
  const auto first = std::ranges::find_if(all, &Found::takes_part);
  for (auto r = first; r != all.end(); ++r) {
    if (!r->takes_part || !std::isfinite(r->loss) || !std::isfinite(first->loss)) continue;
    if (about_equal(r->loss, first->loss) && r->rows == first->rows) continue;
    return text(loss.name, ": rank ", first - all.begin(), " found a loss of ",
                format("%.6g over %.0f rows", first->loss, first->rows), ", but rank ",
                r - all.begin(), format(" %.6g over %.0f", r->loss, r->rows),
                ": expected y to be summed over the ranks that take part");
  }
  return {};
}

LAMINA_INLINE void check_saved(const PlacedNetwork& network, const std::string& path,
                               std::int64_t step) {
  const auto held = values_held(network);
  const auto& all = network.all_parameters();
  for (std::size_t i = 0; i < all.size(); ++i)
    for (const std::vector<Held>& of_rank : held)
      check(std::isfinite(of_rank[i].squares), path, ": not saved: after step ", step, ' ',
            all[i].name,
            " has values that are not finite: a lower learning rate, warm-up or gradient clipping "
            "may help");
  const std::string wrong = unlike_values(network, held);
  check(wrong.empty(), path, ": not saved: after step ", step, ' ', wrong);
}

/// Whether there are ranks to be compared; what was started is done then.
inline bool compares(const PlacedNetwork& network, Stream& stream) {
  if (stream.silent() || together(network).size() == 1) return false;
  stream.wait();
  return true;
}

LAMINA_INLINE void check_weights(const PlacedNetwork& network, Stream& stream) {
  if (!compares(network, stream)) return;
  const std::string wrong = unlike_values(network, values_held(network));
  check(wrong.empty(), "update: ", wrong);
}

LAMINA_INLINE void check_loss(const PlacedNetwork& network, Stream& stream) {
  if (!compares(network, stream)) return;
  const std::string wrong = unlike_loss(network);
  check(wrong.empty(), "update: ", wrong);
}

}  // namespace lamina::detail
