// Memory and streams of a GPU.
#include "cuda/memory.hpp"

#include "catch.hpp"
#include "gpu/round_trip.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <vector>

using namespace lamina;
using namespace lamina::test;

namespace {

std::string error_of_wait(Stream& stream) {
  try {
    stream.wait();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("memory of a GPU begins with zeros, and copies arrive in the order of the stream") {
  cuda::Memory memory(0);
  const auto a = memory.allocate(bytes), b = memory.allocate(bytes);
  std::vector<double> got(count, -1);
  memory.copy(a.get(), got.data(), bytes);
  CHECK(got == std::vector<double>(count, 0.0));
  Stream stream;
  std::vector<double> second(count);
  round_trip(memory, stream, a.get(), b.get(), 1, got);
  round_trip(memory, stream, a.get(), b.get(), 5000, second);
  stream.wait();
  CHECK(got == numbers_from(1));
  CHECK(second == numbers_from(5000));
}

TEST_CASE("what is copied at once comes after all that streams were asked for, and before more") {
  cuda::Memory memory(0);
  const Shape shape{1, count, 1, 1};
  const Tensor there(shape, DType::f64, memory), copy(shape, DType::f64, memory);
  const Tensor here(shape, DType::f64);
  Stream stream;
  for (int round = 1; round <= 20; ++round) {
    put_bytes(stream, numbers_from(100 * round).data(), there);
    copy_bytes(there, here);
    CHECK(std::ranges::equal(here.elements<double>(), numbers_from(100 * round)));
    copy_bytes(there, copy);
    get_bytes(stream, copy, here.view().data);
    stream.wait();
    CHECK(std::ranges::equal(here.elements<double>(), numbers_from(100 * round)));
    memory.zero(copy.view().data, bytes);
    get_bytes(stream, copy, here.view().data);
    stream.wait();
    CHECK(std::ranges::count(here.elements<double>(), 0) == count);
  }
}

TEST_CASE("memory that goes is there for as long as a stream works on it") {
  cuda::Memory memory(0);
  const auto stays = memory.allocate(bytes);
  Stream stream;
  std::vector<double> got(count);
  for (int round = 1; round <= 20; ++round) {
    auto goes = memory.allocate(bytes);
    memory.put(stream, numbers_from(100 * round).data(), goes.get(), bytes);
    stream.wait();
    memory.carry(stream, goes.get(), stays.get(), bytes);
    goes.reset();
    memory.zero(memory.allocate(bytes).get(), bytes);  // whoever comes next
    memory.get(stream, stays.get(), got.data(), bytes);
    stream.wait();
    CHECK(got == numbers_from(100 * round));
  }
}

TEST_CASE("what is uploaded beside kernels arrives in the order of the stream") {
  cuda::Memory memory(0);
  memory.least_beside = 0;
  constexpr int puts = 7;
  const auto a = memory.allocate(bytes);
  for (int round = 0; round < 5; ++round) {
    Stream stream;
    std::vector<std::vector<double>> got(puts, std::vector<double>(count, -1));
    for (int i = 0; i < puts; ++i) {
      const std::size_t size = i < 3 ? bytes / 2 : bytes;  // the rooms grow
      memory.put(stream, numbers_from(100 * round + i).data(), a.get(), size);
      memory.get(stream, a.get(), got[std::size_t(i)].data(), size);
    }
    stream.wait();
    for (int i = 0; i < puts; ++i) {
      std::vector<double> expected = numbers_from(100 * round + i);
      if (i < 3) std::fill(expected.begin() + count / 2, expected.end(), -1);
      CHECK(got[std::size_t(i)] == expected);
    }
  }
}

TEST_CASE("two batches arrive while what came before them in the stream still runs") {
  cuda::Memory memory(0);
  memory.least_beside = 0;
  const auto a = memory.allocate(bytes);
  std::mutex guard;
  std::condition_variable changed;
  bool arrived = false, held = true;
  Stream stream;
  memory.queue_of(stream);
  stream.then([&] {
    std::unique_lock lock(guard);
    held = changed.wait_for(lock, std::chrono::seconds(5), [&] { return arrived; });
  });
  for (const double first : {1.0, 2.0})
    memory.put(stream, numbers_from(first).data(), a.get(), bytes);
  std::vector<double> got(count);
  cuda::Uploads& uploads = memory.queue_of(stream).uploads();
  uploads.settle();
  REQUIRE(uploads.newest() != nullptr);
  memory.copy(uploads.newest(), got.data(), bytes);
  CHECK(got == numbers_from(2));
  {
    const std::lock_guard lock(guard);
    arrived = true;
  }
  changed.notify_all();
  memory.get(stream, a.get(), got.data(), bytes);
  stream.wait();
  CHECK(held);
  CHECK(got == numbers_from(2));
}

TEST_CASE("a large batch is filled and uploaded part by part") {
  cuda::Memory memory(0);
  constexpr std::size_t numbers = 1200001;
  const auto a = memory.allocate(numbers * sizeof(double));
  Stream stream;
  int parts = 0;
  memory.put_filled(stream, a.get(), numbers * sizeof(double),
                    [&](void* part, std::size_t first, std::size_t size) {
                      ++parts;
                      auto* const to = static_cast<double*>(part);
                      std::iota(to, to + size / sizeof(double), double(first / sizeof(double)));
                    });
  CHECK(parts == 3);
  std::vector<double> got(numbers), expected(numbers);
  std::iota(expected.begin(), expected.end(), 0.0);
  memory.get(stream, a.get(), got.data(), numbers * sizeof(double));
  stream.wait();
  CHECK(got == expected);
}

TEST_CASE("an error of the host's work in a stream comes to whoever waits, and ends what follows") {
  cuda::Memory memory(0);
  const auto a = memory.allocate(bytes);
  Stream stream;
  memory.queue_of(stream);
  std::vector<double> got(count, -1);
  bool ran = false;
  stream.then([&] { memory.copy(a.get(), got.data(), bytes); });  // not from there
  stream.then([&] { ran = true; });
  CHECK(error_of_wait(stream) == "CUDA: choose a GPU: operation not permitted");
  CHECK(!ran);
}
