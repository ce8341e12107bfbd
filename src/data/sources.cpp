// Sources by name, and what they share.
#include "sources.hpp"

#include <lamina/base/file.hpp>

#include <sys/stat.h>

namespace lamina {
namespace detail {

namespace {

mode_t mode_of(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? status.st_mode : 0;
}

}  // namespace

bool is_directory(const std::string& path) { return S_ISDIR(mode_of(path)); }
bool is_file(const std::string& path) { return S_ISREG(mode_of(path)); }

void read_file(const std::string& path, std::vector<std::uint8_t>& to) {
  const File file(path, File::Mode::read);
  to.resize(file.size());
  file.read(to.data(), to.size(), 0);
}

}  // namespace detail

std::unique_ptr<Dataset> open_data(std::string_view source, const DataOptions& options) {
  using Open = std::unique_ptr<Dataset> (*)(const std::string&, const DataOptions&);
  static constexpr struct {
    std::string_view name;
    Open open;
  } sources[] = {
      {"mnist", mnist}, {"cifar10", cifar10}, {"cifar100", cifar100}, {"images", images}};

  if (source == "synthetic") return synthetic(options);
  const auto colon = source.find(':');
  for (const auto& [name, open] : sources) {
    if (source.substr(0, colon) != name) continue;
    check(colon != source.npos && colon + 1 < source.size(), "data source '", source,
          "' names no folder: expected ", name, ":DIR");
    return open(std::string(source.substr(colon + 1)), options);
  }
  throw Error(text("unknown data source '", source,
                   "': expected synthetic, mnist:DIR, cifar10:DIR, cifar100:DIR or images:DIR"));
}

}  // namespace lamina
