// Ranks with a GPU each, on the stand-ins for CUDA's runtime and NCCL.
#pragma once

#include "cuda/memory.hpp"
#include "fake/runtime.hpp"

#include <lamina/comm/nccl.hpp>
#include <lamina/comm/threads.hpp>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace lamina::test {

inline constexpr auto pass = Pass::weight_grad;

/// With this GPU of the machine.
inline std::shared_ptr<Transport> over_nccl(std::shared_ptr<Transport> threads, int gpu) {
  see_gpu(gpu);
  return nccl_transport(std::move(threads), {Device::Kind::cuda, 0});
}

/// Each rank with a GPU of its own.
struct Rank {
  World& world;
  cuda::Memory& memory;
  Stream& stream;

  const Communicator& comm() const { return world.comm(); }
  int number() const { return world.rank(); }
  int size() const { return world.size(); }

  /// Filled by the stream: element i is value(i).
  template <class T, class Value>
  Tensor filled(std::int64_t count, Value value) const {
    Tensor x({{count, 1, 1, 1}, dtype_of<T>, {}}, memory);
    std::vector<T> host;
    for (std::int64_t i = 0; i < count; ++i) host.push_back(T(float(value(i))));
    memory.put(stream, host.data(), x.view().data, x.view().bytes());
    return x;
  }
  template <class T>
  std::vector<T> read(const Tensor& x) const {
    std::vector<T> host(std::size_t(x.shape().size()));
    memory.get(stream, x.view().data, host.data(), x.view().bytes());
    stream.wait();
    return host;
  }
  /// Throws where an element is not what it should be: Catch's assertions are for one thread.
  template <class T, class Right>
  void expect(const char* what, const Tensor& x, Right right) const {
    const auto got = read<T>(x);
    for (std::size_t i = 0; i < got.size(); ++i)
      check(double(got[i]) == right(std::int64_t(i)), what, ", rank ", number(), ", element ", i,
            ": ", double(got[i]), ", expected ", right(std::int64_t(i)));
  }
};

inline void on_gpus(int ranks, const std::function<void(const Rank&)>& main, double timeout = 60) {
  const auto body = [&](World& world) {
    world.carry_over([&](auto threads) { return over_nccl(std::move(threads), world.rank()); });
    see_gpu(world.rank());  // it is the communication thread that has carried over
    cuda::Memory memory(0);
    Stream stream;
    main({world, memory, stream});
  };
  run_ranks(ranks, body, timeout);
}

}  // namespace lamina::test
