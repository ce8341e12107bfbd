// Files, over POSIX calls.
#include <lamina/base/error.hpp>
#include <lamina/base/file.hpp>
#include <lamina/base/host.hpp>
#include <lamina/base/naming.hpp>

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>

namespace lamina {

namespace {

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw Error(text(path, ": cannot ", what, ": ", std::strerror(errno)));
}

std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

/// A rename is on the disk when its directory is.
void sync_directory(const std::string& path) {
  const int descriptor = ::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;  // may be written but not read: nothing more can be done
  const int failed = ::fsync(descriptor) != 0 && errno != EINVAL ? errno : 0;
  ::close(descriptor);
  check(!failed, path, ": saved, but cannot sync its directory: ", std::strerror(failed));
}

constexpr std::string_view temporary = ".tmp.";

/// Whether a temporary file, of which this is the name behind ".tmp.", was left behind by a process
/// that is dead. One of another host may be alive, which cannot be known here. So may one that
/// cannot be seen from this container, but then it holds a lock.
bool left_behind(const std::string& path, std::string_view pid_and_host) {
  pid_t pid = 0;
  const char* end = pid_and_host.data() + pid_and_host.size();
  const auto [rest, error] = std::from_chars(pid_and_host.data(), end, pid);
  const std::string_view host(rest, std::size_t(end - rest));
  if (error != std::errc() || pid <= 0) return false;
  if (!host.empty() && host != "." + host_name()) return false;
  if (::kill(pid, 0) == 0 || errno != ESRCH) return false;
  const int descriptor = ::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return false;
  const bool held = ::flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(descriptor);
  return !held;
}

/// What cannot be removed stays: it is in nobody's way.
void remove_left_behind(const std::string& path) {
  const std::string folder = folder_of(path);
  const std::string start = path.substr(path.rfind('/') + 1) + std::string(temporary);
  DIR* entries = ::opendir(folder.c_str());
  if (!entries) return;
  while (const dirent* entry = ::readdir(entries)) {
    const std::string_view name = entry->d_name;
    if (!name.starts_with(start)) continue;
    const std::string other = path + std::string(name.substr(start.size() - temporary.size()));
    if (left_behind(other, name.substr(start.size()))) ::unlink(other.c_str());
  }
  ::closedir(entries);
}

}  // namespace

std::string temporary_of(const std::string& path) {
  return text(path, temporary, std::int64_t(::getpid()), '.', host_name());
}

File::File(std::string path, Mode mode) : path_(std::move(path)) {
  // O_NONBLOCK: a pipe without a writer is refused below instead of waited for.
  const int flags = mode == Mode::read        ? O_RDONLY | O_NONBLOCK
                    : mode == Mode::create    ? O_WRONLY | O_CREAT | O_TRUNC
                    : mode == Mode::overwrite ? O_WRONLY
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

void File::write_at(std::uint64_t offset, const void* from, std::size_t bytes) {
  auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t n = ::pwrite(descriptor_, at, bytes, off_t(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path_, "write");
    at += n, bytes -= std::size_t(n), offset += std::uint64_t(n);
  }
}

void File::cut(std::uint64_t size) {
  int failed;
  do failed = ::ftruncate(descriptor_, off_t(size));
  while (failed && errno == EINTR);
  if (failed) fail(path_, "cut");
}

File::Lock File::lock() {
  int failed;
  do failed = ::flock(descriptor_, LOCK_EX | LOCK_NB);
  while (failed && errno == EINTR);
  return !failed ? Lock::mine : errno == EWOULDBLOCK ? Lock::anothers : Lock::none;
}

void File::reserve(std::uint64_t bytes) {
  int failed;
  do failed = ::fallocate(descriptor_, 0, 0, off_t(bytes));
  while (failed && errno == EINTR);
  if (failed && errno != EOPNOTSUPP && errno != ENOSYS) fail(path_, "take the room");
}

void File::sync_and_close() {
  int failed;
  do failed = ::fsync(descriptor_);
  while (failed && errno == EINTR);
  if (failed) fail(path_, "sync");
  // Network file systems may report a full disk only here. Linux closes even when interrupted.
  if (::close(std::exchange(descriptor_, -1)) != 0 && errno != EINTR) fail(path_, "close");
}

// ---- complete or not at all ------------------------------------------------------------------

bool in_memory(const std::string& path) {
  constexpr std::string_view start = "/memfd:";
  char name[start.size()];
  return path.starts_with("/proc/") &&
         ::readlink(path.c_str(), name, sizeof name) == ssize_t(sizeof name) &&
         std::string_view(name, sizeof name) == start;
}

MemoryFile::MemoryFile() : descriptor_(::memfd_create("lamina", MFD_CLOEXEC)) {
  check(descriptor_ >= 0, "cannot make a file in memory: ", std::strerror(errno));
  path_ = text("/proc/", ::getpid(), "/fd/", descriptor_);
}

MemoryFile::~MemoryFile() { ::close(descriptor_); }

NewFile::NewFile(std::string path, const char* failed) : path_(std::move(path)), failed_(failed) {
  if (in_memory(path_)) {
    head_.emplace();
    naming(text(path_, ": ", failed_), [&] {
      file_ = File(path_, File::Mode::overwrite);
      file_.write(head_->bytes, sizeof head_->bytes);
    });
    return;
  }
  remove_left_behind(path_);
  temporary_ = temporary_of(path_);
  // A process that had our number may have left it as a second name of the file itself.
  ::unlink(temporary_.c_str());
  naming(text(path_, ": ", failed_), [&] { file_ = File(temporary_, File::Mode::create); });
  file_.lock();
}

NewFile& NewFile::operator=(NewFile&& other) noexcept {
  std::swap(path_, other.path_), std::swap(temporary_, other.temporary_);
  std::swap(failed_, other.failed_), std::swap(synced_, other.synced_);
  std::swap(head_, other.head_), std::swap(file_, other.file_);
  return *this;
}

NewFile::~NewFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void NewFile::reserve(std::uint64_t bytes) {
  naming(text(path_, ": ", failed_), [&] {
    if (head_) file_.cut(bytes);
    file_.reserve(bytes);
  });
}

void NewFile::write(const void* from, std::size_t bytes) {
  auto* at = static_cast<const char*>(from);
  if (head_) {
    const std::size_t held = std::min(bytes, sizeof head_->bytes - head_->size);
    std::copy_n(at, held, head_->bytes + head_->size);
    head_->size += held, at += held, bytes -= held;
  }
  naming(text(path_, ": ", failed_), [&] { file_.write(at, bytes); });
}

void NewFile::sync() {
  if (!head_) naming(text(path_, ": ", failed_), [&] { file_.sync_and_close(); });
  synced_ = true;
}

void NewFile::commit() {
  if (!synced_) sync();
  naming(text(path_, ": ", failed_), [&] {
    if (head_) return file_.write_at(0, head_->bytes, head_->size);
    check(std::rename(temporary_.c_str(), path_.c_str()) == 0, "cannot rename ", temporary_, ": ",
          std::strerror(errno));
  });
  if (head_) return;
  temporary_.clear();
  sync_directory(path_);
}

void write_file(const std::string& path, const std::string& content) {
  check(!path.empty(), "a file name is needed");
  struct stat status = {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  check(!exists || !S_ISDIR(status.st_mode), path, ": is a directory: expected a file");
  if (exists && !S_ISREG(status.st_mode)) {
    File(path, File::Mode::append).write(content.data(), content.size());
    return;
  }
  NewFile file(path);
  file.write(content.data(), content.size());
  file.commit();
}

bool names_a_file(const std::string& word) {
  struct stat status = {};
  return word.find_first_of("/.") != word.npos ||
         (!word.empty() && ::stat(word.c_str(), &status) == 0);
}

std::string read_file(const std::string& path, std::uint64_t limit) {
  const File file(path, File::Mode::read);
  check(file.size() <= limit, path, ": has ", file.size(), " bytes: expected ", limit, " at most");
  std::string content(file.size(), '\0');
  file.read(content.data(), content.size(), 0);
  return content;
}

}  // namespace lamina
