// What tests ask of the stand-in for CUDA's runtime.
#pragma once

#include "emulated/runtime.hpp"

#include <cstdint>

namespace lamina::test {

/// Of all threads, since the program began.
struct FakeCounts {
  std::int64_t allocations = 0;  ///< of memory of either kind, and of events
  std::int64_t waits = 0;        ///< of the host, for a stream or an event
  std::int64_t launches = 0;     ///< of graphs
};
FakeCounts fake_counts();

/// How much memory the device has.
void fake_memory(std::size_t bytes);
/// How much of the host's can be pinned beyond what is: all, from the start.
void fake_pinned(std::size_t bytes);
/// From now on all calls fail, as those of a GPU that is gone, or they do not.
void lose_device(bool gone);
/// Or when so many more works have been put into streams.
void lose_device_after(std::int64_t works);
/// Which of the machine's GPUs the calling thread sees as number 0: 0 if nobody says.
void see_gpu(int number);
/// What the driver says it is for: fake_cuda from the start, as the runtime; 0 = there is none.
void fake_driver(int version);
inline constexpr int fake_cuda = 13000;  ///< CUDA 13.0
/// How many GPUs each thread sees, that one and those behind it: 1 from the start.
void fake_gpus(int count);
/// The number of the one that the calling thread computes on.
int chosen_gpu();
/// On which GPU memory lies; -1 where it is not a GPU's.
int gpu_of(const void* memory);
/// Whether kernels of a GPU may touch what lies on another one.
bool reaches(int gpu, int other);
/// Whether streams that are asked how far they are may go on, at random, as they do from the start;
/// else they run no further than somebody waits for, so that as much as can be is under way.
void run_ahead(bool may);
/// While streams are full, whoever records an event or has a stream wait for one waits for room.
void fill_streams(bool full);
/// What is in the stream runs, though nobody waits for it.
void hurry(cudaStream_t stream);

}  // namespace lamina::test
