// IDX files, the format of MNIST: a big-endian header, then bytes; plain or gzip.
#include "sources.hpp"

#include <sys/stat.h>
#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <string_view>

namespace lamina {
namespace {

constexpr int classes = 10;

// A plain or gzip file, read forward; zlib tells the two apart.
class Input {
 public:
  explicit Input(std::string path) : path_(std::move(path)), file_(gzopen(path_.c_str(), "rb")) {
    check(file_ != nullptr, path_, ": cannot open: ", std::strerror(errno));
    gzbuffer(file_, 1 << 17);
    struct stat status {};
    if (::stat(path_.c_str(), &status) == 0) bytes_ = std::uint64_t(status.st_size);
  }
  ~Input() { gzclose(file_); }
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;

  const std::string& path() const { return path_; }

  // The file cannot hold more than this: deflate makes a byte of at most 1032.
  std::uint64_t capacity() { return gzdirect(file_) ? bytes_ : bytes_ * 1032; }

  std::uint32_t number() {
    std::uint8_t b[4];
    check(read(b, 4) == 4, path_, ": truncated within the header");
    return std::uint32_t{b[0]} << 24 | std::uint32_t{b[1]} << 16 | std::uint32_t{b[2]} << 8 | b[3];
  }

  // Exactly `count` bytes, with which the file must end.
  std::vector<std::uint8_t> rest(std::uint64_t count) {
    check(count <= capacity(), path_, ": truncated: the header announces ", count,
          " bytes, more than the file can hold");
    std::vector<std::uint8_t> bytes(count);
    const auto got = read(bytes.data(), count);
    check(got == count, path_, ": truncated: the header announces ", count, " bytes, found ", got);
    std::uint8_t more;
    check(read(&more, 1) == 0, path_, ": longer than the ", count,
          " bytes that the header announces");
    return bytes;
  }

 private:
  std::uint64_t read(std::uint8_t* to, std::uint64_t count) {
    std::uint64_t done = 0;
    while (done < count) {
      const auto part = unsigned(std::min<std::uint64_t>(count - done, 1 << 30));
      const int got = gzread(file_, to + done, part);
      if (got <= 0) break;
      done += std::uint64_t(got);
    }
    int error = Z_OK;
    std::string_view message = gzerror(file_, &error);
    if (const auto name = path_ + ": "; message.starts_with(name))
      message.remove_prefix(name.size());
    check(error == Z_OK || error == Z_BUF_ERROR, path_,
          ": damaged: ", error == Z_ERRNO ? std::strerror(errno) : message);
    check(error == Z_OK, path_, ": truncated gzip file");
    return done;
  }

  std::string path_;
  gzFile file_;
  std::uint64_t bytes_ = 0;
};

void check_magic(Input& in, std::uint32_t dimensions) {
  const auto expected = 0x800 + dimensions;  // 8: unsigned bytes
  const auto magic = in.number();
  check(magic == expected, in.path(), ": wrong magic number ", format("0x%08x", magic),
        ", expected ", format("0x%08x", expected), " (IDX, bytes, ", dimensions,
        dimensions == 1 ? " dimension)" : " dimensions)");
}

// The names that are about: train-images-idx3-ubyte, train-images.idx3-ubyte, each also .gz.
std::string file_of(const std::string& dir, const std::string& stem, const std::string& type) {
  check(detail::is_directory(dir), dir, ": no such folder");
  for (const char* dot : {"-", "."}) {
    for (const char* zip : {"", ".gz"}) {
      const auto path = text(dir, '/', stem, dot, type, zip);
      if (detail::is_file(path)) return path;
    }
  }
  throw Error(
      text(dir, '/', stem, '-', type, ": no such file (nor with .gz, nor ", stem, '.', type, ")"));
}

}  // namespace

std::unique_ptr<Dataset> mnist(const std::string& dir, const DataOptions& options) {
  const std::string set = options.train ? "train" : "t10k";
  Input images(file_of(dir, set + "-images", "idx3-ubyte"));
  check_magic(images, 3);
  const std::uint64_t count = images.number(), rows = images.number(), columns = images.number();
  check(count > 0 && rows > 0 && columns > 0 && rows < 65536 && columns < 65536, images.path(),
        ": expected images of 1 to 65535 pixels each way, the header says ", count, " of ", rows,
        "x", columns);
  auto pixels = images.rest(count * rows * columns);

  Input names(file_of(dir, set + "-labels", "idx1-ubyte"));
  check_magic(names, 1);
  const auto named = names.number();
  check(named == count, names.path(), ": ", named, " labels for the ", count, " images of ",
        images.path());
  auto labels = names.rest(count);
  for (std::size_t i = 0; i < labels.size(); ++i) {
    check(labels[i] < classes, names.path(), ": label ", int(labels[i]), " of image ", i,
          ", expected 0 to ", classes - 1);
  }

  const Shape stored{1, 1, std::int64_t(rows), std::int64_t(columns)};
  Transform transform;
  transform.shape = detail::wanted(options, stored);
  transform.mean.fill(0.1307f);  // of MNIST's training set
  transform.deviation.fill(0.3081f);
  transform.augment = options.train && options.augment;
  transform.pad = 2;
  return detail::limited(
      std::make_unique<detail::Stored>("mnist:" + dir, classes, transform, stored,
                                       std::move(pixels), std::move(labels)),
      options.limit);
}

}  // namespace lamina
