// Safetensors: named tensors in one file. Eight bytes (little-endian) say how long the JSON header
// is; the header says name, type, shape and place of each tensor; their raw bytes follow.
#pragma once

#include <lamina/base/file.hpp>
#include <lamina/tensor/dtype.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace lamina {

/// A tensor of a safetensors file.
struct StoredTensor {
  std::string name;
  std::string dtype;  ///< in the format's words: "F32", "BF16", "I64", ...
  std::vector<std::int64_t> dims = {};
  std::uint64_t begin = 0, bytes = 0;  ///< from the end of the header; the writer sets both

  /// Product of dims.
  std::int64_t size() const;
};

/// Reads. The constructor checks the whole header against the format and the size of the file, and
/// throws Error if anything is wrong; data are read only when asked for.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  /// In the order of their data.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// Null if there is none of that name.
  const StoredTensor* find(std::string_view name) const;

  /// Whether its dtype is one that read() converts: F64, F32, F16, BF16, I64 or I32.
  static bool readable(const StoredTensor&);
  /// Elements [first, first + count) converted to floating point numbers.
  void read(const StoredTensor&, std::int64_t first, std::int64_t count, DType as, void* to) const;
  void read(const StoredTensor& tensor, DType as, void* to) const {
    read(tensor, 0, tensor.size(), as, to);
  }

 private:
  File file_;
  std::uint64_t data_ = 0;  ///< where the data begin
  std::vector<StoredTensor> tensors_;
  std::map<std::string, std::string> metadata_;
  std::map<std::string, std::size_t, std::less<>> index_;
};

/// Writes, so that the file under `path` is at any moment either the previous or the whole new one
/// (see NewFile). Every function throws Error on failure.
class SafetensorsWriter {
 public:
  /// Takes the room of the whole file and writes the header. Tensors with wide elements must come
  /// before those with narrow ones, so that all are aligned.
  SafetensorsWriter(std::string path, std::vector<StoredTensor> tensors,
                    const std::map<std::string, std::string>& metadata = {});

  /// The next bytes of the data: tensor after tensor, each whole or in pieces.
  void write(const void* data, std::size_t bytes);
  void commit();

 private:
  std::string path_;
  NewFile file_;
  std::uint64_t header_ = 0, data_ = 0, written_ = 0;  ///< bytes: to come, to come, done
};

}  // namespace lamina
