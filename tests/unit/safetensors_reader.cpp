// The safetensors reader: what it accepts, what it converts, and that no file can hurt it.
#include "catch.hpp"
#include "unit/checkpoint_files.hpp"

#include <lamina/base/random.hpp>
#include <lamina/train/safetensors.hpp>

#include <sys/mman.h>

#include <cmath>
#include <cstring>

using namespace lamina;
using namespace checkpoint_files;

namespace {

std::string file_of(const std::string& header, const std::string& data = {}) {
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"t":)" + entry(dtype, shape, offsets) + "}";
}

/// The message with which a file of these bytes is refused; empty if it is read. The file is in
/// memory: the fuzzers make thousands.
std::string refusal(const std::string& bytes) {
  const int descriptor = ::memfd_create("safetensors", MFD_CLOEXEC);
  const std::string path = text("/proc/self/fd/", descriptor);
  REQUIRE(::write(descriptor, bytes.data(), bytes.size()) == ssize_t(bytes.size()));
  const std::string message = error_of([&] {
    const SafetensorsFile file(path);
    for (const StoredTensor& t : file.tensors()) {
      if (!SafetensorsFile::readable(t)) continue;
      std::vector<double> values(std::size_t(t.size()));
      file.read(t, DType::f64, values.data());
    }
  });
  ::close(descriptor);
  CHECK(message.find('\n') == message.npos);
  if (!message.empty()) CHECK_THAT(message, ContainsSubstring(path));
  return message;
}

std::string valid_file() {
  return file_of(R"({"__metadata__":{"a":"b"},"x":)" + entry("F32", "[2,3]", "[0,24]") +
                     R"(,"y":)" + entry("F16", "[3]", "[24,30]") + R"(,"s":)" +
                     entry("I64", "[]", "[30,38]") + R"(,"e":)" + entry("U8", "[0,7]", "[38,38]") +
                     "}",
                 std::string(38, '\x3c'));
}

}  // namespace

TEST_CASE("safetensors: a valid file is read", "[safetensors]") {
  const Folder folder;
  const std::string path = folder / "f.safetensors";
  write(path, valid_file());
  const SafetensorsFile file(path);
  CHECK(file.metadata() == std::map<std::string, std::string>{{"a", "b"}});
  REQUIRE(file.tensors().size() == 4);
  CHECK(file.tensors()[0].name == "x");
  CHECK(file.tensors()[1].name == "y");
  CHECK(file.find("x")->dims == std::vector<std::int64_t>{2, 3});
  CHECK(file.find("s")->dims.empty());
  CHECK(file.find("s")->size() == 1);
  CHECK(file.find("e")->size() == 0);
  CHECK(file.find("z") == nullptr);
  float some[2];
  CHECK_THROWS_AS(file.read(*file.find("x"), 5, 2, DType::f32, some), Error);
  CHECK_THROWS_AS(file.read(*file.find("e"), DType::f32, some), Error);  // no converter for U8
}

TEST_CASE("safetensors: every dtype is converted", "[safetensors]") {
  const std::string halves("\x00\x3c\x01\x00\x00\xfc\xff\x7b\x00\x80\x00\xc1", 12);
  const std::string brains("\x80\x3f\x49\xc0", 4);
  const std::int64_t longs[] = {-3, std::int64_t(1) << 40};
  const std::int32_t ints[] = {-7, 9};
  const float floats[] = {0.1f, -2};
  const double doubles[] = {0.1, 1e300};
  const auto bytes = [](const auto& a) {
    return std::string(reinterpret_cast<const char*>(a), sizeof a);
  };
  const auto values = [](const std::string& dtype, int n, const std::string& data) {
    const Folder folder;
    write(folder / "f",
          file_of(one(dtype, "[" + text(n) + "]", "[0," + text(data.size()) + "]"), data));
    const SafetensorsFile file(folder / "f");
    std::vector<double> wide(std::size_t(n), 0.5);
    std::vector<float> narrow(std::size_t(n), 0.5f);
    file.read(*file.find("t"), DType::f64, wide.data());
    file.read(*file.find("t"), DType::f32, narrow.data());
    for (std::size_t i = 0; i < wide.size(); ++i) CHECK(narrow[i] == float(wide[i]));
    return wide;
  };
  using V = std::vector<double>;
  CHECK(values("F16", 6, halves) == V{1, std::ldexp(1, -24), -INFINITY, 65504, -0.0, -2.5});
  CHECK(values("BF16", 2, brains) == V{1, -3.140625});
  CHECK(values("I64", 2, bytes(longs)) == V{-3, std::ldexp(1, 40)});
  CHECK(values("I32", 2, bytes(ints)) == V{-7, 9});
  CHECK(values("F32", 2, bytes(floats)) == V{double(0.1f), -2});
  CHECK(values("F64", 2, bytes(doubles)) == V{0.1, 1e300});
}

TEST_CASE("safetensors: a part is read, converted across pieces", "[safetensors]") {
  constexpr int n = 300'000;  // more than the reader converts at a time
  std::vector<float> all(n);
  for (int i = 0; i < n; ++i) all[std::size_t(i)] = float(i);
  const Folder folder;
  write(folder / "f", file_of(one("F32", "[" + text(n) + "]", "[0," + text(4 * n) + "]"),
                              std::string(reinterpret_cast<const char*>(all.data()), 4 * n)));
  const SafetensorsFile file(folder / "f");
  std::vector<double> part(n - 7);
  file.read(*file.find("t"), 5, n - 7, DType::f64, part.data());
  bool equal = true;
  for (int i = 0; i < n - 7; ++i) equal = equal && part[std::size_t(i)] == i + 5;
  CHECK(equal);
}

TEST_CASE("safetensors: bad headers are refused by name", "[safetensors][fuzz]") {
  REQUIRE(refusal(valid_file()).empty());
  const std::string four(4, '\0'), eight(8, '\0');
  const auto refused = [](const std::string& header, const std::string& data, const char* why) {
    INFO(header.substr(0, 200));
    CHECK_THAT(refusal(file_of(header, data)), ContainsSubstring(why));
  };
  refused("", "", "no object");
  refused("[1]", "", "no object");
  refused(" {}", "", "no object");
  refused("{", "", "no JSON");
  refused("{}x", "", "no JSON");
  refused("{\"\xff\":1}", "", "no JSON");
  refused(R"({"t":3})", four, "expected an object");
  refused(R"({"t":{}})", four, "dtype");
  refused(one("F33", "[1]", "[0,4]"), four, "'F33' is not known");
  refused(one("F32", "[2]", "[0,4]"), four, "need 8 bytes");
  refused(one("F32", "[-1]", "[0,4]"), four, "whole numbers");
  refused(one("F32", "[1.0]", "[0,4]"), four, "whole numbers");
  refused(one("F32", "[1e0]", "[0,4]"), four, "whole numbers");
  refused(one("F32", "[true]", "[0,4]"), four, "whole numbers");
  refused(one("F32", "[9223372036854775808]", "[0,4]"), four, "whole numbers");
  refused(one("F32", "[99999999999999999999]", "[0,4]"), four, "whole numbers");
  refused(one("F32", "1", "[0,4]"), four, "array 'shape'");
  // Products that wrap around to the right size.
  refused(one("F32", "[4294967296,4294967296]", "[0,0]"), "", "2^64");
  refused(one("F32", "[4611686018427387905]", "[0,4]"), four, "2^64");
  refused(one("F32", "[4611686018427387904,4,0]", "[0,0]"), "", "2^64");
  refused(one("F32", "[1]", "[4,0]"), four, "begin and an end");
  refused(one("F32", "[1]", "[0]"), four, "begin and an end");
  refused(one("F32", "[1]", "[0,4,8]"), four, "begin and an end");
  refused(one("F32", "[1]", "[-4,0]"), four, "whole numbers");
  refused(one("F32", "[1]", "[4,8]"), eight, "holes");
  refused(one("F32", "[1]", "[9223372036854775803,9223372036854775807]"), four, "holes");
  refused(one("F32", "[2]", "[0,8]"), four, "truncated");
  refused(one("F32", "[1]", "[0,4]"), eight, "too long");
  const auto two = [](const char* a, const char* b, const char* second) {
    return R"({"t":)" + entry("F32", "[1]", a) + ",\"" + second + "\":" + entry("F32", "[1]", b) +
           "}";
  };
  refused(two("[0,4]", "[0,4]", "u"), four, "overlap");
  refused(two("[0,4]", "[2,6]", "u"), "012345", "overlap");
  refused(two("[0,4]", "[8,12]", "u"), "0123456789ab", "holes");
  refused(two("[0,4]", "[4,8]", "t"), eight, "'t' twice");
  refused(R"({"t":{"dtype":"F32","dtype":"F64","shape":[1],"data_offsets":[0,4]}})", four, "twice");
  refused(R"({"__metadata__":{"a":"b","a":"c"}})", "", "twice");
  refused(R"({"__metadata__":{"a":1}})", "", "no string");
  refused(R"({"__metadata__":[]})", "", "no object");
  refused(R"({"t":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", four, "deeply");
  // A name cannot break the line or fill the screen.
  const std::string rude = R"({"a\nb\u001b)" + std::string(5000, 'x') + "\":1}";
  refused(rude, "", "'a?b?xxx");
  CHECK(refusal(file_of(rude)).size() < 300);
}

TEST_CASE("safetensors: deep nesting does not overflow the stack", "[safetensors][fuzz]") {
  constexpr std::size_t depth = 2'000'000;
  CHECK_THAT(refusal(file_of(R"({"t":)" + std::string(depth, '['))), ContainsSubstring("deeply"));
  std::string objects = "{";
  for (std::size_t i = 0; i < depth / 5; ++i) objects += R"("a":{)";
  CHECK_THAT(refusal(file_of(objects)), ContainsSubstring("deeply"));
}

TEST_CASE("safetensors: a wrong header length is refused", "[safetensors][fuzz]") {
  const std::string whole = valid_file();
  for (const std::uint64_t length :
       {std::uint64_t(0), std::uint64_t(1), std::uint64_t(whole.size() - 7), std::uint64_t(1) << 26,
        std::uint64_t(100'000'001), std::uint64_t(1) << 63, ~std::uint64_t(0),
        ~std::uint64_t(0) - 7}) {
    std::string bytes = whole;
    std::memcpy(bytes.data(), &length, 8);
    INFO(length);
    CHECK_FALSE(refusal(bytes).empty());
  }
}

TEST_CASE("safetensors: truncation at every length is refused", "[safetensors][fuzz]") {
  const std::string whole = valid_file();
  for (std::size_t n = 0; n < whole.size(); ++n) {
    INFO(n);
    CHECK_FALSE(refusal(whole.substr(0, n)).empty());
  }
}

TEST_CASE("safetensors: flipped bits are refused or read", "[safetensors][fuzz]") {
  const std::string whole = valid_file();
  const std::size_t checked = whole.size() - 38;
  int refusals = 0;
  for (std::size_t bit = 0; bit < 8 * checked; ++bit) {  // every single bit of length and header
    std::string bytes = whole;
    bytes[bit / 8] = char(bytes[bit / 8] ^ (1 << bit % 8));
    refusals += !refusal(bytes).empty();
  }
  CHECK(refusals > int(4 * checked));
  const Random random(1, 2);
  for (std::uint64_t i = 0; i < 2000; ++i) {  // several bytes of the header at once
    std::string bytes = whole;
    for (std::uint64_t k = 0; k < 1 + i % 5; ++k) {
      const auto at = std::size_t(random.uniform(i * 16 + 2 * k) * double(checked));
      bytes[at] = char(random.uniform(i * 16 + 2 * k + 1) * 256 - 128);
    }
    refusal(bytes);
  }
}

TEST_CASE("safetensors: only regular files are opened", "[safetensors]") {
  const Folder folder;
  CHECK_THAT(error_of([&] { SafetensorsFile(folder / "absent"); }),
             ContainsSubstring("absent: cannot open: No such file"));
  CHECK_THAT(error_of([&] { SafetensorsFile(folder.path); }), ContainsSubstring("regular file"));
  CHECK_THAT(error_of([] { SafetensorsFile("/dev/zero"); }), ContainsSubstring("regular file"));
}
