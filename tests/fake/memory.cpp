// Memory of a GPU on the stand-in for CUDA's runtime: what it costs, and what goes wrong.
#include "cuda/memory.hpp"

#include "catch.hpp"
#include "fake/runtime.hpp"
#include "gpu/round_trip.hpp"
#include "support/training.hpp"
#include "unit/checkpoint_files.hpp"

#include <lamina/lamina.hpp>

#include <chrono>
#include <future>
#include <limits>
#include <thread>

using namespace lamina;
using namespace lamina::test;

namespace {

/// What an error says would fit; 0 where it does not say so.
std::int64_t batch_that_fits(const std::string& error) {
  static constexpr std::string_view words = "expected a batch or micro-batch of about ";
  const auto at = error.find(words);
  return at == error.npos ? 0 : std::stoll(error.substr(at + words.size()));
}

}  // namespace

TEST_CASE("once warm, copies behind the caller allocate nothing and wait for nobody") {
  const bool beside = GENERATE(false, true);
  CAPTURE(beside);
  cuda::Memory memory(0);
  if (beside) memory.least_beside = 0;
  const auto a = memory.allocate(bytes), b = memory.allocate(bytes);
  Stream stream;
  std::vector<double> got(count);
  std::int64_t allocations = 0, waits = 0;
  for (int step = 0; step < 20; ++step) {
    run_ahead(step >= 5);
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

TEST_CASE("a stream may be older than the memory that it works on, and outlive it") {
  Stream stream;
  std::vector<double> got(count);
  for (int step = 0; step < 50; ++step) {
    cuda::Memory memory(0);
    const auto a = memory.allocate(bytes), b = memory.allocate(bytes);
    round_trip(memory, stream, a.get(), b.get(), step, got);
    memory.settle();
    REQUIRE(got == numbers_from(step));
    round_trip(memory, stream, a.get(), b.get(), step + 0.5, got);  // who frees them waits for it
  }
  stream.wait();
  CHECK(got == numbers_from(49.5));
}

TEST_CASE("others may ask what is past while a stream that is full is put into") {
  cuda::Memory memory(0);
  const auto a = memory.allocate(bytes);
  Stream stream, other;
  memory.zero(a.get(), bytes);
  memory.carry(stream, a.get(), a.get(), bytes);
  const Event before = stream.event();
  memory.carry(stream, a.get(), a.get(), bytes);
  fill_streams(true);
  auto put = std::async(std::launch::async, [&] { return stream.queue()->mark(); });
  auto follow = std::async(std::launch::async, [&] {
    memory.carry(other, a.get(), a.get(), bytes);
    other.follow(before);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // so that both wait for room
  auto ask = std::async(std::launch::async, [&] { return before.past(); });
  const auto answer = ask.wait_for(std::chrono::seconds(20));
  fill_streams(false);
  CHECK(answer == std::future_status::ready);
  put.get(), follow.get(), stream.wait(), other.wait();
}

TEST_CASE("a network that a GPU has no room for says how large a batch would fit") {
  Network net({.c = 3, .h = 32, .w = 32});
  net.add<Conv2D>({.channels = 8}, "small").add<Conv2D>({.channels = 64}, "large");
  const auto place = [&](std::int64_t batch) {
    net.place({.batch = batch, .backend = cuda_backend(0)});
  };
  fake_memory(std::size_t(64) << 20);
  CHECK_NOTHROW(place(16));
  const std::string lacks = error_of([&] { place(1024); });
  CHECK_THAT(lacks, ContainsSubstring("not enough memory of cuda:0: activations and gradients of "
                                      "1024 samples take 348.1 MB, those of layer large 268.4 MB "
                                      "each, and 6"));
  const std::int64_t fits = batch_that_fits(lacks);
  CHECK(fits > 180);  // 340 kB a sample
  CHECK(fits < 198);
  CHECK_NOTHROW(place(fits));
  fake_memory(std::size_t(1) << 34);
}

TEST_CASE("the batch that a GPU has room for trains beside the optimizer's states") {
  const auto data = small_data(1000);
  Network net({.c = 3, .h = 12, .w = 12});
  net.add<Linear>({.features = 256}, "wide").add<Tanh>().add<Linear>({.features = 4}, "narrow");
  const auto trainer = [&](std::int64_t batch) {
    return Trainer(net, World(), Adam{}, {.batch = batch, .backend = "cuda"});
  };
  fake_memory(std::size_t(2) << 20);
  const std::string lacks = error_of([&] { trainer(1000); });
  INFO(lacks);
  const std::int64_t fits = batch_that_fits(lacks);
  REQUIRE(fits > 10);
  REQUIRE(fits < 900);
  {
    Trainer fitting = trainer(fits);
    Loader loader = fitting.loader(*data, true);
    CHECK_NOTHROW(fitting.step(loader, 1));
  }
  fake_memory(std::size_t(1) << 19);
  CHECK_THAT(error_of([&] { trainer(1); }),
             ContainsSubstring("states of the optimizer: not enough"));
  fake_memory(std::size_t(1) << 34);
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
                    "CUDA: choose a GPU: unspecified launch failure: the GPU was lost, or a kernel "
                    "failed on it");
  lose_device(false);
}

TEST_CASE("who finds no memory says for what, how much, and how much there is") {
  constexpr std::size_t room = std::size_t(1) << 20, much = 2 * room;
  cuda::Memory memory(0);
  memory.least_beside = 0;
  const auto a = memory.allocate(much);
  Stream stream;
  cuda::Queue& queue = memory.queue_of(stream);
  const auto put = [&] {
    memory.put_filled(stream, a.get(), much, [](void*, std::size_t, std::size_t) {});
  };
  fake_memory(room);
  const std::string there = " takes 2.1 MB, and ";
  const std::string rest = " are free: a smaller batch or micro-batch may fit";
  CHECK_THAT(error_of([&] { queue.scratch(much); }),
             ContainsSubstring("not enough memory of cuda:0: scratch memory of kernels" + there) &&
                 ContainsSubstring(rest));
  CHECK_THAT(error_of(put),
             ContainsSubstring("not enough memory of cuda:0: a batch that is uploaded" + there) &&
                 ContainsSubstring(rest));
  fake_memory(std::size_t(1) << 34);
  CHECK_NOTHROW(queue.scratch(much));
  CHECK_NOTHROW(put());  // both go on where there is some again
  stream.wait();
  fake_pinned(room);
  const std::string pinned =
      "not enough memory of the host that can be pinned: 4.2 MB for copies to or from a GPU";
  CHECK(error_of([&] { memory.staging(2 * much); }) == pinned);
  CHECK(error_of([&] {
          const auto b = memory.allocate(2 * much);
          memory.put(stream, b.get(), b.get(), 2 * much);
        }) == pinned);
  fake_pinned(std::numeric_limits<std::size_t>::max());
}

TEST_CASE("a training whose GPU is lost ends with a line, and its checkpoint stays") {
  const checkpoint_files::Folder folder;
  const std::string path = folder / "kept";
  const auto data = small_data();
  World world;
  auto trainer = std::make_unique<Trainer>(small_network(true), world, SGD{},
                                           TrainerOptions{.batch = 24, .backend = "cuda"});
  Loader loader = trainer->loader(*data, true);
  trainer->step(loader, 9);
  trainer->save(path);
  const std::string kept = checkpoint_files::read(path);
  lose_device(true);
  const std::string step = error_of([&] { trainer->step(loader, 9); });
  trainer.reset();  // what it has on the GPU can no longer be given back
  lose_device(false);
  CHECK_THAT(step, ContainsSubstring("unspecified launch failure: the GPU was lost"));
  CHECK(checkpoint_files::read(path) == kept);
}

TEST_CASE("parameters that a GPU has no room for say so") {
  Network net({.c = 4096});
  net.add<Linear>({.features = 4096});
  fake_memory(std::size_t(8) << 20);
  CHECK_THROWS_WITH(net.place({.batch = 1, .backend = cuda_backend(0)}),
                    ContainsSubstring("parameters and gradients: not enough memory of cuda:0 for a "
                                      "tensor of ") &&
                        ContainsSubstring(" MB are free"));
  fake_memory(std::size_t(1) << 34);
}

TEST_CASE("no driver, and one that is too old, are two causes") {
  const auto says = [](int driver, const char* line) {
    fake_driver(driver);
    CHECK(cuda_devices() == 0);
    CHECK_THROWS_WITH(cuda_backend(0), line);
    fake_driver(fake_cuda);
  };
  says(0, "no GPU can be used: there is no NVIDIA driver");
  says(12020, "no GPU can be used: the driver is for CUDA 12.2, expected 13.0 or newer");
  CHECK(cuda_devices() == 1);
}
