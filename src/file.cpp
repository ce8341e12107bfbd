// File, over POSIX calls.
#include <lamina/base/error.hpp>
#include <lamina/base/file.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace lamina {

namespace {

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw Error(text(path, ": cannot ", what, ": ", std::strerror(errno)));
}

}  // namespace

File::File(std::string path, Mode mode) : path_(std::move(path)) {
  // O_NONBLOCK: a pipe without a writer is refused below instead of waited for.
  const int flags = mode == Mode::read     ? O_RDONLY | O_NONBLOCK
                    : mode == Mode::create ? O_WRONLY | O_CREAT | O_TRUNC
                                           : O_WRONLY | O_CREAT | O_APPEND;
  do descriptor_ = ::open(path_.c_str(), flags | O_CLOEXEC, 0666);
  while (descriptor_ < 0 && errno == EINTR);
  if (descriptor_ < 0) fail(path_, mode == Mode::read ? "open" : "create");
  if (mode != Mode::read) return;
  struct stat status = {};
  const bool regular = ::fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode);
  if (regular) return;
  ::close(descriptor_);  // a destructor does not run after its constructor has thrown
  throw Error(text(path_, ": expected a regular file"));
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::uint64_t File::size() const {
  struct stat status = {};
  if (::fstat(descriptor_, &status) != 0) fail(path_, "ask for the size");
  return std::uint64_t(status.st_size);
}

void File::read(void* to, std::size_t bytes, std::uint64_t offset) const {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t n = ::pread(descriptor_, at, bytes, off_t(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path_, "read");
    check(n > 0, path_, ": ends at byte ", offset, ": expected ", bytes, " bytes more");
    at += n, bytes -= std::size_t(n), offset += std::uint64_t(n);
  }
}

void File::write(const void* from, std::size_t bytes) {
  auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t n = ::write(descriptor_, at, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path_, "write");
    at += n, bytes -= std::size_t(n);
  }
}

void File::sync_and_close() {
  int failed;
  do failed = ::fsync(descriptor_);
  while (failed && errno == EINTR);
  if (failed) fail(path_, "sync");
  // Network file systems may report a full disk only here. Linux closes even when interrupted.
  if (::close(std::exchange(descriptor_, -1)) != 0 && errno != EINTR) fail(path_, "close");
}

}  // namespace lamina
