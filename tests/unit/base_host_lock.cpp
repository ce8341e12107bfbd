// One at a time on a host: threads, and processes.
#include "catch.hpp"

#include <lamina/base/host_lock.hpp>

#include <sys/wait.h>

#include <atomic>
#include <optional>

using namespace lamina;

namespace {

bool free_now() { return HostLock(std::chrono::milliseconds(0)).held(); }

}  // namespace

TEST_CASE("a lock of the host is for one at a time, of whichever thread") {
  std::optional<HostLock> mine(std::chrono::seconds(20));  // tests of others may run beside
  REQUIRE(mine->held());
  CHECK_FALSE(free_now());
  std::atomic<bool> given_back = false;
  bool waited = false;
  std::thread other([&] {
    const HostLock theirs(std::chrono::seconds(20));
    waited = theirs.held() && given_back;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  given_back = true;
  mine.reset();
  other.join();
  CHECK(waited);
}

TEST_CASE("a lock of the host is for one at a time, of whichever process, and goes with it") {
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t child = fork();
  if (child == 0) {
    const HostLock theirs(std::chrono::seconds(20));
    const char word = theirs.held() ? 'y' : 'n';
    if (write(ready[1], &word, 1) == 1) pause();
    _exit(1);
  }
  char word = 0;
  REQUIRE(read(ready[0], &word, 1) == 1);
  CHECK(word == 'y');
  CHECK_FALSE(free_now());
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  CHECK(HostLock(std::chrono::seconds(20)).held());
  close(ready[0]), close(ready[1]);
}
