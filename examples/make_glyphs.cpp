// make_glyphs: a data set in MNIST's file format from the fonts of this machine, after notMNIST:
// the letters A to J, each a little shifted, turned and scaled. The fonts of the test set, by whole
// families, are not in the training set.
//
//   make_glyphs OUT_DIR [--train N] [--test N] [--seed S] [--fonts DIR]
#include <lamina/base/error.hpp>
#include <lamina/base/random.hpp>

#include <ft2build.h>
#include FT_FREETYPE_H
#include FT_OUTLINE_H

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <numbers>
#include <string>
#include <vector>

namespace fs = std::filesystem;
using lamina::check;
using lamina::Random;
using lamina::text;

namespace {

constexpr int letters = 10, side = 28;
constexpr double letter_height = 20;   // pixels, as in MNIST
constexpr std::size_t test_every = 5;  // of the families

struct Options {
  std::string out, fonts = "/usr/share/fonts";
  std::uint64_t train = 16000, test = 3000, seed = 0;
  bool help = false;
};

constexpr const char* usage =
    "usage: make_glyphs OUT_DIR [--train N] [--test N] [--seed S] [--fonts DIR]";

struct Usage : lamina::Error {
  using Error::Error;
};

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--help" || word == "-h") {
      o.help = true;
      return o;
    }
    if (word.rfind("--", 0) != 0) {
      if (!o.out.empty()) throw Usage(text("a second folder '", word, "'\n", usage));
      o.out = word;
      continue;
    }
    std::uint64_t* number = word == "--train"  ? &o.train
                            : word == "--test" ? &o.test
                            : word == "--seed" ? &o.seed
                                               : nullptr;
    if (!number && word != "--fonts") throw Usage(text("unknown flag '", word, "'\n", usage));
    if (i + 1 == argc) throw Usage(text(word, " needs a value\n", usage));
    const std::string value = argv[++i];
    if (!number) {
      o.fonts = value;
      continue;
    }
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), *number);
    if (error != std::errc() || end != value.data() + value.size() ||
        (number != &o.seed && (*number == 0 || *number > 10'000'000))) {
      throw Usage(text(word, " '", value, "': expected a number\n", usage));
    }
  }
  if (o.out.empty()) throw Usage(usage);
  return o;
}

struct Destroy {
  void operator()(FT_Library library) const { FT_Done_FreeType(library); }
  void operator()(FT_Face face) const { FT_Done_Face(face); }
};
using Library = std::unique_ptr<FT_LibraryRec_, Destroy>;
using Face = std::unique_ptr<FT_FaceRec_, Destroy>;

// How a letter is drawn: a matrix on the font's outline, then a shift from the middle, in pixels.
struct Pose {
  double scale = 1, turn = 0, across = 0, up = 0;  // turn: in degrees, to the left
};

using Image = std::vector<std::uint8_t>;

// The letter, drawn in the middle of 28x28 pixels; empty if the font lacks it or it has no ink.
Image draw(FT_Face face, int letter, const Pose& pose) {
  const auto index = FT_Get_Char_Index(face, FT_ULong('A' + letter));
  if (index == 0 || FT_Load_Glyph(face, index, FT_LOAD_NO_SCALE | FT_LOAD_NO_BITMAP) != 0)
    return {};
  if (face->glyph->format != FT_GLYPH_FORMAT_OUTLINE) return {};
  FT_Outline& outline = face->glyph->outline;
  FT_BBox box;
  FT_Outline_Get_CBox(&outline, &box);
  const double width = double(box.xMax - box.xMin), height = double(box.yMax - box.yMin);
  if (width <= 0 || height <= 0 || outline.n_points < 3) return {};

  // Font units to 26.6 pixels, about the middle of the letter. A wide letter is made smaller, so
  // that it stays within the image.
  const double size = 64 * letter_height / std::max(height, width) * pose.scale;
  const double angle = pose.turn * std::numbers::pi / 180;
  const auto fixed = [](double value) { return FT_Fixed(std::lround(value * 65536)); };
  FT_Outline_Translate(&outline, -(box.xMin + box.xMax) / 2, -(box.yMin + box.yMax) / 2);
  const FT_Matrix matrix{fixed(size * std::cos(angle)), fixed(-size * std::sin(angle)),
                         fixed(size * std::sin(angle)), fixed(size * std::cos(angle))};
  FT_Outline_Transform(&outline, &matrix);
  FT_Outline_Translate(&outline, FT_Pos(std::lround(64 * (side / 2.0 + pose.across))),
                       FT_Pos(std::lround(64 * (side / 2.0 + pose.up))));

  Image image(side * side);
  FT_Bitmap bitmap{};
  bitmap.rows = bitmap.width = side;
  bitmap.pitch = side;
  bitmap.buffer = image.data();
  bitmap.num_grays = 256;
  bitmap.pixel_mode = FT_PIXEL_MODE_GRAY;
  if (FT_Outline_Get_Bitmap(face->glyph->library, &outline, &bitmap) != 0) return {};
  return image;
}

int ink(const Image& image) {
  int sum = 0;
  for (const auto value : image) sum += value;
  return sum;
}

// A font of text has ten letters, no two alike, neither specks nor blots.
bool usable(FT_Face face) {
  std::vector<Image> drawn;
  for (int letter = 0; letter < letters; ++letter) {
    auto image = draw(face, letter, {});
    if (image.empty()) return false;
    const double share = ink(image) / (255.0 * letter_height * letter_height);
    if (share < 0.03 || share > 0.8) return false;
    for (const auto& other : drawn) {
      int difference = 0;
      for (std::size_t i = 0; i < image.size(); ++i) difference += std::abs(image[i] - other[i]);
      if (difference < 255 * 8) return false;
    }
    drawn.push_back(std::move(image));
  }
  return true;
}

// Usable fonts by family. To be on the safe side, families whose first words begin with the same
// four letters count as one: DejaVu Sans and DejaVu Serif, OpenDyslexic and OpenDyslexicAlta.
std::map<std::string, std::vector<Face>> find_fonts(FT_Library library, const std::string& dir) {
  check(fs::is_directory(dir), dir, ": no such folder, expected one of fonts");
  std::vector<std::string> paths;
  for (const auto& entry : fs::recursive_directory_iterator(dir)) {
    const auto extension = entry.path().extension();
    if (extension == ".ttf" || extension == ".otf" || extension == ".pfb") {
      paths.push_back(entry.path().string());
    }
  }
  std::sort(paths.begin(), paths.end());
  std::map<std::string, std::vector<Face>> families;
  for (const auto& path : paths) {
    FT_Face opened = nullptr;
    if (FT_New_Face(library, path.c_str(), 0, &opened) != 0) continue;
    Face face(opened);
    if (!face->family_name || !FT_IS_SCALABLE(face.get()) || !usable(face.get())) continue;
    std::string family = face->family_name;
    family.resize(std::min({family.find(' '), family.size(), std::size_t{4}}));
    families[family].push_back(std::move(face));
  }
  return families;
}

using Family = const std::vector<Face>*;

struct Set {
  const char* name;  // of its files
  const char* title;
  std::uint64_t size;
  std::vector<Family> families;
};

// IDX: a big-endian header, then bytes.
void write_idx(const std::string& path, std::vector<std::uint32_t> header, const Image& bytes) {
  header.insert(header.begin(), 0x800 + std::uint32_t(header.size()));
  std::ofstream file(path, std::ios::binary);
  for (const auto number : header) {
    for (const int shift : {24, 16, 8, 0}) file.put(char(number >> shift));
  }
  file.write(reinterpret_cast<const char*>(bytes.data()), std::streamsize(bytes.size()));
  file.close();
  check(!file.fail(), path, ": cannot write");
}

// Each image is a random letter of a random family in a random style and pose. Families are as
// likely as each other, however many styles they have.
void write_set(const std::string& dir, const Set& set, std::uint64_t seed, std::uint64_t stream) {
  Image pixels, labels;
  for (std::uint64_t i = 0; i < set.size; ++i) {
    const Random random(seed, stream, i);
    const auto between = [&](double least, double most, std::uint64_t word) {
      return least + (most - least) * double(random.uniform(word));
    };
    const auto& family = *set.families[random.below(set.families.size(), 0)];
    const auto& face = family[random.below(family.size(), 1)];
    const int letter = int(i % letters);  // as many of each; the loader shuffles
    const Pose pose{between(0.8, 1.1, 4), between(-15, 15, 5), between(-2, 2, 6),
                    between(-2, 2, 7)};
    const auto image = draw(face.get(), letter, pose);
    check(!image.empty(), face->family_name, ": cannot draw the letter ", char('A' + letter));
    pixels.insert(pixels.end(), image.begin(), image.end());
    labels.push_back(std::uint8_t(letter));
  }
  const auto count = std::uint32_t(set.size);
  write_idx(text(dir, '/', set.name, "-images-idx3-ubyte"), {count, side, side}, pixels);
  write_idx(text(dir, '/', set.name, "-labels-idx1-ubyte"), {count}, labels);
  std::size_t fonts = 0;
  for (const auto* family : set.families) fonts += family->size();
  std::cout << set.title << ": " << set.size << " images of " << fonts << " fonts in "
            << set.families.size() << " families\n";
}

void run(const Options& o) {
  FT_Library opened = nullptr;
  check(FT_Init_FreeType(&opened) == 0, "FreeType does not start");
  const Library library(opened);
  const auto families = find_fonts(library.get(), o.fonts);  // freed before the library
  check(families.size() >= test_every, o.fonts, ": letters A to J in ", families.size(),
        " font families, expected ", test_every, " or more (cmake/fonts.txt lists good packages)");

  Set train{"train", "training set", o.train, {}}, test{"t10k", "test set", o.test, {}};
  std::size_t i = 0;
  for (const auto& [name, fonts] : families) {
    (i++ % test_every == test_every / 2 ? test : train).families.push_back(&fonts);
  }
  std::error_code error;
  fs::create_directories(o.out, error);
  check(!error, o.out, ": cannot make the folder: ", error.message());
  write_set(o.out, train, o.seed, 0);
  write_set(o.out, test, o.seed, 1);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto options = parse(argc, argv);
    if (options.help) {
      std::cout << usage << '\n';
    } else {
      run(options);
    }
  } catch (const Usage& error) {
    std::cerr << error.what() << '\n';
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "make_glyphs: " << error.what() << '\n';
    return 1;
  }
}
