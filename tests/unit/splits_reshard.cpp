// Reshards: every ordered pair of splits, forward and backward, moves what it must and no more.
#include "catch.hpp"

#include <lamina/comm/threads.hpp>
#include <lamina/layers/reshard.hpp>

using namespace lamina;

namespace {

constexpr Shape whole{5, 6, 7, 4};

/// Arrangements of a value on `ranks` ranks: by every axis and some products, on all ranks and on
/// fewer, with copies, uneven, and all of it on one rank.
std::vector<Blocks> arrangements(int ranks) {
  std::vector<Blocks> all;
  const Axis y = Axis::batch | Axis::channel | Axis::height | Axis::width;
  const Axis x = Axis::batch | Axis::input | Axis::height | Axis::width;
  const auto add = [&](const Split& split, Axis axes) {
    if (split.ways() > ranks) return;
    if (split.batch > whole.n || split.channel > whole.c || split.input > whole.c) return;
    if (split.height > whole.h || split.width > whole.w) return;
    Blocks blocks = Blocks::of(whole, split, axes, ranks);
    for (const Blocks& other : all)
      if (other.same(blocks)) return;
    all.push_back(std::move(blocks));
  };
  for (const int p : {ranks, ranks - 1, 1}) {
    add({.batch = p}, y);
    add({.channel = p}, y);
    add({.channel = p}, x);  // copies on all
    add({.input = p}, x);
    add({.height = p}, y);
    add({.width = p}, y);
    if (p % 2 != 0) continue;
    add({.batch = 2, .height = p / 2}, y);
    add({.batch = p / 2, .channel = 2}, y);
    add({.batch = p / 2, .channel = 2}, x);  // copies in pairs
    add({.channel = 2, .input = p / 2}, x);
    add({.height = p / 2, .width = 2}, y);
  }
  return all;
}

double value(std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
  return double(((n * whole.c + c) * whole.h + h) * whole.w + w) + 1;
}

/// Calls work(element, its value in the whole) for this rank's block.
template <class Work>
void for_elements(const Tensor& t, const Box& box, Work&& work) {
  std::size_t i = 0;
  for (std::int64_t n = box.n.begin; n < box.n.end(); ++n)
    for (std::int64_t c = box.c.begin; c < box.c.end(); ++c)
      for (std::int64_t h = box.h.begin; h < box.h.end(); ++h)
        for (std::int64_t w = box.w.begin; w < box.w.end(); ++w)
          work(t.as<double>()[i++], value(n, c, h, w), n, h);
}

/// Adds up the bytes of all collectives. Read it when they have ended.
struct Counted final : Recorder {
  double bytes = 0;
  void record(const Span& span) override {
    if (span.lane == Lane::communication) bytes += span.bytes;  // on one thread only
  }
};

/// What is wrong about an exchange from one arrangement to the other, on all ranks; "" if nothing.
/// `factor` is by what an element must be multiplied: the blocks that hold it. Runs it twice.
template <class Factor>
std::string wrong(const World& world, const Blocks& from, const Blocks& to, Factor&& factor,
                  Recorder* recorder = nullptr) {
  const auto me = std::size_t(world.rank());
  Exchange exchange(from, to, DType::f64, world.comm());
  const Tensor x(from.box[me].shape(), DType::f64), y(to.box[me].shape(), DType::f64);
  Stream stream;
  stream.record_to(recorder);
  std::string error;
  for (int twice = 0; twice < 2; ++twice) {
    for_elements(x, from.box[me], [](double& v, double is, auto, auto) { v = is; });
    for_elements(y, to.box[me], [](double& v, auto, auto, auto) { v = -7; });
    exchange.run(stream, Pass::forward, x, y);
    for_elements(y, to.box[me], [&](double v, double is, auto, std::int64_t h) {
      const double right = is * factor(h);
      if (v != right && error.empty())
        error = text("rank ", me, ": ", v, " instead of ", right, " in ", to.box[me]);
    });
  }
  return error;
}

}  // namespace

TEST_CASE("every ordered pair of splits: values, gradients and bytes") {
  int pairs = 0;
  for (const int ranks : {2, 3, 4, 6, 8}) {
    const auto all = arrangements(ranks);
    REQUIRE(all.size() >= 6);
    std::vector<std::string> errors(static_cast<std::size_t>(ranks));
    run_ranks(ranks, [&](World& world) {
      const auto me = std::size_t(world.rank());
      for (const Blocks& a : all)
        for (const Blocks& b : all) {
          Counted sent;
          std::string error = wrong(
              world, a, b, [](auto) { return 1; }, &sent);
          // All ranks together send just what each has not and wants; and no rank more than stated.
          double need = 0;
          for (std::size_t r = 0; r < a.box.size(); ++r)
            need += 8 * double(b.box[r].size() - common(a.box[r], b.box[r]).size());
          const double all_sent = world.comm().all_reduce_value(sent.bytes / 2);
          const double most = world.comm().all_reduce_value(sent.bytes / 2, ReduceOp::max);
          const double stated = Exchange::most_sent(a, b, DType::f64);
          if (all_sent != need) error = text(all_sent, " bytes are sent, not ", need);
          if (most != stated) error = text("a rank sends ", most, " bytes, not ", stated);
          if (errors[me].empty() && !error.empty())
            errors[me] = text(error, ", from ", a.box[0], " to ", b.box[0], " of rank 0");
        }
    });
    for (const auto& error : errors) CHECK(error == "");
    pairs += int(all.size() * all.size());
  }
  CHECK(pairs > 500);
}

TEST_CASE("blocks that overlap add up, and what nobody holds is zero") {
  for (const int ranks : {2, 3, 4}) {
    const Split split{.height = ranks};
    const Blocks held = Blocks::of(whole, split, Axis::height, ranks);
    Blocks wide = held;  // a row more on either side, where there is one
    for (Box& b : wide.box) {
      const std::int64_t begin = std::max<std::int64_t>(0, b.h.begin - 1);
      b.h = {begin, std::min(whole.h, b.h.end() + 1) - begin};
    }
    Blocks top = held;  // only row 0, on rank 0
    for (std::size_t r = 0; r < top.box.size(); ++r)
      if (r > 0) top.box[r] = {}, top.number[r] = -1;
    top.box[0].h = {0, 1};
    std::vector<std::string> errors(static_cast<std::size_t>(ranks));
    run_ranks(ranks, [&](World& world) {
      const auto count = [&](std::int64_t h) {
        double holders = 0;
        for (const Box& b : wide.box) holders += b.h.begin <= h && h < b.h.end();
        return holders;
      };
      std::string& error = errors[std::size_t(world.rank())];
      error = wrong(world, held, wide, [](auto) { return 1; });
      error += wrong(world, wide, held, count);
      error += wrong(world, top, held, [](std::int64_t h) { return h == 0 ? 1 : 0; });
    });
    for (const auto& error : errors) CHECK(error == "");
  }
}

TEST_CASE("a reshard's cost is that of the rank with the most") {
  const Blocks rows = Blocks::of(whole, {.height = 2}, Axis::height, 2);   // 4 and 3 rows
  const Blocks samples = Blocks::of(whole, {.batch = 2}, Axis::batch, 2);  // 3 and 2 samples
  const Cost cost = Reshard(rows, samples).cost(std::array{whole}, {.batch = 2}, DType::f32);
  const double row = 6 * 4;                                // elements of a row of all channels
  CHECK(cost.forward.bytes == 4 * (5 * 4 + 3 * 7) * row);  // reads the one, writes the other
  REQUIRE(cost.messages.size() == 2);
  CHECK(cost.messages[0].bytes == 4 * 3 * 3 * row);  // rank 1: three samples' rows 4 to 6
  CHECK(cost.messages[1].bytes == 4 * 3 * 3 * row);  // rank 0: the same back
}

TEST_CASE("a reshard to one rank costs what the others send to it, and what it sends back") {
  const Blocks samples = Blocks::of(whole, {.batch = 3}, Axis::batch, 3);  // 2, 2 and 1 samples
  const Blocks alone = Blocks::of(whole, {}, Axis::batch, 3);
  const Cost cost = Reshard(samples, alone).cost(std::array{whole}, {}, DType::f32);
  const double sample = 6 * 7 * 4;
  REQUIRE(cost.messages.size() == 2);
  CHECK(cost.messages[0].bytes == 4 * 2 * sample);  // rank 1; rank 0 gets 3, and sends none
  CHECK(cost.messages[1].bytes == 4 * 3 * sample);  // rank 0
}
