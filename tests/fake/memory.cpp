// Memory and streams of a GPU, on the stand-in for CUDA's runtime.
#include "cuda/memory.hpp"

#include "catch.hpp"
#include "fake/runtime.hpp"

#include <numeric>

using namespace lamina;
using namespace lamina::test;

namespace {

constexpr std::size_t count = 1000, bytes = count * sizeof(double);

std::vector<double> numbers_from(double first) {
  std::vector<double> to(count);
  std::iota(to.begin(), to.end(), first);
  return to;
}

/// Through two places on the GPU and back; what was given may change at once.
void round_trip(cuda::Memory& memory, Stream& stream, void* a, void* b, double first,
                std::vector<double>& to) {
  std::vector<double> from = numbers_from(first);
  memory.put(stream, from.data(), a, bytes);
  from.assign(count, -1);
  memory.carry(stream, a, b, bytes);
  memory.get(stream, b, to.data(), bytes);
}

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

TEST_CASE("once warm, copies behind the caller allocate nothing and wait for nobody") {
  cuda::Memory memory(0);
  const auto a = memory.allocate(bytes), b = memory.allocate(bytes);
  Stream stream;
  std::vector<double> got(count);
  std::int64_t allocations = 0, waits = 0;
  for (int step = 0; step < 20; ++step) {
    const FakeCounts before = fake_counts();
    round_trip(memory, stream, a.get(), b.get(), step, got);
    const Event end = stream.event();
    if (step >= 5) allocations += fake_counts().allocations - before.allocations;
    waits += fake_counts().waits - before.waits;
    end.wait();
    REQUIRE(got == numbers_from(step));
  }
  CHECK(allocations == 0);
  CHECK(waits == 0);
}

TEST_CASE("a GPU that is full gives no memory, one that is lost is told") {
  cuda::Memory memory(0);
  fake_memory(std::size_t(1) << 20);
  CHECK(memory.allocate(std::size_t(2) << 20) == nullptr);
  fake_memory(std::size_t(1) << 34);
  const auto a = memory.allocate(bytes);
  REQUIRE(a != nullptr);
  std::vector<double> got(count);
  lose_device(true);
  CHECK_THROWS_WITH(memory.copy(a.get(), got.data(), bytes),
                    "CUDA: choose a GPU: unspecified launch failure");
  lose_device(false);
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
