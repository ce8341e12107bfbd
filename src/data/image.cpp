// Decoders: JPEG by libjpeg-turbo, PNG by libpng.
#include "sources.hpp"

#include <png.h>
#include <turbojpeg.h>

#include <cstring>
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
  s.pixels.resize(std::size_t(width * height * channels));
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

void decode_jpeg(const std::string& path, Sample& s) {
  struct Destroy {
    void operator()(void* handle) const { tjDestroy(handle); }
  };
  const std::unique_ptr<void, Destroy> jpeg(tjInitDecompress());
  check(jpeg != nullptr, path, ": libjpeg-turbo: ", tjGetErrorStr2(nullptr));
  // Bytes between markers are common in photographs and do no harm; any other complaint means that
  // pixels are missing.
  const auto good = [&](int status) {
    if (status == 0) return true;
    const std::string_view message = tjGetErrorStr2(jpeg.get());
    return tjGetErrorCode(jpeg.get()) == TJERR_WARNING &&
           message.find("extraneous bytes") != message.npos;
  };
  int width = 0, height = 0, sampling = 0, colours = 0;
  const auto size = static_cast<unsigned long>(s.file.size());
  check(good(tjDecompressHeader3(jpeg.get(), s.file.data(), size, &width, &height, &sampling,
                                 &colours)) &&
            width > 0 && height > 0,
        path, ": corrupt JPEG: ", tjGetErrorStr2(jpeg.get()));
  const bool cmyk = colours == TJCS_CMYK || colours == TJCS_YCCK;
  const int channels = cmyk ? 4 : colours == TJCS_GRAY ? 1 : 3;
  set_size(path, s, width, height, channels);
  check(good(tjDecompress2(jpeg.get(), s.file.data(), size, s.pixels.data(), width, 0, height,
                           cmyk            ? TJPF_CMYK
                           : channels == 1 ? TJPF_GRAY
                                           : TJPF_RGB,
                           0)),
        path, ": corrupt JPEG: ", tjGetErrorStr2(jpeg.get()));
  if (cmyk) cmyk_to_rgb(s.pixels), s.channels = 3;
}

void decode_png(const std::string& path, Sample& s) {
  struct Image : png_image {
    Image() : png_image{} { version = PNG_IMAGE_VERSION; }
    ~Image() { png_image_free(this); }
  } png;
  check(png_image_begin_read_from_memory(&png, s.file.data(), s.file.size()) != 0, path,
        ": corrupt PNG: ", png.message);
  const bool colour = (png.format & PNG_FORMAT_FLAG_COLOR) != 0;
  set_size(path, s, png.width, png.height, colour ? 3 : 1);
  png.format = colour ? PNG_FORMAT_RGB : PNG_FORMAT_GRAY;
  const png_color white{255, 255, 255};  // behind what is transparent
  check(png_image_finish_read(&png, &white, s.pixels.data(), 0, nullptr) != 0, path,
        ": corrupt PNG: ", png.message);
}

}  // namespace

void decode_image(const std::string& path, Sample& sample) {
  const auto starts = [&](std::string_view magic) {
    return sample.file.size() >= magic.size() &&
           std::memcmp(sample.file.data(), magic.data(), magic.size()) == 0;
  };
  if (starts("\xFF\xD8")) return decode_jpeg(path, sample);
  if (starts("\x89PNG")) return decode_png(path, sample);
  throw Error(text(path, ": neither a JPEG nor a PNG image"));
}

}  // namespace lamina::detail
