// PNG files of every kind: what is read are the bytes of the file, over white.
#include "catch.hpp"
#include "data/sources.hpp"
#include "png_files.hpp"

#include <lamina/base/random.hpp>
#include <lamina/base/text.hpp>

namespace {

using namespace lamina;
using files::Bytes;
using files::Chunk;
using files::PngPicture;
using files::PngType;

struct Kind {
  const char* name;
  PngType type;
  int depth;
  bool transparency;
};

constexpr Kind kinds[] = {{"grey", PngType::grey, 1, false},
                          {"grey", PngType::grey, 2, false},
                          {"grey", PngType::grey, 4, false},
                          {"grey", PngType::grey, 8, false},
                          {"grey", PngType::grey, 16, false},
                          {"grey, one clear", PngType::grey, 1, true},
                          {"grey, one clear", PngType::grey, 2, true},
                          {"grey, one clear", PngType::grey, 4, true},
                          {"grey, one clear", PngType::grey, 8, true},
                          {"grey, one clear", PngType::grey, 16, true},
                          {"grey and alpha", PngType::grey_alpha, 8, false},
                          {"grey and alpha", PngType::grey_alpha, 16, false},
                          {"palette", PngType::palette, 1, false},
                          {"palette", PngType::palette, 2, false},
                          {"palette", PngType::palette, 4, false},
                          {"palette", PngType::palette, 8, false},
                          {"palette and alpha", PngType::palette, 1, true},
                          {"palette and alpha", PngType::palette, 2, true},
                          {"palette and alpha", PngType::palette, 4, true},
                          {"palette and alpha", PngType::palette, 8, true},
                          {"rgb", PngType::rgb, 8, false},
                          {"rgb", PngType::rgb, 16, false},
                          {"rgb, one clear", PngType::rgb, 8, true},
                          {"rgb, one clear", PngType::rgb, 16, true},
                          {"rgba", PngType::rgba, 8, false},
                          {"rgba", PngType::rgba, 16, false}};

/// Values all over the range; the pixel at (2, 1) is the clear colour, and so is no other but by
/// chance. Of 16 bits, its neighbour differs from it in the lower 8 only.
PngPicture picture(const Kind& kind, bool interlaced) {
  PngPicture p{.type = kind.type,
               .depth = kind.depth,
               .width = 13,
               .height = 11,
               .interlaced = interlaced,
               .samples = {},
               .palette = {},
               .transparency = {},
               .others = {}};
  const Random random(7, std::uint64_t(kind.depth));
  const std::size_t each = files::channels(kind.type), count = p.width * p.height * each;
  for (std::size_t i = 0; i < count; ++i)
    p.samples.push_back(std::uint16_t(random.below(1u << kind.depth, i)));
  const auto pixel = [&](std::size_t x, std::size_t y) { return &p.samples[(13 * y + x) * each]; };
  if (kind.type == PngType::palette) {
    for (std::size_t i = 0; i < 3u << kind.depth; ++i)
      p.palette.push_back(std::uint8_t(random.below(256, count + i)));
    // Shorter than the palette: what it leaves out is opaque.
    for (std::size_t i = 0; kind.transparency && i < (3u << kind.depth) / 4; ++i)
      p.transparency.push_back(std::uint8_t(random.below(256, 2 * count + i)));
  } else if (kind.transparency) {
    for (std::size_t c = 0; c < each; ++c) {
      const std::uint16_t clear = pixel(2, 1)[c];
      p.transparency.push_back(std::uint8_t(clear >> 8));
      p.transparency.push_back(std::uint8_t(clear));
      pixel(3, 1)[c] = clear;
    }
    pixel(3, 1)[each - 1] ^= 1;
  }
  return p;
}

/// `value` with `alpha`, both of 0 to 255, in front of white.
std::uint8_t over_white(int value, int alpha) {
  return std::uint8_t(std::lround((value * alpha + 255.0 * (255 - alpha)) / 255));
}

/// Computed from the samples, without libpng.
Bytes expected(const PngPicture& p) {
  const std::size_t each = files::channels(p.type), colours = each < 3 ? 1 : 3;
  const auto byte = [&](std::uint16_t s) {
    return p.depth == 16 ? s >> 8 : s * 255 / ((1 << p.depth) - 1);
  };
  Bytes bytes;
  for (std::size_t i = 0; i < p.samples.size(); i += each) {
    const std::uint16_t* s = &p.samples[i];
    if (p.type == PngType::palette) {
      const int alpha = s[0] < p.transparency.size() ? p.transparency[s[0]] : 255;
      for (std::size_t c = 0; c < 3; ++c)
        bytes.push_back(over_white(p.palette[3u * s[0] + c], alpha));
      continue;
    }
    int alpha = each % 2 == 0 ? byte(s[each - 1]) : 255;
    if (!p.transparency.empty()) {
      bool clear = true;
      for (std::size_t c = 0; c < colours; ++c)
        clear = clear && s[c] == (p.transparency[2 * c] << 8 | p.transparency[2 * c + 1]);
      alpha = clear ? 0 : 255;
    }
    for (std::size_t c = 0; c < colours; ++c) bytes.push_back(over_white(byte(s[c]), alpha));
  }
  return bytes;
}

Sample decoded(const std::vector<Chunk>& chunks) {
  Sample sample;
  sample.file = files::png_file(chunks);
  detail::decode_image("x.png", sample);
  return sample;
}

Chunk numbers(std::string type, std::initializer_list<std::uint32_t> list) {
  Chunk chunk{std::move(type), {}};
  for (const auto n : list) files::put(chunk.data, n);
  return chunk;
}

/// What files say of the meaning of their values.
std::vector<Chunk> profiles(bool grey) {
  // The header of a profile that brightens, and nothing behind it: "GRAY" or "RGB " at 16.
  Bytes icc(132);
  const std::string space = grey ? "GRAY" : "RGB ", words = "mntr" + space + "XYZ ";
  icc[3] = 132, icc[8] = 2, icc[71] = 1;
  std::copy(words.begin(), words.end(), icc.begin() + 12);
  for (const auto& [at, letter] : {std::pair{36, 'a'}, {37, 'c'}, {38, 's'}, {39, 'p'}})
    icc[std::size_t(at)] = std::uint8_t(letter);
  return {numbers("gAMA", {45455}),
          numbers("gAMA", {100000}),
          numbers("gAMA", {20000}),
          {"sRGB", {0}},
          numbers("cHRM", {31270, 32900, 40000, 33000, 21000, 71000, 15000, 6000}),
          {"iCCP", files::packed(icc, {'p', 0, 0})}};
}

}  // namespace

TEST_CASE("PNG files of every kind are read as their bytes are, over white") {
  for (const Kind& kind : kinds)
    for (const bool interlaced : {false, true}) {
      PngPicture p = picture(kind, interlaced);
      const Bytes bytes = expected(p);
      const auto agrees = [&] {
        const Sample s = decoded(files::png_chunks(p));
        CHECK(s.width == 13);
        CHECK(s.height == 11);
        CHECK(std::size_t(s.channels) == bytes.size() / (13 * 11));
        CHECK(s.pixels == bytes);
      };
      CAPTURE(kind.name, kind.depth, interlaced);
      agrees();
      for (const Chunk& chunk :
           profiles(p.type == PngType::grey || p.type == PngType::grey_alpha)) {
        CAPTURE(chunk.type);
        p.others = {chunk};
        agrees();
      }
    }
}

TEST_CASE("half a transparency is half of white, whatever the file says of gamma") {
  PngPicture p{.type = PngType::rgba,
               .depth = 16,
               .width = 1,
               .height = 1,
               .interlaced = false,
               .samples = {0x4000, 0x80FF, 0xFF00, 0x80FF},
               .palette = {},
               .transparency = {},
               .others = {numbers("gAMA", {45455})}};
  CHECK(decoded(files::png_chunks(p)).pixels == Bytes{159, 191, 255});
  p.type = PngType::grey, p.samples = {0x80FF};
  CHECK(decoded(files::png_chunks(p)).pixels == Bytes{128});
}

TEST_CASE("a PNG whose transparency cannot be read is refused, other chunks do not matter") {
  PngPicture p = picture({"", PngType::rgb, 8, true}, false);
  const auto outcome = [](const std::vector<Chunk>& chunks) {
    return files::error_of([&] { decoded(chunks); });
  };
  p.others = {{"cHRM", {1, 2, 3}}, {"iCCP", {0}}, {"tEXt", {}}, {"teSt", {1}}};
  CHECK(outcome(files::png_chunks(p)) == "nothing thrown");
  p.transparency.pop_back();
  CHECK(outcome(files::png_chunks(p)) == "x.png: corrupt PNG: tRNS: invalid");
  Bytes file = files::png_file(files::png_chunks(picture({"", PngType::rgb, 8, true}, false)));
  file[33 + 4] ^= 0x04;  // the chunk of transparency becomes one that nobody knows
  Sample sample;
  sample.file = file;
  CHECK_THAT(files::error_of([&] { detail::decode_image("x.png", sample); }),
             ContainsSubstring("x.png: corrupt PNG: ") && ContainsSubstring("CRC error"));
}

TEST_CASE("PNG files whose chunks are damaged load or throw Error", "[fuzz]") {
  const Random random(3, 1);
  std::uint64_t draw = 0;
  int loaded = 0, refused = 0;
  const auto attempt = [&](Bytes file) {
    Sample sample;
    sample.file = std::move(file);
    try {
      detail::decode_image("x.png", sample);
      REQUIRE(sample.pixels.size() == std::size_t(sample.width * sample.height * sample.channels));
      ++loaded;
    } catch (const Error& error) {
      REQUIRE(std::string(error.what()).find("x.png: ") == 0);
      REQUIRE(std::string(error.what()).find('\n') == std::string::npos);
      ++refused;
    }
  };
  for (const Kind& kind : kinds) {
    PngPicture p = picture(kind, true);
    p.others = {numbers("gAMA", {45455})};
    const auto chunks = files::png_chunks(p);
    for (int i = 0; i < 60; ++i) {  // with the right checksums, so that the damage gets further
      auto bad = chunks;
      for (auto n = random.below(3, draw++); n != ~0ull; --n) {
        Chunk& c = bad[random.below(bad.size(), draw++)];
        const auto at = random.below(c.data.size() + 4, draw++);
        const auto bit = std::uint8_t(1u << random.below(8, draw++));
        if (at < 4)
          c.type[at] = char(c.type[at] ^ bit);
        else
          c.data[at - 4] ^= bit;
      }
      attempt(files::png_file(bad));
    }
    const Bytes good = files::png_file(chunks);
    for (int i = 0; i < 40; ++i)
      attempt({good.begin(), good.begin() + std::ptrdiff_t(random.below(good.size(), draw++))});
  }
  CHECK(loaded > 0);
  CHECK(refused > 1000);
}
