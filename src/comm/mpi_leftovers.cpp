// Notes of what a job has outside of its processes. A line of a note: number of the file, its path.
#include "comm/mpi_leftovers.hpp"

#include <lamina/base/text.hpp>

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

namespace lamina::detail {
namespace {

namespace fs = std::filesystem;

const std::string memory = "/dev/shm/";

/// A file or a folder by its path and number, so that another one of that name is not mistaken.
struct Item {
  std::uint64_t number = 0;
  std::string path;

  static Item at(const std::string& path) {
    struct stat found = {};
    return {lstat(path.c_str(), &found) == 0 && found.st_uid == geteuid() ? found.st_ino : 0, path};
  }
  bool operator==(const Item&) const = default;
};

/// Of notes: of this user, and of processes whose numbers mean something to us.
std::string name_start() {
  char space[96] = "";
  if (readlink("/proc/self/ns/pid", space, sizeof space - 1) < 0) space[0] = 0;
  std::string digits;
  for (const char c : std::string_view(space))
    if (c >= '0' && c <= '9') digits += c;
  return text("lamina-", geteuid(), '-', digits, '-');
}

/// Open MPI's: segments between the ranks of a node, and of windows.
bool is_segment(std::string_view path) {
  if (!path.starts_with(memory)) return false;
  const std::string_view name = path.substr(memory.size());
  return name.find('/') == name.npos &&
         (name.starts_with("vader_segment.") || name.starts_with("sm_segment.") ||
          name.starts_with("osc_sm."));
}

/// The process that made a launcher's folder, ".../ompi.HOST.USER/pid.N"; 0 where the name does not
/// tell.
pid_t launcher_of(const std::string& folder) {
  const fs::path path(folder);
  const std::string name = path.filename().string();
  if (!name.starts_with("pid.") || !path.parent_path().filename().string().starts_with("ompi."))
    return 0;
  return pid_t(std::atol(name.c_str() + 4));
}

/// What there is of this process's job.
std::vector<Item> items() {
  std::vector<Item> all;
  const auto add = [&](const std::string& path) {
    const Item item = Item::at(path);
    if (item.number != 0 && std::find(all.begin(), all.end(), item) == all.end())
      all.push_back(item);
  };
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (const auto at = line.find(memory); at != line.npos && is_segment(line.substr(at)))
      add(line.substr(at));
  const char* folder = std::getenv("OMPI_MCA_orte_jobfam_session_dir");
  if (folder && launcher_of(folder) > 0) add(folder);
  return all;
}

std::vector<Item> read(const std::string& note) {
  std::vector<Item> all;
  std::ifstream file(note);
  for (Item item; file >> item.number && file.get() && std::getline(file, item.path);)
    all.push_back(item);
  return all;
}

/// Whether nothing of it is left.
bool remove(const Item& item) {
  if (Item::at(item.path) != item) return true;
  if (is_segment(item.path)) return unlink(item.path.c_str()) == 0;
  const pid_t launcher = launcher_of(item.path);
  if (launcher <= 0 || kill(launcher, 0) == 0 || errno != ESRCH) return false;
  std::error_code error;
  fs::remove_all(item.path, error);
  return !error;
}

}  // namespace

void JobNote::remove_leftovers() {
  // One process at a time, or else each takes another's look at a note for a sign of life. The
  // first one does it for all. Not by a lock of the folder itself, which a rank that gets ready to
  // join holds as it takes memory.
  const int turn = open("/dev", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (turn >= 0 && flock(turn, LOCK_EX | LOCK_NB) == 0) remove_in_turn();
  if (turn >= 0) close(turn);
}

void JobNote::remove_in_turn() {
  std::vector<Item> kept;
  std::vector<std::string> dead;
  const std::string start = name_start();
  std::error_code error;
  for (fs::directory_iterator at(memory, error), end; !error && at != end; at.increment(error)) {
    const std::string path = at->path().string();
    if (!at->path().filename().string().starts_with(start)) continue;
    const int note = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct stat status = {};
    if (note < 0) continue;
    if (fstat(note, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid()) {
      if (flock(note, LOCK_EX | LOCK_NB) == 0)
        dead.push_back(path);
      else
        for (Item& item : read(path)) kept.push_back(std::move(item));
    }
    close(note);
  }
  for (const std::string& note : dead) {
    bool all = true;
    for (const Item& item : read(note)) {
      const bool in_use = std::find(kept.begin(), kept.end(), item) != kept.end();
      all = !in_use && remove(item) && all;
    }
    if (all) unlink(note.c_str());
  }
}

JobNote::JobNote() {
  std::ostringstream lines;
  for (const Item& item : items()) lines << item.number << ' ' << item.path << '\n';
  const std::string content = lines.str();
  if (content.empty()) return;
  // Without a name until it is written and locked, so that nobody takes it for one of the dead.
  lock_ = open(memory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (lock_ < 0) return;
  const std::string path = text(memory, name_start(), getpid()),
                    self = text("/proc/self/fd/", lock_);
  if (write(lock_, content.data(), content.size()) != ssize_t(content.size()) ||
      flock(lock_, LOCK_EX | LOCK_NB) != 0)
    return;
  unlink(path.c_str());  // of a process that had our number, and whose launcher lives
  if (linkat(AT_FDCWD, self.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0) path_ = path;
}

JobNote::~JobNote() {
  if (!path_.empty()) unlink(path_.c_str());
  if (lock_ >= 0) close(lock_);
}

}  // namespace lamina::detail
