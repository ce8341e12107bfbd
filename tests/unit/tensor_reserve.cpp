#include "catch.hpp"

#include <lamina/tensor/tensor.hpp>

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

using namespace lamina;

namespace {

constexpr std::size_t mb = 1 << 20, page = 4096;

Tensor bytes_of(std::size_t bytes) {
  return Tensor({1, std::int64_t(bytes / 8), 1, 1}, DType::f64);
}

/// A reserve whose zeros somebody else sees, too.
struct Seen {
  Tensor zeros;
  Reserve reserve;

  explicit Seen(std::size_t bytes)
      : zeros(bytes_of(bytes)), reserve(zeros.memory(), zeros.view().data, zeros.bytes()) {}
  bool has(const Tensor& t) const {
    const char *begin = zeros.as<char>(), *at = t.as<char>();
    return at >= begin && at + t.bytes() <= begin + zeros.bytes();
  }
};

bool zero(const Tensor& t) {
  return std::ranges::all_of(t.elements<double>(), [](double v) { return v == 0; });
}

/// Of the whole pages in it, those that take memory.
std::size_t pages_in(const char* data, std::size_t bytes) {
  const auto begin = (reinterpret_cast<std::size_t>(data) + page - 1) / page * page;
  const std::size_t end = (reinterpret_cast<std::size_t>(data) + bytes) / page * page;
  std::vector<unsigned char> here((end - begin) / page);
  REQUIRE(mincore(reinterpret_cast<void*>(begin), end - begin, here.data()) == 0);
  return std::size_t(std::ranges::count_if(here, [](unsigned char p) { return p & 1; }));
}

}  // namespace

TEST_CASE("while a reserve is in use, tensors of this thread lie in it, apart and aligned") {
  Seen seen(8 * mb);
  Tensor before = bytes_of(mb), elsewhere;
  std::vector<Tensor> inside;
  {
    const Reserve::Use use(seen.reserve);
    for (const std::size_t bytes : {mb, std::size_t(8), std::size_t(40), 2 * mb + 8, page})
      inside.push_back(bytes_of(bytes));
    std::thread([&] { elsewhere = bytes_of(mb); }).join();
  }
  const Tensor after = bytes_of(mb);
  for (const Tensor* t : std::vector<const Tensor*>{&before, &elsewhere, &after})
    CHECK_FALSE(seen.has(*t));
  for (Tensor& t : inside) {
    CHECK(seen.has(t));
    CHECK(zero(t));
    CHECK(reinterpret_cast<std::size_t>(t.view().data) % (t.bytes() < page ? 64 : page) == 0);
    std::ranges::fill(t.elements<double>(), 1.0);  // or another one's zeros are gone
  }
}

TEST_CASE("what a reserve is too small for comes from the system, and the next one from it again") {
  Seen seen(4 * mb);
  const Reserve::Use use(seen.reserve);
  const Tensor first = bytes_of(3 * mb), large = bytes_of(2 * mb), last = bytes_of(mb / 2);
  CHECK(seen.has(first));
  CHECK_FALSE(seen.has(large));
  CHECK(zero(large));
  CHECK(seen.has(last));
}

TEST_CASE("a reserve fits to the byte, and is used once") {
  Seen seen(4 * mb);
  {
    const Reserve::Use use(seen.reserve);
    CHECK(seen.has(bytes_of(4 * mb)));
  }
  const Reserve::Use again(seen.reserve);
  CHECK_FALSE(seen.has(bytes_of(page)));
}

TEST_CASE("memory of a reserve goes back as tensors go, what was left at once") {
  Seen seen(16 * mb);
  std::memset(seen.zeros.view().data, 0, seen.zeros.bytes());
  const char* begin = seen.zeros.as<char>();
  const auto pages = [&](std::size_t first, std::size_t last) {
    return pages_in(begin + first * mb, (last - first) * mb);
  };
  const std::size_t all = pages(0, 16);
  Tensor a, b;
  {
    const Reserve::Use use(seen.reserve);
    a = bytes_of(4 * mb), b = bytes_of(4 * mb);
    CHECK(pages(0, 16) == all);
  }
  CHECK(pages(0, 8) == 8 * mb / page);
  CHECK(pages(9, 16) == 0);
  a = Tensor();
  CHECK(pages(0, 3) == 0);
  CHECK(pages(5, 8) == 3 * mb / page);
}

TEST_CASE("of reserves in use one within the other the inner one comes first") {
  Seen outer(4 * mb), inner(4 * mb);
  const Reserve::Use use(outer.reserve);
  {
    const Reserve::Use first(inner.reserve);
    CHECK(inner.has(bytes_of(page)));
  }
  CHECK(outer.has(bytes_of(page)));
}
