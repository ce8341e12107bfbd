// FolderLock: one at a time on a host.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string>
#include <thread>

namespace lamina {

/// While one of a folder lives, no other does, neither of another thread nor of another process:
/// whoever makes one waits until then. After `patience`, as where others that hold it were stopped,
/// and where the folder cannot be locked, it goes on without, and held() says so.
class FolderLock {
 public:
  FolderLock(const std::string& folder, std::chrono::milliseconds patience)
      : file_(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    const auto end = std::chrono::steady_clock::now() + patience;
    while (!(held_ = flock(file_, LOCK_EX | LOCK_NB) == 0) && errno == EWOULDBLOCK &&
           std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ~FolderLock() {
    if (file_ < 0) return;
    flock(file_, LOCK_UN);  // closing alone leaves it to a process that was forked meanwhile
    close(file_);
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  bool held() const { return held_; }

 private:
  int file_;
  bool held_ = false;
};

}  // namespace lamina
