// What a program of somebody else's needs of the package: headers, and a library to link. It prints
// what it was linked with.
#include <lamina/base/version.hpp>
#include <lamina/comm/mpi.hpp>
#include <lamina/comm/world.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/train/data/dataset.hpp>

#include <cstdio>

int main(int argc, char** argv) {
  return lamina::run(argc, argv, [](lamina::World& world) {
    const auto data = lamina::synthetic({.limit = 3});
    const auto backend = lamina::make_backend("auto", lamina::DType::f32);
    std::printf("lamina %s: %s, MPI: %s, rank %d of %d, %s of %d\n", lamina::version,
                backend->name().c_str(), lamina::mpi_library().c_str(), world.rank(), world.size(),
                data->shape().text().c_str(), int(data->size()));
    return 0;
  });
}
