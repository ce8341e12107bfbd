// Loader: one order for any number of ranks and threads, resumable, padded, without allocations.
#include "catch.hpp"
#include "data_files.hpp"
#include "support/allocations.hpp"

#include <lamina/train/data/loader.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace {

using namespace lamina;

// Image i is one pixel of value i, with label i.
class Numbers final : public Dataset {
 public:
  explicit Numbers(std::int64_t size, std::int64_t bad = -1)
      : Dataset("numbers", 1000, pixel()), size_(size), bad_(bad) {}

  std::int64_t size() const override { return size_; }

  void read(std::int64_t index, Sample& to) const override {
    check(index >= 0 && index < size_, "no image ", index);
    check(index != bad_, "image-", index, ".jpg: corrupt");
    ++reads;
    to.height = to.width = to.channels = 1;
    to.pixels.assign(1, std::uint8_t(index));
    to.label = std::int32_t(index);
  }

  mutable std::atomic<long> reads = 0;

 private:
  static Transform pixel() {
    Transform t;
    t.deviation.fill(1 / 255.0f);
    return t;
  }

  std::int64_t size_, bad_;
};

// Squares of 64 pixels each way that may be shrunk, of which the right half is white.
class Shrinking final : public Dataset {
 public:
  Shrinking() : Dataset("shrinking", 1, {.shape = {1, 1, 6, 6}}) {}
  std::int64_t size() const override { return 4; }
  void read(std::int64_t, Sample& to) const override {
    to.height = to.width = 64, to.channels = 1, to.label = 0;
    to.shrunk = to.shrink(64, 64);
    largest = std::max<std::int64_t>(largest, to.shrunk);
    to.pixels.clear();
    for (std::int64_t i = 0; i < to.rows() * to.columns(); ++i)
      to.pixels.push_back(i % to.columns() < to.columns() / 2 ? 0 : 255);
  }
  mutable std::atomic<std::int64_t> largest = 0;
};

std::vector<std::int32_t> labels(const Batch& batch) {
  return {batch.labels(), batch.labels() + batch.size};
}

std::vector<std::int32_t> epoch_of(Loader& loader) {
  std::vector<std::int32_t> all;
  for (std::int64_t i = 0; i < loader.batches(); ++i) {
    for (const auto label : labels(loader.next())) all.push_back(label);
  }
  return all;
}

}  // namespace

TEST_CASE("an epoch serves every image once, in an order of its own") {
  const Numbers data(20);
  Loader loader(data, {.global_batch = 5, .seed = 1});
  REQUIRE(loader.batches() == 4);
  const auto first = epoch_of(loader), second = epoch_of(loader);
  CHECK(first != second);
  for (auto order : {first, second}) {
    CHECK_FALSE(std::is_sorted(order.begin(), order.end()));
    std::sort(order.begin(), order.end());
    for (int i = 0; i < 20; ++i) REQUIRE(order[std::size_t(i)] == i);
  }
  Loader again(data, {.global_batch = 5, .seed = 1}), other(data, {.global_batch = 5, .seed = 2});
  CHECK(epoch_of(again) == first);
  CHECK(epoch_of(other) != first);

  Loader plain(data, {.global_batch = 5, .shuffle = false});
  for (int i = 0; i < 20; ++i) REQUIRE(epoch_of(plain)[std::size_t(i)] == i);
}

TEST_CASE("ranks share each global batch without overlap, in the order of one rank") {
  const Numbers data(47);
  for (const bool pad : {false, true}) {
    Loader whole(data, {.global_batch = 10, .seed = 3, .pad_last = pad});
    REQUIRE(whole.batches() == (pad ? 5 : 4));
    for (int ranks = 2; ranks <= 4; ++ranks) {
      std::vector<Loader> parts;
      for (int rank = 0; rank < ranks; ++rank) {
        parts.emplace_back(
            data,
            LoaderOptions{
                .global_batch = 10, .rank = rank, .ranks = ranks, .seed = 3, .pad_last = pad});
      }
      whole.seek(0);
      for (std::int64_t step = 0; step < 2 * whole.batches(); ++step) {
        const Batch& all = whole.next();
        std::vector<std::int32_t> together;
        std::int64_t valid = 0, first = all.first;
        for (auto& part : parts) {
          const Batch& mine = part.next();
          REQUIRE(part.batches() == whole.batches());
          REQUIRE(std::abs(mine.size * ranks - 10) < ranks);
          REQUIRE(mine.first == first);
          REQUIRE(mine.epoch == all.epoch);
          REQUIRE(mine.index == all.index);
          REQUIRE(mine.global_valid == all.valid);
          first += mine.size, valid += mine.valid;
          for (const auto label : labels(mine)) together.push_back(label);
        }
        REQUIRE(together == labels(all));
        REQUIRE(valid == all.valid);
      }
    }
  }
}

TEST_CASE("a padded last batch serves every image once and marks the rest") {
  const Numbers data(13);
  Loader loader(data, {.global_batch = 4, .shuffle = false, .pad_last = true});
  REQUIRE(loader.batches() == 4);
  for (int i = 0; i < 3; ++i) CHECK(loader.next().valid == 4);
  const Batch& last = loader.next();
  CHECK(last.size == 4);
  CHECK(last.valid == 1);
  CHECK(last.global_valid == 1);
  CHECK(last.first == 12);
  CHECK(labels(last) == std::vector<std::int32_t>{12, -1, -1, -1});
  CHECK(last.images[0] == Approx(12));
  for (int i = 1; i < 4; ++i) CHECK(last.images[i] == 0);
  // The second rank of the last batch has nothing but padding, yet as many rows as ever.
  Loader second(data,
                {.global_batch = 4, .rank = 1, .ranks = 2, .shuffle = false, .pad_last = true});
  second.seek(0, 3);
  const Batch& empty = second.next();
  CHECK(empty.valid == 0);
  CHECK(empty.global_valid == 1);
  CHECK(labels(empty) == std::vector<std::int32_t>{-1, -1});

  Loader small(data, {.global_batch = 20, .pad_last = true});
  CHECK(small.next().valid == 13);
}

TEST_CASE("images come as bytes where samples have pixels, and stand for the same numbers") {
  /// Pixels, and planes from a number on.
  class Mixed final : public Dataset {
   public:
    explicit Mixed(std::int64_t planes)
        : Dataset("mixed", 10, {.shape = {1, 4, 2, 3}, .mean = {0.5f, 0.4f, 0.3f}}),
          planes_(planes) {}
    std::int64_t size() const override { return 10; }
    void read(std::int64_t index, Sample& to) const override {
      to.label = 0;
      if (index >= planes_) return to.planes.assign(24, 0.25f);
      to.height = 2, to.width = 3, to.channels = 4;
      for (int i = 0; i < 24; ++i) to.pixels.push_back(std::uint8_t(100 * index + i));
    }

   private:
    std::int64_t planes_;
  };
  for (const std::int64_t planes : {0, 5, 6, 10}) {
    CAPTURE(planes);
    const Mixed data(planes);
    LoaderOptions options{.global_batch = 4, .shuffle = false, .pad_last = true};
    Loader numbers(data, options);
    options.bytes = true;
    Loader loader(data, options);
    for (int step = 0; step < 6; ++step) {
      const Batch &expected = numbers.next(), &found = loader.next();
      const std::int64_t end = expected.first + expected.valid;
      REQUIRE(bool(found.pixels) == (end <= planes));
      REQUIRE(bool(found.images) == (end > planes));
      REQUIRE(labels(found) == labels(expected));
      for (std::size_t i = 0; i < std::size_t(expected.valid * 24); ++i)
        REQUIRE((found.pixels ? found.pixels.value(data.shape(), i) : found.images[i]) ==
                expected.images[i]);
      for (std::size_t i = std::size_t(expected.valid * 24); i < 4 * 24; ++i)
        REQUIRE((found.pixels ? float(found.pixels.bytes[i]) : found.images[i]) == 0);
    }
  }
}

TEST_CASE("a source learns by how much it may shrink its images") {
  const Shrinking data;
  Loader loader(data, {.global_batch = 2});
  const Batch& batch = loader.next();
  CHECK(data.largest == 8);  // which leaves 8 pixels for 6
  for (int row = 0; row < 12; ++row) {
    CHECK(batch.images[6 * row] == 0);
    CHECK(batch.images[6 * row + 5] == 1);
  }
}

TEST_CASE("seek continues as if nothing had been interrupted") {
  const auto data = synthetic({.channels = 1, .height = 4, .width = 4});
  const LoaderOptions options{.global_batch = 7000, .seed = 5};
  Loader whole(*data, options), resumed(*data, options);
  REQUIRE(whole.batches() == 7);
  resumed.next();
  for (std::int64_t step = 0; step < 9; ++step) {
    const Batch& a = whole.next();
    if (step != 3 && step != 8) continue;
    resumed.seek(step / 7, step % 7);
    const Batch& b = resumed.next();
    REQUIRE(b.epoch == a.epoch);
    REQUIRE(b.index == a.index);
    REQUIRE(labels(b) == labels(a));
    REQUIRE(std::equal(a.images, a.images + 7000 * 16, b.images));
  }
  resumed.seek(0, 7);  // the end of an epoch is the start of the next
  CHECK(resumed.next().epoch == 1);
  CHECK(files::error_of([&] { resumed.seek(0, 8); }) ==
        "synthetic: no batch 8 in epoch 0, an epoch has 7");
}

TEST_CASE("what is served does not depend on threads, nor augmentation on the place in the batch") {
  files::Folder folder;
  files::write_mnist(folder, 60, 8, 8);
  const auto data = mnist(folder.path);
  LoaderOptions options{.global_batch = 6, .seed = 9};
  Loader one(*data, options);
  options.depth = 6, options.threads = 5;
  Loader many(*data, options);
  options.global_batch = 60, options.shuffle = false;
  Loader sorted(*data, options);
  std::vector<float> first_epoch;
  for (int epoch = 0; epoch < 3; ++epoch) {
    const Batch& all = sorted.next();
    for (int step = 0; step < 10; ++step) {
      const Batch &a = one.next(), &b = many.next();
      REQUIRE(labels(a) == labels(b));
      REQUIRE(std::equal(a.images, a.images + 6 * 64, b.images));
      // Each image is found among the sorted ones of the same epoch, bit for bit.
      for (int row = 0; row < 6; ++row) {
        bool found = false;
        for (int i = 0; i < 60 && !found; ++i) {
          found = std::equal(a.images + row * 64, a.images + (row + 1) * 64, all.images + i * 64);
        }
        REQUIRE(found);
      }
    }
    const std::vector<float> images(all.images, all.images + 60 * 64);
    if (epoch == 0) first_epoch = images;
    CHECK((images == first_epoch) == (epoch == 0));
  }
  Loader plain(*data, {.global_batch = 60, .shuffle = false, .augment = false});
  const Batch& p = plain.next();
  CHECK(p.images[0] == Approx(-0.1307 / 0.3081));
  CHECK(p.images[63] == Approx((63 / 255.0 - 0.1307) / 0.3081));
}

TEST_CASE("the steady state allocates nothing") {
  files::Folder folder;
  files::write_mnist(folder, 64, 8, 8);
  const auto stored = mnist(folder.path),
             stretched = mnist(folder.path, {.height = 20, .width = 12});
  const auto made = synthetic({.height = 16, .width = 16});
  for (const Dataset* data : {stored.get(), stretched.get(), made.get()}) {
    Loader loader(*data, {.global_batch = 16, .threads = 2});
    // A worker allocates when it makes its first batch, which may be late on a busy machine.
    std::size_t count = 1;
    for (int round = 0; round < 50 && count > 0; ++round) {
      const test::Allocations since;
      for (int i = 0; i < 20; ++i) loader.next();
      count = since.count();
    }
    CHECK(count == 0);
  }
}

TEST_CASE("a loader works ahead, and no further than its depth") {
  const Numbers data(1000);
  Loader loader(data, {.global_batch = 10, .depth = 4});
  loader.next();
  for (int i = 0; i < 1000 && data.reads < 40; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(data.reads == 40);
}

TEST_CASE("an error of a worker reaches the one who asks for that batch, and stays") {
  const Numbers data(40, 25);
  Loader loader(data, {.global_batch = 10, .shuffle = false, .threads = 2});
  loader.next();
  CHECK(loader.next().first == 10);
  for (int i = 0; i < 3; ++i) {
    CHECK(files::error_of([&] { loader.next(); }) == "image-25.jpg: corrupt");
  }
  loader.seek(0, 3);
  CHECK(loader.next().first == 30);
}

TEST_CASE("what a read() leaves out is an error, not what the image before had") {
  class Forgetful final : public Dataset {
   public:
    explicit Forgetful(int what) : Dataset("forgetful", 10, {.shape = {1, 1, 2, 2}}), what_(what) {}
    std::int64_t size() const override { return 4; }
    void read(std::int64_t index, Sample& to) const override {
      const bool forgets = index == 2;
      if (forgets && what_ == 0) return;
      if (!forgets || what_ != 1) to.label = forgets && what_ == 4 ? 10 : std::int32_t(index);
      if (what_ == 2) {
        if (!forgets) to.planes.assign(4, 1.0f);
        return;
      }
      to.height = to.width = 2, to.channels = 1;
      if (!forgets || what_ != 3) to.pixels.assign(4, 1);
    }

   private:
    int what_;
  };
  const auto error = [](int what) {
    const Forgetful data(what);
    Loader loader(data, {.global_batch = 1, .shuffle = false});
    loader.next(), loader.next();
    return files::error_of([&] { loader.next(); });
  };
  const std::string nothing =
      "forgetful: read() gave image 2 neither pixels, with a height, nor planes";
  CHECK(error(0) == nothing);
  CHECK_THAT(error(1), ContainsSubstring("forgetful: read() gave an image no label"));
  CHECK(error(2) == nothing);
  CHECK_THAT(error(3), ContainsSubstring("an image of 2x2x1 has 0 bytes"));
  CHECK(error(4) ==
        "forgetful: read() gave an image the label 10: expected one below the 10 of "
        "classes()");
}

TEST_CASE("a loader can be abandoned, moved and sought at any time") {
  const Numbers data(1000);
  for (int i = 0; i < 50; ++i) {
    Loader loader(data, {.global_batch = 100, .depth = 2 + i % 3, .threads = 1 + i % 4});
    for (int step = 0; step < i % 5; ++step) loader.next();
    if (i % 2) loader.seek(3, i % 10);
    if (i % 3 == 0) {
      Loader moved = std::move(loader);
      moved.next();
    }
  }
}

TEST_CASE("a batch that seek interrupts is made anew") {
  const Numbers data(1000);
  Loader loader(data, {.global_batch = 1000, .threads = 2}), steady(data, {.global_batch = 1000});
  std::vector<std::vector<std::int32_t>> epochs;
  for (int epoch = 0; epoch < 5; ++epoch) epochs.push_back(labels(steady.next()));
  for (int i = 0; i < 500; ++i) {
    loader.seek(i % 5);  // the batches that lie ahead are still in the making
    REQUIRE(labels(loader.next()) == epochs[std::size_t(i % 5)]);
  }
}

TEST_CASE("a loader refuses what cannot work") {
  const Numbers data(10), none(0);
  const auto error = [](const Dataset& d, LoaderOptions o) {
    return files::error_of([&] { Loader loader(d, o); });
  };
  CHECK(error(data, {.global_batch = 0}) == "the global batch must be positive, got 0");
  CHECK(error(data, {.global_batch = 11}) ==
        "numbers: a global batch of 11 is larger than the data set of 10 images");
  CHECK(error(data, {.global_batch = 4, .rank = 2, .ranks = 2}) == "rank 2 of 2 does not exist");
  CHECK(error(none, {.global_batch = 1, .pad_last = true}) == "numbers: the data set is empty");
  CHECK(error(data, {.global_batch = 1, .depth = 1}) ==
        "a loader needs a depth of 2 or more and a thread, got 1 and 1");
}
