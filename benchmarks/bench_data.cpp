// bench_data: how many images one thread makes ready for a network in a second, from file to batch,
// as each of a loader's threads does.
#include "flags.hpp"
#include "signals.hpp"

#include <lamina/base/clock.hpp>
#include <lamina/base/random.hpp>
#include <lamina/train/data/dataset.hpp>

#include <turbojpeg.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>

namespace {

using namespace lamina;
namespace fs = std::filesystem;

/// Number of the signal that has asked for an end.
struct Stopped {
  int number;
};
void look(const cli::StopSignals& signals) {
  if (const int number = signals.received()) throw Stopped{number};
}

/// JPEGs in a folder that goes with this object, however the program ends.
class Photographs {
 public:
  /// Waves of several lengths, in some noise, which take about as many bytes as photographs do.
  Photographs(int count, int width, int height, const cli::StopSignals& signals)
      : folder_(temporary() / text("bench_data.", Random(now_bits()).bits(0))) {
    std::error_code error;
    fs::create_directories(folder_ / "class", error);
    check(!error, folder_.string(), ": cannot be made: ", error.message());
    try {
      write_all(count, width, height, signals);
    } catch (...) {
      remove();
      throw;
    }
  }
  Photographs(const Photographs&) = delete;
  ~Photographs() { remove(); }

  std::string source() const { return "images:" + folder_.string(); }

 private:
  static fs::path temporary() {
    std::error_code error;
    const fs::path folder = fs::temp_directory_path(error);
    check(!error, "TMPDIR: expected a folder, for the JPEGs, or --data");
    return folder;
  }
  static std::uint64_t now_bits() { return std::uint64_t(1e6 * now()); }

  void remove() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }

  void write_all(int count, int width, int height, const cli::StopSignals& signals) {
    std::vector<std::uint8_t> pixels(std::size_t(3 * width * height));
    for (int i = 0; i < count; ++i) {
      look(signals);
      const Random random{std::uint64_t(i)};
      for (std::size_t at = 0; at < pixels.size(); ++at) {
        const double x = double(at / 3 % std::size_t(width)), y = double(at / 3) / width;
        const double waves = std::sin(x / 7 + i) + std::sin(y / 11) + std::sin((x + y) / 40);
        pixels[at] =
            std::uint8_t(std::clamp(128 + 30 * waves + 14 * random.normal(at), 0.0, 255.0));
      }
      write(pixels, width, height, folder_ / "class" / text(i, ".jpg"));
    }
  }

  static void write(const std::vector<std::uint8_t>& pixels, int width, int height,
                    const fs::path& path) {
    const tjhandle encoder = tjInitCompress();
    unsigned char* packed = nullptr;
    unsigned long size = 0;
    const int status = tjCompress2(encoder, pixels.data(), width, 0, height, TJPF_RGB, &packed,
                                   &size, TJSAMP_420, 90, 0);
    std::ofstream(path, std::ios::binary).write(reinterpret_cast<char*>(packed), long(size));
    tjFree(packed);
    tjDestroy(encoder);
    check(status == 0, path.string(), ": cannot be written");
  }

  fs::path folder_;
};

struct Seconds {
  double reading = 0, transforming = 0;
  double bytes = 0;  // of the files
};

/// Of all images once, as an epoch serves them.
Seconds run(const Dataset& data, bool shrinks, std::uint64_t epoch,
            const cli::StopSignals& signals) {
  const Transform& transform = data.transform();
  Sample sample;
  Transform::Scratch scratch;
  std::vector<std::uint8_t> out(std::size_t(transform.shape.sample()));
  Seconds s;
  for (std::int64_t i = 0; i < data.size(); ++i) {
    look(signals);
    const Random random(1, epoch + 1, std::uint64_t(i));
    if (shrinks) sample.shrink = [&](auto h, auto w) { return transform.shrink(h, w, random); };
    const double begin = now();
    data.read(i, sample);
    const double middle = now();
    transform.apply(sample, random, out, scratch);
    s.reading += middle - begin, s.transforming += now() - middle;
    s.bytes += double(sample.file.size());
  }
  return s;
}

void print(const char* how, const Seconds& s, std::int64_t images) {
  std::printf("%-22s %8.0f %8.2f %13.2f %9.0f\n", how, s.bytes / 1e3 / double(images),
              1e3 * s.reading / double(images), 1e3 * s.transforming / double(images),
              double(images) / (s.reading + s.transforming));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::string source;
    int width = 500, height = 375, rounds = 5;
    DataOptions options{.limit = 200};
    bool validation = false;
    CLI::App app(
        "How many images one thread makes ready in a second: of --data, or of JPEGs that it makes");
    app.add_option("--data", source, "images:DIR, or any other source");
    cli::count(app, "--width", width, 8, "of the JPEGs", 8192)->capture_default_str();
    cli::count(app, "--height", height, 8, "of the JPEGs", 8192)->capture_default_str();
    cli::count(app, "--limit", options.limit, 1, "images at most")->capture_default_str();
    cli::count(app, "--rounds", rounds, 1, "of all images; the fastest counts")
        ->capture_default_str();
    app.add_flag("--validation", validation, "as for validation: without augmentation");
    if (const auto status = cli::parse(app, argc, argv)) return *status;
    options.augment = !validation;
    const cli::StopSignals signals;
    std::optional<Photographs> made;
    if (source.empty()) {
      made.emplace(int(std::min<std::int64_t>(options.limit, 40)), width, height, signals);
      source = made->source();
    }
    const auto data = open_data(source, options);
    const std::string to = text(data->shape().c, " x ", data->shape().h, " x ", data->shape().w);
    std::printf("# bench_data: %s, %lld images, for %s, one thread\n",
                made ? text("JPEGs of ", width, 'x', height).c_str() : source.c_str(),
                static_cast<long long>(data->size()), to.c_str());
    Seconds whole{1e9, 0}, shrunk{1e9, 0};
    const auto take = [](Seconds& best, const Seconds& s) {
      if (s.reading + s.transforming < best.reading + best.transforming) best = s;
    };
    for (int round = 0; round < rounds; ++round) {
      take(whole, run(*data, false, std::uint64_t(round), signals));
      take(shrunk, run(*data, true, std::uint64_t(round), signals));
    }
    std::printf("%-22s %8s %8s %13s %9s\n", "", "kB", "read ms", "transform ms", "images/s");
    print("every pixel", whole, data->size());
    print("no more than needed", shrunk, data->size());
  } catch (const Stopped& by) {
    return 128 + by.number;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_data: %s\n", e.what());
    return 1;
  }
}
