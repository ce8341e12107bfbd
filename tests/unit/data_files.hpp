// Small data files, made by the tests that read them.
#pragma once

#include <lamina/base/error.hpp>
#include <lamina/base/text.hpp>

#include <unistd.h>
#include <zlib.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

namespace files {

using Bytes = std::vector<std::uint8_t>;

/// A folder of its own, removed at the end.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "lamina-data-XXXXXX").string();
    if (!::mkdtemp(name.data())) throw lamina::Error("mkdtemp");
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  Folder(const Folder&) = delete;

  std::string operator/(const std::string& name) const { return path + "/" + name; }

  std::string path;
};

inline void write(const std::string& path, const Bytes& bytes) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::filesystem::remove(path);  // a new file: some file systems flush one that is overwritten
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (!file ||
      (!bytes.empty() && std::fwrite(bytes.data(), 1, bytes.size(), file) != bytes.size())) {
    throw lamina::Error("cannot write " + path);
  }
  std::fclose(file);
}

inline Bytes gzip(const Folder& folder, const Bytes& bytes) {
  const auto path = folder / "packed";
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, bytes.data(), unsigned(bytes.size()));
  gzclose(file);
  Bytes packed(std::filesystem::file_size(path));
  std::FILE* back = std::fopen(path.c_str(), "rb");
  if (std::fread(packed.data(), 1, packed.size(), back) != packed.size()) packed.clear();
  std::fclose(back);
  std::filesystem::remove(path);
  return packed;
}

inline void put(Bytes& to, std::uint32_t number) {
  for (int shift = 24; shift >= 0; shift -= 8) to.push_back(std::uint8_t(number >> shift));
}

/// Pixel p of image i is (7 * i + p) % 256.
inline Bytes idx_images(std::uint32_t count, std::uint32_t rows, std::uint32_t columns) {
  Bytes bytes;
  for (const auto number : {0x803u, count, rows, columns}) put(bytes, number);
  for (std::uint32_t i = 0; i < count; ++i) {
    for (std::uint32_t p = 0; p < rows * columns; ++p) bytes.push_back(std::uint8_t(7 * i + p));
  }
  return bytes;
}

/// Label of image i: i % 10.
inline Bytes idx_labels(std::uint32_t count) {
  Bytes bytes;
  for (const auto number : {0x801u, count}) put(bytes, number);
  for (std::uint32_t i = 0; i < count; ++i) bytes.push_back(std::uint8_t(i % 10));
  return bytes;
}

/// MNIST's two training files.
inline void write_mnist(const Folder& folder, std::uint32_t count, std::uint32_t rows = 4,
                        std::uint32_t columns = 4) {
  write(folder / "train-images-idx3-ubyte", idx_images(count, rows, columns));
  write(folder / "train-labels-idx1-ubyte", idx_labels(count));
}

/// The message that `action` throws, or "nothing thrown".
template <class Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const lamina::Error& error) {
    return error.what();
  }
  return "nothing thrown";
}

}  // namespace files
