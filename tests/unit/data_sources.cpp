// The sources of images: what they read, and what they say of files that are wrong.
#include "catch.hpp"
#include "data_files.hpp"

#include <lamina/base/random.hpp>
#include <lamina/train/data/dataset.hpp>

#include <png.h>
#include <turbojpeg.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <memory>
#include <set>

namespace {

using namespace lamina;
using files::Bytes;
using files::error_of;
using files::Folder;

Sample read(const Dataset& data, std::int64_t index) {
  Sample sample;
  data.read(index, sample);
  return sample;
}

std::string opening(const std::string& source, const DataOptions& options = {}) {
  return error_of([&] { open_data(source, options); });
}

// Two labels, then three planes of values 10 c + i.
Bytes cifar(std::size_t records, std::size_t label_bytes) {
  Bytes bytes;
  for (std::size_t i = 0; i < records; ++i) {
    if (label_bytes == 2) bytes.push_back(19);
    bytes.push_back(std::uint8_t(i % 10));
    for (std::size_t c = 0; c < 3; ++c) bytes.insert(bytes.end(), 1024, std::uint8_t(10 * c + i));
  }
  return bytes;
}

Bytes jpeg_of(const Bytes& pixels, int width, int height, int format, int colours, int flags = 0) {
  void* encoder = tjInitCompress();
  unsigned char* packed = nullptr;
  unsigned long size = 0;
  tjCompress2(encoder, pixels.data(), width, 0, height, format, &packed, &size, colours, 95, flags);
  Bytes bytes(packed, packed + size);
  tjFree(packed);
  tjDestroy(encoder);
  return bytes;
}

Bytes jpeg(int width, int height, int format, int colours) {
  const int channels = tjPixelSize[format];
  Bytes pixels(std::size_t(width * height * channels));
  for (std::size_t i = 0; i < pixels.size(); ++i) {
    pixels[i] = std::uint8_t(50 * (i % std::size_t(channels)) + 40);
  }
  return jpeg_of(pixels, width, height, format, colours);
}

// 64 x 48 pixels that take many bytes.
Bytes drawn_jpeg(int flags = 0) {
  Bytes pixels(64 * 48 * 3);
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = std::uint8_t(i * i / 97 + i % 3 * 80);
  return jpeg_of(pixels, 64, 48, TJPF_RGB, TJSAMP_420, flags);
}

// What is thrown as these bytes are read to `sample`.
std::string reading_jpeg(const Folder& folder, const Bytes& bytes, Sample& sample) {
  files::write(folder / "a/x.jpg", bytes);
  const auto data = open_data("images:" + folder.path);
  return error_of([&] { data->read(0, sample); });
}

std::ptrdiff_t place(const Bytes& bytes, std::uint8_t marker) {
  const Bytes mark{0xFF, marker};
  return std::search(bytes.begin(), bytes.end(), mark.begin(), mark.end()) - bytes.begin();
}

Bytes with(Bytes bytes, std::ptrdiff_t at, const Bytes& more) {
  bytes.insert(bytes.begin() + at, more.begin(), more.end());
  return bytes;
}

Bytes png(std::uint32_t width, std::uint32_t height, std::uint32_t format, const Bytes& pixels) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = width, image.height = height, image.format = format;
  png_alloc_size_t size = 0;
  png_image_write_to_memory(&image, nullptr, &size, 0, pixels.data(), 0, nullptr);
  Bytes bytes(size);
  png_image_write_to_memory(&image, bytes.data(), &size, 0, pixels.data(), 0, nullptr);
  return bytes;
}

}  // namespace

TEST_CASE("an unknown source is answered by the known ones") {
  const std::string known =
      ": expected synthetic, mnist:DIR, cifar10:DIR, cifar100:DIR or images:DIR";
  CHECK(opening("imagenet:/data") == "unknown data source 'imagenet:/data'" + known);
  CHECK(opening("") == "unknown data source ''" + known);
  CHECK(opening("mnist") == "data source 'mnist' names no folder: expected mnist:DIR");
  CHECK(opening("cifar10:") == "data source 'cifar10:' names no folder: expected cifar10:DIR");
  CHECK(opening("images:/no/such") == "/no/such: no such folder");
}

TEST_CASE("synthetic images are the same for the same seed, and tell their class") {
  const auto data = open_data("synthetic"), again = open_data("synthetic");
  CHECK(data->shape() == Shape{1, 3, 224, 224});
  CHECK(data->classes() == 10);
  CHECK(read(*data, 17).pixels == read(*again, 17).pixels);
  CHECK(read(*data, 17).pixels != read(*open_data("synthetic", {.seed = 1}), 17).pixels);
  CHECK(read(*data, 17).pixels != read(*open_data("synthetic", {.train = false}), 17).pixels);

  const auto small = synthetic({.channels = 1, .height = 8, .width = 12, .classes = 4});
  CHECK(small->shape() == Shape{1, 1, 8, 12});
  // Images of one class are nearer to each other than to those of another.
  const auto distance = [&](std::int64_t a, std::int64_t b) {
    const auto x = read(*small, a), y = read(*small, b);
    double sum = 0;
    for (std::size_t i = 0; i < x.pixels.size(); ++i) sum += std::abs(x.pixels[i] - y.pixels[i]);
    return sum;
  };
  double same = 0, other = 0;
  for (int i = 0; i < 40; ++i) same += distance(i, i + 4), other += distance(i, i + 5);
  CHECK(other > 1.1 * same);
}

TEST_CASE("a limited set has all classes, where they take turns, too") {
  for (const bool train : {true, false})
    for (const std::int64_t limit : {100, 200, 250, 500, 1000, 2500}) {
      CAPTURE(train, limit);
      const auto data = synthetic(
          {.train = train, .limit = limit, .channels = 1, .height = 2, .width = 2, .classes = 10});
      REQUIRE(data->size() == limit);
      std::vector<double> counts(10);
      for (std::int64_t i = 0; i < limit; ++i) ++counts.at(std::size_t(read(*data, i).label));
      for (const double count : counts) {  // within four deviations of chance
        CHECK(count > double(limit) / 10 - 4 * std::sqrt(double(limit) * 0.09));
        CHECK(count < double(limit) / 10 + 4 * std::sqrt(double(limit) * 0.09));
      }
    }
}

TEST_CASE("MNIST files are read, plain and packed, by either name") {
  const Folder folder;
  const auto images = files::idx_images(12, 4, 5), labels = files::idx_labels(12);
  const bool dot = GENERATE(false, true), zip = GENERATE(false, true);
  const std::string separator = dot ? "." : "-", end = zip ? ".gz" : "";
  for (const std::string set : {"train", "t10k"}) {
    files::write(folder / (set + "-images" + separator + "idx3-ubyte" + end),
                 zip ? files::gzip(folder, images) : images);
    files::write(folder / (set + "-labels" + separator + "idx1-ubyte" + end),
                 zip ? files::gzip(folder, labels) : labels);
  }
  for (const bool train : {true, false}) {
    const auto data = open_data("mnist:" + folder.path, {.train = train});
    CHECK(data->size() == 12);
    CHECK(data->classes() == 10);
    CHECK(data->shape() == Shape{1, 1, 4, 5});
    CHECK(data->transform().augment == train);
    const auto sample = read(*data, 11);
    CHECK(sample.label == 1);
    CHECK(sample.height == 4);
    CHECK(sample.width == 5);
    CHECK(sample.pixels.size() == 20);
    CHECK(sample.pixels[3] == 7 * 11 + 3);
  }
  CHECK_FALSE(open_data("mnist:" + folder.path, {.augment = false})->transform().augment);
  const auto few = mnist(folder.path, {.limit = 4});
  CHECK(few->size() == 4);
  for (int i = 0; i < 4; ++i)
    CHECK((read(*few, i).pixels[3] - 3) / 7 / 3 == i);  // one of each part
}

TEST_CASE("what is wrong with an IDX file is said in one line") {
  const Folder folder;
  const auto source = "mnist:" + folder.path, images = folder / "train-images-idx3-ubyte",
             labels = folder / "train-labels-idx1-ubyte";
  const auto good_images = files::idx_images(12, 4, 5), good_labels = files::idx_labels(12);
  CHECK(opening(source) == images + ": no such file (nor with .gz, nor train-images.idx3-ubyte)");
  files::write(images, good_images);
  CHECK(opening(source) == labels + ": no such file (nor with .gz, nor train-labels.idx1-ubyte)");

  files::write(labels, files::idx_images(12, 1, 1));
  CHECK(opening(source) == labels +
                               ": wrong magic number 0x00000803, expected 0x00000801 (IDX, "
                               "bytes, 1 dimension)");
  files::write(labels, files::idx_labels(11));
  CHECK(opening(source) == labels + ": 11 labels for the 12 images of " + images);
  auto bad = good_labels;
  bad[8 + 5] = 10;
  files::write(labels, bad);
  CHECK(opening(source) == labels + ": label 10 of image 5, expected 0 to 9");
  bad = good_labels;
  bad.push_back(0);
  files::write(labels, bad);
  CHECK(opening(source) == labels + ": longer than the 12 bytes that the header announces");
  files::write(labels, good_labels);
  CHECK(opening(source) == "nothing thrown");

  bad = good_images;
  bad.resize(7);
  files::write(images, bad);
  CHECK(opening(source) == images + ": truncated within the header");
  bad = good_images;
  bad.pop_back();
  files::write(images, bad);
  CHECK(opening(source) == images + ": truncated: the header announces 240 bytes, found 239");
  bad = good_images;
  bad[4] = 0xFF;  // four thousand million images
  files::write(images, bad);
  CHECK_THAT(opening(source), ContainsSubstring("more than the file can hold"));
  bad = good_images;
  bad[8] = bad[12] = 0xFF;
  files::write(images, bad);
  CHECK_THAT(opening(source), ContainsSubstring("expected images of 1 to 65535 pixels each way"));
  files::write(images, {});
  CHECK(opening(source) == images + ": truncated within the header");

  // A packed file that ends early, and one whose checksum is wrong.
  std::filesystem::remove(images);
  auto packed = files::gzip(folder, good_images);
  auto broken = packed;
  broken.resize(packed.size() - 9);
  files::write(images + ".gz", broken);
  CHECK(opening(source) == images + ".gz: truncated gzip file");
  broken = packed;
  broken[packed.size() - 8] ^= 1;
  files::write(images + ".gz", broken);
  CHECK_THAT(opening(source), ContainsSubstring(".gz: damaged: "));
}

TEST_CASE("CIFAR files are read") {
  const Folder folder;
  for (int part = 1; part <= 5; ++part) {
    files::write(folder / text("data_batch_", part, ".bin"), cifar(std::size_t(part), 1));
  }
  files::write(folder / "cifar-100-binary/train.bin", cifar(4, 2));
  files::write(folder / "cifar-100-binary/test.bin", cifar(2, 2));

  const auto ten = open_data("cifar10:" + folder.path);
  CHECK(ten->size() == 15);
  CHECK(ten->classes() == 10);
  CHECK(ten->shape() == Shape{1, 3, 32, 32});
  const auto sample = read(*ten, 14);  // the last of the fifth file
  CHECK(sample.label == 4);
  for (std::size_t c = 0; c < 3; ++c) CHECK(sample.pixels[3 * 700 + c] == 10 * c + 4);

  const auto hundred = open_data("cifar100:" + folder.path);  // in the archive's folder
  CHECK(hundred->size() == 4);
  CHECK(hundred->classes() == 100);
  CHECK(read(*hundred, 3).label == 3);
  CHECK(open_data("cifar100:" + folder.path, {.train = false})->size() == 2);

  const auto first = folder / "data_batch_1.bin";
  CHECK(opening("cifar10:" + folder.path, {.train = false}) ==
        folder / "test_batch.bin: cannot open: No such file or directory");
  files::write(first, Bytes(3072));
  CHECK(opening("cifar10:" + folder.path) ==
        first + ": 3072 bytes, expected whole records of 3073 bytes");
  files::write(first, {});
  CHECK(opening("cifar10:" + folder.path) ==
        first + ": 0 bytes, expected whole records of 3073 bytes");
  auto bad = cifar(3, 1);
  bad[2 * 3073] = 10;
  files::write(first, bad);
  CHECK(opening("cifar10:" + folder.path) == first + ": label 10 of image 2, expected 0 to 9");
}

TEST_CASE(
    "a JPEG of more pixels than are wanted is shrunk while it is decoded, and looks the same") {
  const int width = 1003, height = 701;  // whole blocks in neither direction
  Bytes pixels;
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (const double v : {x / 1003.0, y / 701.0, 0.5 + 0.5 * std::sin(x / 40.0 + y / 25.0)})
        pixels.push_back(std::uint8_t(255 * v));
  const Folder folder;
  files::write(folder / "a/1.jpg", jpeg_of(pixels, width, height, TJPF_RGB, TJSAMP_420));
  files::write(folder / "a/2.png", png(300, 300, PNG_FORMAT_GRAY, Bytes(90000, 7)));
  const DataOptions options{.train = GENERATE(true, false), .height = 40, .width = 48};
  if (!options.train) {
    files::write(folder / "train/a/1.jpg", jpeg(8, 8, TJPF_RGB, TJSAMP_444));
    std::filesystem::create_directories(folder / "val");
    std::filesystem::rename(folder / "a", folder / "val/a");
  }
  const auto data = open_data("images:" + folder.path, options);
  const Transform& transform = data->transform();
  Transform::Scratch scratch;
  std::vector<float> whole(std::size_t(data->shape().sample())), less = whole;
  std::set<std::int64_t> seen;
  Sample sample;
  for (std::uint64_t epoch = 0; epoch < 40; ++epoch) {
    const Random random(1, epoch);
    sample.shrink = nullptr;
    data->read(0, sample);
    REQUIRE(sample.pixels.size() == pixels.size());
    transform.apply(sample, random, whole, scratch);
    sample.shrink = [&](auto h, auto w) { return transform.shrink(h, w, random); };
    data->read(0, sample);
    REQUIRE(sample.pixels.size() == std::size_t(sample.rows() * sample.columns() * 3));
    REQUIRE(sample.width == width);
    seen.insert(sample.shrunk);
    transform.apply(sample, random, less, scratch);
    double most = 0;
    for (std::size_t i = 0; i < whole.size(); ++i)
      most = std::max(most, double(std::abs(whole[i] - less[i])));
    CHECK(most * 0.225 * 255 < 10);  // of 255
  }
  CHECK(seen == (options.train ? std::set<std::int64_t>{4, 8} : std::set<std::int64_t>{8}));
  data->read(1, sample);  // a PNG is not
  CHECK(sample.pixels.size() == 300 * 300);
}

TEST_CASE("image folders are read: JPEG and PNG, grey, colour and transparent") {
  const Folder folder;
  files::write(folder / "b/2.JPG", jpeg(40, 30, TJPF_RGB, TJSAMP_420));
  files::write(folder / "b/1.jpeg", jpeg(16, 16, TJPF_GRAY, TJSAMP_GRAY));
  files::write(folder / "b/notes.txt", {1, 2, 3});
  files::write(folder / "b/.hidden.jpg", {1, 2, 3});
  files::write(folder / "a/cmyk.jpg", jpeg(8, 8, TJPF_CMYK, TJSAMP_444));
  files::write(folder / "c/grey.png", png(2, 1, PNG_FORMAT_GRAY, {10, 200}));
  files::write(folder / "c/rgb.png", png(1, 2, PNG_FORMAT_RGB, {1, 2, 3, 4, 5, 6}));
  files::write(folder / "c/rgba.png", png(2, 1, PNG_FORMAT_RGBA, {9, 8, 7, 255, 9, 8, 7, 0}));

  const auto data = open_data("images:" + folder.path);
  CHECK(data->classes() == 3);
  CHECK(data->shape() == Shape{1, 3, 224, 224});
  REQUIRE(data->size() == 6);

  const auto cmyk = read(*data, 0), grey = read(*data, 1), colour = read(*data, 2);
  CHECK(cmyk.label == 0);
  CHECK(cmyk.channels == 3);
  CHECK(cmyk.pixels.size() == 8 * 8 * 3);
  for (int c = 0; c < 3; ++c) {
    CHECK(cmyk.pixels[std::size_t(c)] == Approx((50 * c + 40) * 190 / 255).margin(4));
  }
  CHECK(grey.label == 1);
  CHECK(grey.channels == 1);
  CHECK(grey.pixels[100] == Approx(40).margin(2));
  CHECK(colour.width == 40);
  CHECK(colour.height == 30);
  for (int c = 0; c < 3; ++c) {
    CHECK(colour.pixels[std::size_t(600 + c)] == Approx(50 * c + 40).margin(3));
  }
  CHECK(read(*data, 3).pixels == Bytes{10, 200});
  CHECK(read(*data, 4).pixels == Bytes{1, 2, 3, 4, 5, 6});
  CHECK(read(*data, 4).height == 2);
  CHECK(read(*data, 5).pixels == Bytes{9, 8, 7, 255, 255, 255});
  CHECK(read(*data, 5).label == 2);
}

TEST_CASE("image folders: the validation set is its own folder, or every tenth image") {
  const Folder folder;
  const auto image = png(1, 1, PNG_FORMAT_GRAY, {7});
  for (int i = 10; i < 30; ++i) files::write(folder / text("one/", i, ".png"), image);
  CHECK(images(folder.path)->size() == 18);
  CHECK(images(folder.path, {.train = false})->size() == 2);

  for (const char* file : {"train/a/1.png", "train/b/1.png", "train/b/2.png", "val/b/1.png"}) {
    files::write(folder / (std::string("split/") + file), image);
  }
  const auto split = folder / "split";
  CHECK(images(split)->size() == 3);
  const auto validation = images(split, {.train = false});
  CHECK(validation->size() == 1);
  CHECK(validation->classes() == 2);
  CHECK(read(*validation, 0).label == 1);  // as in the training set
  files::write(split + "/val/c/1.png", image);
  CHECK(opening("images:" + split, {.train = false}) ==
        split + "/val/c: this class is not in " + split + "/train");
  std::filesystem::remove_all(split + "/val");
  CHECK(opening("images:" + split, {.train = false}) ==
        split + ": has train/ but no validation set, expected val/, validation/ or test/");
}

TEST_CASE("what is wrong with an image folder is said in one line") {
  const Folder folder;
  const auto source = "images:" + folder.path;
  CHECK(opening(source) == folder.path + ": no class folders, expected CLASS/*.jpg, .jpeg or .png");
  files::write(folder / "a/readme", {1});
  CHECK(opening(source) == folder / "a: no images, expected .jpg, .jpeg or .png files");

  const auto file = folder / "a/x.jpg";
  const auto reading = [&](const Bytes& bytes) {
    files::write(file, bytes);
    const auto data = open_data(source);
    return error_of([&] { read(*data, 0); });
  };
  const auto good = jpeg(64, 48, TJPF_RGB, TJSAMP_420);
  CHECK(reading(good) == "nothing thrown");
  CHECK(reading({}) == file + ": neither a JPEG nor a PNG image");
  CHECK(reading({'G', 'I', 'F', '8', '9'}) == file + ": neither a JPEG nor a PNG image");
  CHECK_THAT(reading({good.begin(), good.begin() + 100}),
             ContainsSubstring(file + ": corrupt JPEG: "));
  CHECK_THAT(reading({good.begin(), good.end() - 40}),
             ContainsSubstring(file + ": corrupt JPEG: "));
  const auto picture = png(20, 20, PNG_FORMAT_RGB, Bytes(1200, 77));
  CHECK(reading(picture) == "nothing thrown");
  CHECK_THAT(reading({picture.begin(), picture.end() - 20}),
             ContainsSubstring(file + ": corrupt PNG: "));

  // Headers of 65000 x 65000 pixels: refused before anything is allocated.
  auto vast = good;
  for (std::size_t i = 0; i + 8 < vast.size(); ++i) {
    if (vast[i] != 0xFF || vast[i + 1] != 0xC0) continue;
    for (std::size_t k = 5; k < 9; ++k) vast[i + k] = 0xFD;
  }
  CHECK_THAT(reading(vast), ContainsSubstring("the header says 65021x65021 pixels, too many for"));
  std::filesystem::remove(file);
  const auto data = [&] {
    files::write(file, good);
    return open_data(source);
  }();
  std::filesystem::remove(file);
  CHECK(error_of([&] { read(*data, 0); }) == file + ": cannot open: No such file or directory");
}

TEST_CASE("stray bytes in the header and padding at the end of a JPEG change no pixel") {
  const Folder folder;
  Sample sample;
  const auto good = drawn_jpeg();
  REQUIRE(reading_jpeg(folder, good, sample) == "nothing thrown");
  const auto pixels = sample.pixels;
  const auto same = [&](const Bytes& bytes) {
    CHECK(reading_jpeg(folder, bytes, sample) == "nothing thrown");
    CHECK(sample.pixels == pixels);
  };
  const auto refused = ContainsSubstring("/x.jpg: corrupt JPEG: ");

  const Bytes stray{0, 0xFF, 0, 1, 0xFF, 0xD3, 7, 0xFF};
  for (const std::uint8_t marker : {0xE0, 0xDB, 0xC0, 0xC4, 0xDA}) {
    const auto bytes = with(good, place(good, marker), stray);
    same(bytes);
    // Nor do they hide that a third of the picture is missing.
    const Bytes cut{bytes.begin(), bytes.end() - std::ssize(good) / 3};
    CHECK_THAT(reading_jpeg(folder, cut, sample), refused);
  }
  const auto once = with(good, place(good, 0xDA), stray);
  same(with(once, place(once, 0xDB), stray));

  // A table whose marker is damaged is not replaced by that of the picture before.
  auto bare = good;
  bare[std::size_t(place(good, 0xDB))] = 0;
  CHECK_THAT(reading_jpeg(folder, bare, sample), refused);

  for (const Bytes& padding : {Bytes{0}, Bytes{0, 0}, Bytes{0xFF}, Bytes{0xFF, 0xFF}})
    same(with(good, std::ssize(good) - 2, padding));
}

TEST_CASE("a JPEG whose pixels end before its bytes do is refused") {
  const Folder folder;
  Sample sample;
  const auto refused = ContainsSubstring("/x.jpg: corrupt JPEG: ");
  // How many bytes libjpeg says are left before `marker`.
  const std::unique_ptr<void, int (*)(void*)> decoder(tjInitDecompress(), tjDestroy);
  const auto left_before = [&](unsigned marker, const Bytes& bytes) {
    Bytes pixels(64 * 48 * 3);
    unsigned left = 0, next = 0;
    if (tjDecompress2(decoder.get(), bytes.data(), bytes.size(), pixels.data(), 64, 0, 48, TJPF_RGB,
                      0) != 0)
      std::sscanf(tjGetErrorStr2(decoder.get()),
                  "Corrupt JPEG data: %u extraneous bytes before marker 0x%x", &left, &next);
    return next == marker ? left : 0;
  };

  // One wrong bit.
  const auto good = drawn_jpeg();
  int early = 0;
  for (auto at = std::size_t(place(good, 0xDA)) + 14; at + 2 < good.size() && early < 5; ++at) {
    auto damaged = good;
    damaged[at] ^= 16;
    if (left_before(0xD9, damaged) < 17) continue;
    ++early;
    CHECK_THAT(reading_jpeg(folder, damaged, sample), refused);
  }
  CHECK(early == 5);

  // Between the scans of a progressive picture, a single byte is too many.
  const auto scans = drawn_jpeg(TJFLAG_PROGRESSIVE);
  const auto first = place(scans, 0xDA);
  const auto second = first + place({scans.begin() + first, scans.end()}, 0xC4);
  bool single = false;
  for (std::size_t bytes = 0; bytes < 20; ++bytes) {
    const auto damaged = with(scans, second, Bytes(bytes));
    const auto left = left_before(0xC4, damaged);
    CHECK((reading_jpeg(folder, damaged, sample) == "nothing thrown") == (left == 0));
    single |= left == 1;
  }
  CHECK(single);
}

TEST_CASE("damaged data files load or throw Error, whatever the damage", "[fuzz]") {
  const Folder folder;
  const Random random(1, 1);
  std::uint64_t draw = 0;
  // Every truncation, then random flips of one to three bits.
  const auto damage = [&](const std::string& path, const Bytes& good, std::size_t step, int flips,
                          auto open, int spare = 0) {
    int loaded = 0, refused = 0;
    const auto attempt = [&](const Bytes& bytes) {
      files::write(path, bytes);
      try {
        Sample sample;
        const auto data = open();
        for (std::int64_t i = 0; i < data->size(); ++i) {
          data->read(i, sample);
          REQUIRE(sample.label < data->classes());
        }
        ++loaded;
      } catch (const Error& error) {
        REQUIRE(std::string(error.what()).find(folder.path) == 0);
        REQUIRE(std::string(error.what()).find('\n') == std::string::npos);
        ++refused;
      }
    };
    for (std::size_t length = 0; length < good.size(); length += step) {
      attempt({good.begin(), good.begin() + std::ptrdiff_t(length)});
    }
    CHECK(loaded <= spare);
    for (int i = 0; i < flips; ++i) {
      auto bytes = good;
      for (auto n = random.below(3, draw++); n != ~0ull; --n) {
        // Half of the flips hit the header.
        const bool header = random.below(2, draw++) == 0;
        const auto range = header ? std::min<std::size_t>(bytes.size(), 20) : bytes.size();
        const auto at = random.below(range, draw++);
        bytes[at] ^= std::uint8_t(1u << random.below(8, draw++));
      }
      attempt(bytes);
    }
    CHECK(refused > 0);
    files::write(path, good);
    CHECK(error_of([&] { open(); }) == "nothing thrown");
  };

  const auto open_mnist = [&] { return mnist(folder.path); };
  const auto pixels = files::idx_images(5, 3, 4), names = files::idx_labels(5);
  files::write_mnist(folder, 5, 3, 4);
  damage(folder / "train-images-idx3-ubyte", pixels, 1, 1000, open_mnist);
  damage(folder / "train-labels-idx1-ubyte", names, 1, 1000, open_mnist);
  std::filesystem::remove(folder / "train-images-idx3-ubyte");
  damage(folder / "train-images-idx3-ubyte.gz", files::gzip(folder, pixels), 1, 1000, open_mnist);

  for (int part = 2; part <= 5; ++part) {
    files::write(folder / text("data_batch_", part, ".bin"), cifar(1, 1));
  }
  const auto open_cifar = [&] { return cifar10(folder.path); };
  damage(folder / "data_batch_1.bin", cifar(2, 1), 9, 100, open_cifar);  // 9: never a whole record

  const auto open_images = [&] { return images(folder / "images"); };
  damage(folder / "images/a/x.jpg", jpeg(24, 16, TJPF_RGB, TJSAMP_420), 1, 500, open_images);
  damage(folder / "images/a/x.jpg", png(24, 16, PNG_FORMAT_RGB, Bytes(24 * 16 * 3, 5)), 1, 500,
         open_images, 12);  // the last twelve bytes of a PNG say nothing
}
