// Folders of images, one per class.
#include "sources.hpp"

#include <algorithm>
#include <cctype>
#include <filesystem>

namespace lamina {
namespace {

namespace fs = std::filesystem;

// The names in a folder, sorted; hidden ones left out.
template <class Keep>
std::vector<std::string> list(const std::string& dir, Keep keep) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(dir, error), end; !error && at != end; at.increment(error)) {
    const auto name = at->path().filename().string();
    if (name[0] != '.' && keep(*at)) names.push_back(name);
  }
  check(!error, dir, ": cannot list the folder: ", error.message());
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> folders(const std::string& dir) {
  auto names = list(dir, [](const auto& entry) {
    std::error_code ignored;
    return entry.is_directory(ignored);
  });
  check(!names.empty(), dir, ": no class folders, expected CLASS/*.jpg, .jpeg or .png");
  return names;
}

bool is_image(const fs::directory_entry& entry) {
  auto extension = entry.path().extension().string();
  for (char& letter : extension) letter = char(std::tolower(static_cast<unsigned char>(letter)));
  return extension == ".jpg" || extension == ".jpeg" || extension == ".png";
}

struct LabelledFile {
  std::int32_t label;
  std::string name;
};

class Folder final : public Dataset {
 public:
  Folder(std::string name, Transform transform, std::string root, std::vector<std::string> classes,
         std::vector<LabelledFile> files)
      : Dataset(std::move(name), int(classes.size()), transform),
        root_(std::move(root)),
        classes_(std::move(classes)),
        files_(std::move(files)) {}

  std::int64_t size() const override { return std::int64_t(files_.size()); }

  void read(std::int64_t index, Sample& to) const override {
    const LabelledFile& file = files_[std::size_t(index)];
    const auto path = text(root_, '/', classes_[std::size_t(file.label)], '/', file.name);
    detail::read_file(path, to.file);
    detail::decode_image(path, to);
    to.label = file.label;
  }

 private:
  std::string root_;
  std::vector<std::string> classes_;
  std::vector<LabelledFile> files_;
};

// The folder of the set: its own if there is train/, else `dir` itself.
std::string root_of(const std::string& dir, bool train) {
  const auto own = dir + "/train";
  if (!detail::is_directory(own)) return dir;
  if (train) return own;
  for (const char* name : {"/val", "/validation", "/test"}) {
    if (detail::is_directory(dir + name)) return dir + name;
  }
  throw Error(text(dir, ": has train/ but no validation set, expected val/, validation/ or test/"));
}

}  // namespace

std::unique_ptr<Dataset> images(const std::string& dir, const DataOptions& options) {
  check(detail::is_directory(dir), dir, ": no such folder");
  const auto train = root_of(dir, true), root = root_of(dir, options.train);
  const bool hold_out = train == dir;
  auto classes = folders(train);  // the labels are the training set's, for the validation set too

  std::vector<LabelledFile> files;
  for (const auto& name : folders(root)) {
    const auto at = std::lower_bound(classes.begin(), classes.end(), name);
    check(at != classes.end() && *at == name, root, '/', name, ": this class is not in ", train);
    const auto label = std::int32_t(at - classes.begin());
    const auto found = list(text(root, '/', name), is_image);
    check(!found.empty(), root, '/', name, ": no images, expected .jpg, .jpeg or .png files");
    for (std::size_t i = 0; i < found.size(); ++i) {
      const bool held_out = i % 10 == 9;
      if (!hold_out || held_out != options.train) files.push_back({label, found[i]});
    }
  }
  check(!files.empty(), dir, ": too few images to hold out a tenth, expected val/ beside train/");

  Transform transform;
  transform.shape = detail::wanted(options, {1, 3, 224, 224});
  detail::normalise(transform, {0.485f, 0.456f, 0.406f}, {0.229f, 0.224f, 0.225f});  // of ImageNet
  transform.resize = std::max(transform.shape.h, transform.shape.w) * 8 / 7;         // 256 for 224
  transform.augment = options.train && options.augment;
  transform.mirror = transform.random_resize = true;
  return detail::limited(std::make_unique<Folder>("images:" + dir, transform, root,
                                                  std::move(classes), std::move(files)),
                         options.limit);
}

}  // namespace lamina
