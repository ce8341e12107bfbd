// CIFAR-10 and CIFAR-100, the binary versions: records of the label and three planes of 32x32
// bytes.
#include "sources.hpp"

namespace lamina {
namespace {

constexpr std::int64_t side = 32, plane = side * side;

struct Format {
  const char* name;
  const char* folder;  // where the authors' archive puts the files
  int classes;
  std::size_t label_bytes;  // the last of them counts
  std::vector<const char*> train, validation;
  std::array<float, 3> mean, deviation;
};

std::unique_ptr<Dataset> open(const Format& f, std::string dir, const DataOptions& options) {
  check(detail::is_directory(dir), dir, ": no such folder");
  const auto name = text(f.name, ':', dir);
  if (detail::is_directory(text(dir, '/', f.folder))) dir = text(dir, '/', f.folder);
  const auto record = f.label_bytes + 3 * std::size_t(plane);

  std::vector<std::uint8_t> file, pixels, labels;
  for (const char* part : options.train ? f.train : f.validation) {
    const auto path = text(dir, '/', part);
    detail::read_file(path, file);
    check(!file.empty() && file.size() % record == 0, path, ": ", file.size(),
          " bytes, expected whole records of ", record, " bytes");
    const auto count = file.size() / record;
    pixels.reserve(pixels.size() + count * 3 * std::size_t(plane));
    for (std::size_t i = 0; i < count; ++i) {
      const auto* data = file.data() + i * record + f.label_bytes;
      const int label = data[-1];
      check(label < f.classes, path, ": label ", label, " of image ", i, ", expected 0 to ",
            f.classes - 1);
      labels.push_back(std::uint8_t(label));
      for (std::int64_t p = 0; p < plane; ++p) {
        for (std::int64_t c = 0; c < 3; ++c) pixels.push_back(data[c * plane + p]);
      }
    }
  }

  const Shape stored{1, 3, side, side};
  Transform transform;
  transform.shape = detail::wanted(options, stored);
  detail::normalise(transform, f.mean, f.deviation);
  transform.augment = options.train && options.augment;
  transform.mirror = true;
  transform.pad = transform.shape.w / 8;
  return detail::limited(std::make_unique<detail::Stored>(name, f.classes, transform, stored,
                                                          std::move(pixels), std::move(labels)),
                         options.limit);
}

}  // namespace

std::unique_ptr<Dataset> cifar10(const std::string& dir, const DataOptions& options) {
  return open({"cifar10",
               "cifar-10-batches-bin",
               10,
               1,
               {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
                "data_batch_5.bin"},
               {"test_batch.bin"},
               {0.4914f, 0.4822f, 0.4465f},
               {0.2470f, 0.2435f, 0.2616f}},
              dir, options);
}

std::unique_ptr<Dataset> cifar100(const std::string& dir, const DataOptions& options) {
  return open({"cifar100",
               "cifar-100-binary",
               100,
               2,
               {"train.bin"},
               {"test.bin"},
               {0.5071f, 0.4865f, 0.4409f},
               {0.2673f, 0.2564f, 0.2762f}},
              dir, options);
}

}  // namespace lamina
