// How reports reach the disk: complete, or not at all.
#include "file.hpp"

#include <lamina/base/error.hpp>
#include <lamina/base/file.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace lamina::detail {

void write_file(const std::string& path, const std::string& content) {
  check(!path.empty(), "a report needs a file name");
  struct stat status = {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  check(!exists || !S_ISDIR(status.st_mode), path, ": is a directory: expected a file");
  if (exists && !S_ISREG(status.st_mode)) {
    File(path, File::Mode::append).write(content.data(), content.size());
    return;
  }
  const std::string temporary = text(path, ".tmp", ::getpid());
  try {
    File file(temporary, File::Mode::create);
    file.write(content.data(), content.size());
    file.sync_and_close();
    check(std::rename(temporary.c_str(), path.c_str()) == 0,
          "cannot rename: ", std::strerror(errno));
  } catch (const Error& e) {
    std::remove(temporary.c_str());
    throw Error(text(path, ": not written: ", e.what()), e.where());
  }
}

std::string read_file(const std::string& path, std::uint64_t limit) {
  const File file(path, File::Mode::read);
  check(file.size() <= limit, path, ": has ", file.size(), " bytes: expected ", limit, " at most");
  std::string content(file.size(), '\0');
  file.read(content.data(), content.size(), 0);
  return content;
}

}  // namespace lamina::detail
