// Sources by name, and what they share.
#include "sources.hpp"

#include <lamina/base/file.hpp>

#include <sys/stat.h>

#include <algorithm>

namespace lamina {
namespace detail {

Shape wanted(const DataOptions& options, Shape own) {
  const auto choose = [](std::int64_t asked, std::int64_t has) { return asked > 0 ? asked : has; };
  return {1, choose(options.channels, own.c), choose(options.height, own.h),
          choose(options.width, own.w)};
}

void normalise(Transform& transform, std::array<float, 3> mean, std::array<float, 3> deviation) {
  if (transform.shape.c == 1) {
    mean.fill((mean[0] + mean[1] + mean[2]) / 3);
    deviation.fill((deviation[0] + deviation[1] + deviation[2]) / 3);
  }
  transform.mean = mean;
  transform.deviation = deviation;
}

namespace {

class Limited final : public Dataset {
 public:
  Limited(std::unique_ptr<Dataset> all, std::int64_t size)
      : Dataset(all->name(), all->classes(), all->transform()), all_(std::move(all)), size_(size) {}

  std::int64_t size() const override { return size_; }

  // Spaced, because the images of a folder are sorted by class.
  void read(std::int64_t index, Sample& to) const override {
    all_->read(index * all_->size() / size_, to);
  }

 private:
  std::unique_ptr<Dataset> all_;
  std::int64_t size_;
};

mode_t mode_of(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? status.st_mode : 0;
}

}  // namespace

std::unique_ptr<Dataset> limited(std::unique_ptr<Dataset> data, std::int64_t limit) {
  check(limit >= 0, data->name(), ": a limit of ", limit, " images, expected 0 or more");
  if (limit == 0 || limit >= data->size()) return data;
  return std::make_unique<Limited>(std::move(data), limit);
}

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
