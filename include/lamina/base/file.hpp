// File: an open file of the operating system. Every failure is one Error with the path and reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace lamina {

/// Move-only; the destructor closes.
class File {
 public:
  enum class Mode { read, create, append };

  File() = default;
  /// `read` insists on a regular file; `create` empties the file; `append` makes it if need be.
  File(std::string path, Mode mode);
  File(File&& other) noexcept
      : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}
  File& operator=(File&& other) noexcept {
    std::swap(path_, other.path_), std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~File();

  const std::string& path() const { return path_; }
  /// Bytes.
  std::uint64_t size() const;
  /// All `bytes` from `offset`; a file that ends before is an error.
  void read(void* to, std::size_t bytes, std::uint64_t offset) const;
  /// All `bytes`, at the end.
  void write(const void* from, std::size_t bytes);
  /// Returns when the bytes are on the disk, with the file closed.
  void sync_and_close();

 private:
  std::string path_;
  int descriptor_ = -1;
};

}  // namespace lamina
