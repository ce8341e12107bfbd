// One at a time on a host: threads, and processes.
#include "catch.hpp"

#include <lamina/base/folder_lock.hpp>

#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

using namespace lamina;

namespace {

using namespace std::chrono_literals;

/// Nobody else's.
struct Folder {
  Folder() { REQUIRE(mkdtemp(path.data())); }
  ~Folder() { std::filesystem::remove(path); }
  bool free() const { return FolderLock(path, 0ms).held(); }
  std::string path = (std::filesystem::temp_directory_path() / "lamina-lock-XXXXXX").string();
};

}  // namespace

TEST_CASE("a lock of a folder is for one at a time, of whichever thread") {
  const Folder folder;
  std::optional<FolderLock> mine(std::in_place, folder.path, 0ms);
  REQUIRE(mine->held());
  CHECK_FALSE(folder.free());
  std::atomic<bool> given_back = false;
  bool waited = false;
  std::thread other([&] {
    const FolderLock theirs(folder.path, 20s);
    waited = theirs.held() && given_back;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  given_back = true;
  mine.reset();
  other.join();
  CHECK(waited);
}

TEST_CASE("a lock of a folder is for one at a time, of whichever process, and goes with it") {
  const Folder folder;
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t child = fork();
  if (child == 0) {
    const FolderLock theirs(folder.path, 20s);
    const char word = theirs.held() ? 'y' : 'n';
    if (write(ready[1], &word, 1) == 1) pause();
    _exit(1);
  }
  char word = 0;
  REQUIRE(read(ready[0], &word, 1) == 1);
  CHECK(word == 'y');
  CHECK_FALSE(folder.free());
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  CHECK(folder.free());
  close(ready[0]), close(ready[1]);
}

TEST_CASE("what cannot be locked is not waited for") {
  CHECK_FALSE(FolderLock("/no/such/folder", 20min).held());
}
