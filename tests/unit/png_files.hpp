// PNG files of every kind, written chunk by chunk without libpng, so that tests know their bytes.
#pragma once

#include "data_files.hpp"

#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace files {

struct Chunk {
  std::string type;
  Bytes data;
};

/// The numbers are those of the format.
enum class PngType { grey = 0, rgb = 2, palette = 3, grey_alpha = 4, rgba = 6 };

inline std::size_t channels(PngType type) {
  return type == PngType::rgb ? 3 : type == PngType::grey_alpha ? 2 : type == PngType::rgba ? 4 : 1;
}

struct PngPicture {
  PngType type = PngType::grey;
  int depth = 8;
  std::uint32_t width = 1, height = 1;
  bool interlaced = false;
  std::vector<std::uint16_t> samples;  ///< row by row, a pixel's channels together
  Bytes palette, transparency;         ///< the content of PLTE and tRNS; empty: there is none
  std::vector<Chunk> others;           ///< between the header and those
};

/// A row as the file has it: samples of 1 to 16 bits, the first one in the highest bits.
inline void put_row(Bytes& to, const std::vector<std::uint16_t>& samples, int depth) {
  to.push_back(0);  // no filter
  if (depth == 16) {
    for (const auto s : samples) to.push_back(std::uint8_t(s >> 8)), to.push_back(std::uint8_t(s));
    return;
  }
  const std::size_t per_byte = 8 / std::size_t(depth);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (i % per_byte == 0) to.push_back(0);
    const int shift = 8 - depth * int(i % per_byte + 1);
    to.back() = std::uint8_t(to.back() | samples[i] << shift);
  }
}

/// Deflated, behind `prefix`.
inline Bytes packed(const Bytes& content, const Bytes& prefix = {}) {
  Bytes to(prefix.size() + compressBound(content.size()));
  std::copy(prefix.begin(), prefix.end(), to.begin());
  uLongf size = to.size() - prefix.size();
  compress(to.data() + prefix.size(), &size, content.data(), content.size());
  to.resize(prefix.size() + size);
  return to;
}

inline Bytes packed_rows(const PngPicture& p) {
  struct Pass {
    std::uint32_t x, y, dx, dy;
  };
  const std::vector<Pass> whole = {{0, 0, 1, 1}},
                          adam7 = {{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4},
                                   {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}};
  const std::size_t each = channels(p.type);
  Bytes rows;
  for (const Pass& pass : p.interlaced ? adam7 : whole)
    for (std::uint32_t y = pass.y; y < p.height; y += pass.dy) {
      std::vector<std::uint16_t> row;
      for (std::uint32_t x = pass.x; x < p.width; x += pass.dx) {
        const auto first = p.samples.begin() + std::ptrdiff_t((y * p.width + x) * each);
        row.insert(row.end(), first, first + std::ptrdiff_t(each));
      }
      if (!row.empty()) put_row(rows, row, p.depth);
    }
  return packed(rows);
}

inline std::vector<Chunk> png_chunks(const PngPicture& p) {
  Bytes header;
  put(header, p.width), put(header, p.height);
  for (const int byte : {p.depth, int(p.type), 0, 0, int(p.interlaced)})
    header.push_back(std::uint8_t(byte));
  std::vector<Chunk> chunks = {{"IHDR", header}};
  chunks.insert(chunks.end(), p.others.begin(), p.others.end());
  if (!p.palette.empty()) chunks.push_back({"PLTE", p.palette});
  if (!p.transparency.empty()) chunks.push_back({"tRNS", p.transparency});
  chunks.push_back({"IDAT", packed_rows(p)});
  chunks.push_back({"IEND", {}});
  return chunks;
}

inline Bytes png_file(const std::vector<Chunk>& chunks) {
  Bytes file = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
  for (const Chunk& c : chunks) {
    Bytes body(c.type.begin(), c.type.end());
    body.insert(body.end(), c.data.begin(), c.data.end());
    put(file, std::uint32_t(c.data.size()));
    file.insert(file.end(), body.begin(), body.end());
    put(file, std::uint32_t(crc32(0, body.data(), uInt(body.size()))));
  }
  return file;
}

}  // namespace files
