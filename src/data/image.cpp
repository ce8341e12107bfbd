// Decoders: JPEG by libjpeg-turbo, PNG by libpng.
#include "sources.hpp"

#include <png.h>
#include <turbojpeg.h>

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>

namespace lamina::detail {
namespace {

// Neither format packs more pixels than this into a byte (1 bit per pixel, deflated 1032 to 1), so
// a header that says so lies. The second bound keeps a picture within 200 MB.
constexpr std::int64_t pixels_per_byte = 8 * 1032, most_pixels = 1 << 26;

void set_size(const std::string& path, Sample& s, std::int64_t width, std::int64_t height,
              std::int64_t channels) {
  const auto bytes = std::int64_t(s.file.size());
  check(width > 0 && height > 0 && width <= most_pixels && height <= most_pixels &&
            width * height <= std::min(most_pixels, bytes * pixels_per_byte),
        path, ": the header says ", width, "x", height, " pixels, too many for a file of ", bytes,
        " bytes (at most ", most_pixels, ")");
  s.width = width, s.height = height, s.channels = channels;
  s.pixels.resize(std::size_t(s.rows() * s.columns() * channels));
}

// Adobe's CMYK is stored inverted: 255 is no ink.
void cmyk_to_rgb(std::vector<std::uint8_t>& p) {
  const auto count = p.size() / 4;
  for (std::size_t i = 0; i < count; ++i) {
    const int black = p[4 * i + 3];
    for (std::size_t c = 0; c < 3; ++c) p[3 * i + c] = std::uint8_t(p[4 * i + c] * black / 255);
  }
  p.resize(3 * count);
}

/// Cuts out the bytes between the segments of the header, which libjpeg passes over with a warning.
void cut_stray_bytes(std::vector<std::uint8_t>& file) {
  const auto segment = [&](std::size_t at) {
    const int marker = file[at + 1];
    const bool restart = marker >= 0xD0 && marker <= 0xD7;  // has no segment
    return file[at] == 0xFF && marker >= 0xC0 && marker != 0xFF && !restart;
  };
  std::size_t to = 2, from = 2;
  for (;;) {
    while (from + 4 < file.size() && !segment(from)) ++from;
    if (from + 4 >= file.size() || file[from + 1] == 0xDA) break;  // the first scan
    const auto bytes =
        std::min<std::size_t>(2 + 256 * file[from + 2] + file[from + 3], file.size() - from);
    std::memmove(file.data() + to, file.data() + from, bytes);
    to += bytes, from += bytes;
  }
  file.erase(file.begin() + std::ptrdiff_t(to), file.begin() + std::ptrdiff_t(from));
}

/// A picture is shrunk, if it may be, by leaving out the higher of its frequencies, which takes
/// less time to decode.
void decode_jpeg(const std::string& path, Sample& s) {
  struct Destroy {
    void operator()(void* handle) const { tjDestroy(handle); }
  };
  // A new one for each picture, which takes no time that can be measured: an old one would fill in
  // the tables that a damaged file lacks with those of the picture before.
  const std::unique_ptr<void, Destroy> jpeg(tjInitDecompress());
  check(jpeg != nullptr, path, ": libjpeg-turbo: ", tjGetErrorStr2(nullptr));
  unsigned stray = 0, marker = 0;
  const auto only_stray_bytes = [&] {
    return tjGetErrorCode(jpeg.get()) == TJERR_WARNING &&
           std::sscanf(tjGetErrorStr2(jpeg.get()),
                       "Corrupt JPEG data: %u extraneous bytes before marker 0x%x", &stray,
                       &marker) == 2;
  };
  int width = 0, height = 0, sampling = 0, colours = 0;
  const auto header = [&] {
    return tjDecompressHeader3(jpeg.get(), s.file.data(), s.file.size(), &width, &height, &sampling,
                               &colours) == 0;
  };
  bool good = header();
  // Stray bytes in the header are common in photographs and do no harm. But libjpeg tells only its
  // first warning, and this one must not hide that pixels are missing.
  if (!good && only_stray_bytes()) {
    cut_stray_bytes(s.file);
    good = header();
  }
  check(good && width > 0 && height > 0, path, ": corrupt JPEG: ", tjGetErrorStr2(jpeg.get()));
  const bool cmyk = colours == TJCS_CMYK || colours == TJCS_YCCK;
  const int channels = cmyk ? 4 : colours == TJCS_GRAY ? 1 : 3;
  if (s.shrink) s.shrunk = s.shrink(height, width);
  set_size(path, s, width, height, channels);
  good = tjDecompress2(jpeg.get(), s.file.data(), s.file.size(), s.pixels.data(), int(s.columns()),
                       0, int(s.rows()),
                       cmyk            ? TJPF_CMYK
                       : channels == 1 ? TJPF_GRAY
                                       : TJPF_RGB,
                       0) == 0;
  // Some cameras pad the last pixel with a byte or two. More than that held pixels: after a wrong
  // bit, the picture seemed complete too early.
  check(good || (only_stray_bytes() && marker == 0xD9 && stray <= 4), path,
        ": corrupt JPEG: ", tjGetErrorStr2(jpeg.get()));
  if (cmyk) cmyk_to_rgb(s.pixels), s.channels = 3;
}

/// libpng's reader of one file. libpng leaves a call that fails by longjmp: run() is where it
/// lands, and what it jumps out of owns nothing.
class PngReader {
 public:
  explicit PngReader(const std::vector<std::uint8_t>& file)
      : at_(file.data()),
        end_(at_ + file.size()),
        png_(png_create_read_struct(PNG_LIBPNG_VER_STRING, this, failed, warned)),
        info_(png_ ? png_create_info_struct(png_) : nullptr) {}
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }

  /// `calls(png, info)`; whether libpng came to their end. Otherwise message() says why not.
  template <class Calls>
  bool run(const Calls& calls) {
    if (!info_) return false;
    if (setjmp(png_jmpbuf(png_))) return false;
    calls(png_, info_);
    return true;
  }
  const char* message() const { return message_; }

  static void read(png_structp png, png_bytep to, std::size_t bytes) {
    auto& self = *static_cast<PngReader*>(png_get_io_ptr(png));
    if (std::size_t(self.end_ - self.at_) < bytes) png_error(png, "the file ends too early");
    std::memcpy(to, self.at_, bytes);
    self.at_ += bytes;
  }

 private:
  [[noreturn]] static void failed(png_structp png, png_const_charp message) {
    auto& self = *static_cast<PngReader*>(png_get_error_ptr(png));
    std::snprintf(self.message_, sizeof self.message_, "%s", message);
    png_longjmp(png, 1);
  }
  /// libpng goes on without a chunk that it cannot read. Without that of transparency, it would be
  /// another picture.
  static void warned(png_structp png, png_const_charp message) {
    if (std::strncmp(message, "tRNS", 4) == 0) png_error(png, message);
  }

  const std::uint8_t* at_;
  const std::uint8_t* end_;
  char message_[128] = "out of memory";
  png_structp png_;
  png_infop info_;
};

/// Grey or colour, each followed by how opaque it is, over white: the values as they are, without
/// regard to a gamma.
void over_white(std::vector<std::uint8_t>& p, std::size_t colours) {
  const auto count = p.size() / (colours + 1);
  for (std::size_t i = 0; i < count; ++i) {
    const int alpha = p[i * (colours + 1) + colours];
    for (std::size_t c = 0; c < colours; ++c)
      p[i * colours + c] =
          std::uint8_t((p[i * (colours + 1) + c] * alpha + 255 * (255 - alpha) + 127) / 255);
  }
  p.resize(colours * count);
}

/// The bytes as they are in the file: no gamma and no profile changes them. Of 16 bits, the upper
/// 8; fewer than 8 are spread over 0 to 255.
void decode_png(const std::string& path, Sample& s) {
  PngReader reader(s.file);
  png_uint_32 width = 0, height = 0;
  int channels = 0, passes = 1;
  const auto begin = [&](png_structp png, png_infop info) {
    png_set_read_fn(png, &reader, PngReader::read);
    png_set_crc_action(png, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
    png_read_info(png, info);
    png_set_expand(png);
    png_set_strip_16(png);
    passes = png_set_interlace_handling(png);
    png_read_update_info(png, info);
    width = png_get_image_width(png, info), height = png_get_image_height(png, info);
    channels = png_get_channels(png, info);
  };
  check(reader.run(begin), path, ": corrupt PNG: ", reader.message());
  set_size(path, s, width, height, channels);
  const auto rows = [&](png_structp png, png_infop) {
    for (int pass = 0; pass < passes; ++pass)
      for (png_uint_32 row = 0; row < height; ++row)
        png_read_row(png, s.pixels.data() + std::size_t(row) * width * std::size_t(channels),
                     nullptr);
  };
  check(reader.run(rows), path, ": corrupt PNG: ", reader.message());
  if (channels % 2 == 0) over_white(s.pixels, std::size_t(--s.channels));
}

}  // namespace

void decode_image(const std::string& path, Sample& sample) {
  sample.shrunk = 1;
  const auto starts = [&](std::string_view magic) {
    return sample.file.size() >= magic.size() &&
           std::memcmp(sample.file.data(), magic.data(), magic.size()) == 0;
  };
  if (starts("\xFF\xD8")) return decode_jpeg(path, sample);
  if (starts("\x89PNG")) return decode_png(path, sample);
  throw Error(text(path, ": neither a JPEG nor a PNG image"));
}

}  // namespace lamina::detail
