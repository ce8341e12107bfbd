// Transform: geometry, resampling, normalisation and the random augmentations.
#include "catch.hpp"

#include <lamina/base/error.hpp>
#include <lamina/train/data/transform.hpp>

#include <algorithm>
#include <cmath>
#include <set>

namespace {

using namespace lamina;

// Values made by `f(y, x, c)`.
template <class F>
Sample image(std::int64_t h, std::int64_t w, std::int64_t c, F f) {
  Sample s;
  s.height = h, s.width = w, s.channels = c;
  for (std::int64_t y = 0; y < h; ++y) {
    for (std::int64_t x = 0; x < w; ++x) {
      for (std::int64_t k = 0; k < c; ++k) s.pixels.push_back(std::uint8_t(f(y, x, k)));
    }
  }
  return s;
}

// Values 0 to 255 come out as they are.
Transform unchanged(Shape shape) {
  Transform t;
  t.shape = shape;
  t.deviation.fill(1 / 255.0f);
  return t;
}

std::vector<float> apply(const Transform& t, Sample s, std::uint64_t sample = 0) {
  std::vector<float> out(std::size_t(t.shape.sample()), NAN);
  Transform::Scratch scratch;
  t.apply(s, Random(1, 2, sample), out, scratch);
  return out;
}

}  // namespace

TEST_CASE("as bytes an image stands for the same numbers, rounded where it was resampled") {
  const auto noise = image(40, 56, 3, [](auto y, auto x, auto c) {
    return Random(3).bits(std::uint64_t((y * 56 + x) * 3 + c)) >> 24;
  });
  Transform t;
  t.mean = {0.485f, 0.456f, 0.406f}, t.deviation = {0.229f, 0.224f, 0.225f};
  t.augment = t.mirror = true;
  Transform::Scratch scratch;
  const auto compare = [&](bool whole) {
    t.mean = whole ? t.mean : std::array<float, 3>{};
    t.deviation = whole ? t.deviation : unchanged(t.shape).deviation;
    for (std::uint64_t sample = 0; sample < 8; ++sample) {
      std::vector<std::uint8_t> bytes(std::size_t(t.shape.sample()), 77);
      Sample s = noise;
      t.apply(s, Random(1, 2, sample), bytes, scratch);
      const Pixels::Values values = t.values();
      const Pixels pixels{bytes.data(), &values};
      std::vector<float> expected = apply(t, noise, sample), found;
      if (!whole)
        for (float& v : expected) v = std::floor(v + 0.5f);
      for (std::size_t i = 0; i < bytes.size(); ++i) found.push_back(pixels.value(t.shape, i));
      CHECK(found == expected);
    }
  };
  t.shape = {1, 3, 40, 56}, t.pad = 4;
  compare(true);
  t.shape = {1, 1, 40, 56};
  compare(true);
  t.shape = {1, 3, 24, 24}, t.pad = 0, t.random_resize = true;
  compare(false);
  t.shape = {1, 3, 90, 70}, t.random_resize = false, t.pad = 3;
  compare(false);
  Sample planes;
  planes.planes.resize(12);
  t.shape = {1, 3, 2, 2};
  std::vector<std::uint8_t> bytes(12);
  CHECK_THROWS_WITH(t.apply(planes, Random(1), bytes, scratch),
                    ContainsSubstring("12 numbers, expected pixels"));
}

TEST_CASE("an image becomes planes, normalised per channel") {
  Transform t;
  t.shape = {1, 3, 2, 2};
  t.mean = {0.5f, 0.25f, 0};
  t.deviation = {0.5f, 0.25f, 2};
  const auto out = apply(
      t, image(2, 2, 3, [](auto y, auto x, auto c) { return 51 * (2 * y + x) + 51 * (c == 2); }));
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(out[i] == Approx((0.2 * double(i) - 0.5) / 0.5).margin(1e-6));
    CHECK(out[4 + i] == Approx((0.2 * double(i) - 0.25) / 0.25).margin(1e-6));
    CHECK(out[8 + i] == Approx(0.2 * double(i + 1) / 2).margin(1e-6));
  }
}

TEST_CASE("grey becomes colour and colour becomes grey") {
  const auto grey = image(2, 2, 1, [](auto y, auto x, auto) { return 10 * y + x; });
  const auto colour = apply(unchanged({1, 3, 2, 2}), grey);
  for (std::size_t i = 0; i < 12; ++i) CHECK(colour[i] == Approx(grey.pixels[i % 4]));
  const auto luma = apply(unchanged({1, 1, 1, 2}), image(1, 2, 3, [](auto, auto x, auto c) {
                            return x == 0 ? 200 : c == 1 ? 255 : 0;
                          }));
  CHECK(luma[0] == Approx(200));
  CHECK(luma[1] == Approx(0.587 * 255).margin(1));
  CHECK_THROWS_AS(apply(unchanged({1, 2, 2, 2}), grey), Error);
}

TEST_CASE("resampling keeps constants, ramps and means") {
  const auto constant = image(37, 23, 3, [](auto, auto, auto c) { return 60 * c + 7; });
  for (const Shape shape : {Shape{1, 3, 10, 10}, Shape{1, 3, 64, 50}, Shape{1, 3, 37, 5}}) {
    const auto out = apply(unchanged(shape), constant);
    for (std::size_t i = 0; i < out.size(); ++i) {
      REQUIRE(out[i] == Approx(60 * (i / std::size_t(shape.h * shape.w)) + 7).epsilon(1e-5));
    }
  }
  // A ramp 4x + y, halved: the mean of a triangle around the middle of each pair.
  const auto ramp = image(8, 16, 1, [](auto y, auto x, auto) { return 4 * x + y; });
  const auto half = apply(unchanged({1, 1, 4, 8}), ramp);
  for (std::size_t y = 1; y < 3; ++y) {
    for (std::size_t x = 1; x < 7; ++x) {
      CHECK(half[y * 8 + x] == Approx(4 * (2 * double(x) + 0.5) + 2 * double(y) + 0.5));
    }
  }
  // Doubled: bilinear between the centres.
  const auto twice = apply(unchanged({1, 1, 16, 32}), ramp);
  CHECK(twice[5 * 32 + 9] == Approx(4 * (9.5 / 2 - 0.5) + (5.5 / 2 - 0.5)));
  // No aliasing: stripes of one pixel become grey.
  const auto stripes = image(64, 64, 1, [](auto, auto x, auto) { return x % 2 ? 255 : 0; });
  for (const float v : apply(unchanged({1, 1, 16, 16}), stripes))
    CHECK(v == Approx(127.5).margin(20));
}

TEST_CASE("without augmentation the centre is cropped after a resize of the shorter side") {
  // Only the middle 8x8 of 16x32 is bright.
  const auto spot = image(16, 32, 1, [](auto y, auto x, auto) {
    return y >= 4 && y < 12 && x >= 12 && x < 20 ? 250 : 0;
  });
  auto t = unchanged({1, 1, 8, 8});
  t.resize = 16;
  t.mirror = t.random_resize = true;  // not in force: augment is false
  t.pad = 3;
  for (const float v : apply(t, spot)) CHECK(v == Approx(250));
  t.resize = 8;  // the whole height
  CHECK(apply(t, spot)[0] == Approx(0).margin(1e-3));
}

TEST_CASE("pad and crop shifts by whole pixels, each shift as often, and black comes in") {
  auto t = unchanged({1, 1, 6, 6});
  t.augment = true;
  t.pad = 2;
  const auto source = image(6, 6, 1, [](auto y, auto x, auto) { return 10 * y + x + 1; });
  std::vector<int> seen(25);
  for (std::uint64_t i = 0; i < 5000; ++i) {
    const auto out = apply(t, source, i);
    const int middle = int(std::lround(out[2 * 6 + 2])) - 1;  // was at this place in the source
    const int dy = middle / 10 - 2, dx = middle % 10 - 2;
    ++seen.at(std::size_t((dy + 2) * 5 + dx + 2));
    if (i > 50) continue;
    for (int y = 0; y < 6; ++y) {
      for (int x = 0; x < 6; ++x) {
        const bool inside = y + dy >= 0 && y + dy < 6 && x + dx >= 0 && x + dx < 6;
        REQUIRE(out[std::size_t(y * 6 + x)] ==
                Approx(inside ? 10 * (y + dy) + x + dx + 1 : 0).margin(1e-4));
      }
    }
  }
  for (const int times : seen) CHECK(times == Approx(200).margin(70));
}

TEST_CASE("a mirror turns every second image, left to right") {
  auto t = unchanged({1, 2, 2, 3});
  t.augment = t.mirror = true;
  const auto source = image(2, 3, 2, [](auto y, auto x, auto c) { return 100 * c + 10 * y + x; });
  int turned = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const auto out = apply(t, source, i);
    const bool mirrored = out[0] > 1;
    turned += mirrored;
    for (std::size_t k = 0; k < 12; ++k) {
      const auto x = mirrored ? 2 - k % 3 : k % 3;
      REQUIRE(out[k] == Approx(100 * (k / 6) + 10 * (k / 3 % 2) + x).margin(1e-4));
    }
  }
  CHECK(turned == Approx(500).margin(80));
}

TEST_CASE("a random resized crop stays inside, keeps its bounds and differs from image to image") {
  auto t = unchanged({1, 3, 20, 20});
  t.augment = t.random_resize = true;
  // The position is in the colour, so that the crop can be read from the result.
  const auto source = image(100, 120, 3, [](auto y, auto x, auto c) {
    return c == 0 ? x : c == 1 ? y : 200;
  });
  double least = 1, most = 0;
  std::set<float> corners;
  for (std::uint64_t i = 0; i < 500; ++i) {
    const auto out = apply(t, source, i);
    corners.insert(out[0]);
    // Away from the borders the values are exact.
    const double width = (double(out[15]) - double(out[5])) * 2;
    const double height = (double(out[400 + 15 * 20]) - double(out[400 + 5 * 20])) * 2;
    const double area = width * height / (100 * 120), aspect = width / height;
    least = std::min(least, area), most = std::max(most, area);
    REQUIRE(aspect > 0.73);
    REQUIRE(aspect < 1.37);
    for (std::size_t k = 800; k < 1200; ++k) REQUIRE(out[k] == Approx(200));  // no black
  }
  CHECK(least > 0.075);
  CHECK(least < 0.12);
  CHECK(most < 1.0);
  CHECK(most > 0.85);
  CHECK(corners.size() > 450);
  CHECK(apply(t, source, 7) == apply(t, source, 7));
  // An image too thin for any crop still gives one.
  const auto thin = image(2, 400, 1, [](auto, auto, auto) { return 9; });
  for (const float v : apply(t, thin)) REQUIRE(v == Approx(9));
}
