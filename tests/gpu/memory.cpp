// Memory and streams of a GPU.
#include "cuda/memory.hpp"

#include "catch.hpp"
#include "gpu/round_trip.hpp"

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
