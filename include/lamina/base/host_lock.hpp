// HostLock: one at a time on a host.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

namespace lamina {

/// While one lives, no other does on this host (or in this container, where that has a /dev/shm of
/// its own), neither of another thread nor of another process: whoever makes one waits until then.
/// After `patience`, as where others that hold one were stopped, and where there is no /dev/shm, it
/// goes on without, and held() says so.
class HostLock {
 public:
  explicit HostLock(std::chrono::milliseconds patience = std::chrono::seconds(60))
      : file_(open("/dev/shm", O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    const auto end = std::chrono::steady_clock::now() + patience;
    while (file_ >= 0 && !(held_ = flock(file_, LOCK_EX | LOCK_NB) == 0) &&
           (errno == EWOULDBLOCK || errno == EINTR) && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ~HostLock() {
    if (file_ < 0) return;
    flock(file_, LOCK_UN);  // closing alone leaves it to a process that was forked meanwhile
    close(file_);
  }
  HostLock(const HostLock&) = delete;
  HostLock& operator=(const HostLock&) = delete;

  bool held() const { return held_; }

 private:
  int file_;
  bool held_ = false;
};

}  // namespace lamina
