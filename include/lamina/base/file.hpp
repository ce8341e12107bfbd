// Files: open ones, and ones that appear complete or not at all. Every failure is one Error with
// the path and the reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace lamina {

/// Move-only; the destructor closes.
class File {
 public:
  enum class Mode { read, create, append, overwrite };

  File() = default;
  /// `read` insists on a regular file; `create` empties the file; `append` makes it if need be;
  /// `overwrite` leaves what is in it, and writes from its beginning on.
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
  /// All `bytes`, from `offset` on.
  void write_at(std::uint64_t offset, const void* from, std::size_t bytes);
  /// Removes all from byte `size` on, or adds zeros up to there.
  void cut(std::uint64_t size);
  /// Keeps other processes, on this host and where the file system has locks for all hosts on
  /// those, from locking the file until it is closed.
  enum class Lock { mine, anothers, none };  ///< none: the file system has no locks
  Lock lock();
  /// Takes the room for this many bytes on the disk, where the file system can: what is not there
  /// is found out before anything is written.
  void reserve(std::uint64_t bytes);
  /// Returns when the bytes are on the disk, with the file closed.
  void sync_and_close();

 private:
  std::string path_;
  int descriptor_ = -1;
};

/// Whether a word that is no known name is meant as a file: it has a `.` or `/` in it, or such a
/// file exists.
bool names_a_file(const std::string& word);

/// Whether `path` is memory that a process holds open as a file: /proc/PID/fd/N, of memfd_create.
bool in_memory(const std::string& path);

/// A file in memory, without a name: there for all processes of this host under path(), as long as
/// this lives.
class MemoryFile {
 public:
  /// Throws Error where there is no such thing.
  MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  ~MemoryFile();
  const std::string& path() const { return path_; }

 private:
  int descriptor_ = -1;
  std::string path_;
};

/// Writes, so that the file under `path` is at any moment either the previous or the whole new one:
/// into a temporary file beside it, which commit() puts there. One that goes without a commit
/// removes the temporary file; those that processes of this host left behind when they were killed
/// go when the next NewFile of this path is made. Errors read "path: failed: reason".
///
/// A file in memory has no place beside it. It is written in place, as long as reserve() says, its
/// first 8 bytes by commit(): until then they are zero, and the previous content is lost.
class NewFile {
 public:
  NewFile() = default;
  explicit NewFile(std::string path, const char* failed = "not written");
  NewFile(NewFile&& other) noexcept { *this = std::move(other); }
  NewFile& operator=(NewFile&& other) noexcept;
  ~NewFile();

  /// See File.
  void reserve(std::uint64_t bytes);
  /// All `bytes`, at the end.
  void write(const void* from, std::size_t bytes);
  /// Returns when the bytes are on the disk; nothing can be written afterwards.
  void sync();
  /// Syncs, if need be, and renames.
  void commit();

 private:
  /// Of a file in memory: the first 8 bytes, with which it will be whole.
  struct Head {
    char bytes[8] = {};
    std::size_t size = 0;
  };

  std::string path_, temporary_;  ///< no temporary: in place, or done
  const char* failed_ = "";
  bool synced_ = false;
  std::optional<Head> head_;  ///< in place
  File file_;
};

/// Where this process writes what is to become `path`: "path.tmp.PID.HOST".
std::string temporary_of(const std::string& path);

/// A NewFile of this content; what is no regular file (a pipe, /dev/stdout) is written to directly.
void write_file(const std::string& path, const std::string& content);

/// All of a regular file of at most `limit` bytes.
std::string read_file(const std::string& path, std::uint64_t limit);

}  // namespace lamina
