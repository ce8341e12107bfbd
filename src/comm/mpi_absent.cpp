// Ranks as processes, in a program without MPI.
#include <lamina/comm/mpi.hpp>
#include <lamina/comm/world.hpp>

namespace lamina {

std::string mpi_library() { return {}; }
bool mpi_outlives() { return false; }

namespace detail {

std::unique_ptr<Job> start_mpi(int&, char**&) {
  throw Error(
      "started by an MPI launcher, but MPI was not built in: install its development files, "
      "configure Lamina with -DLAMINA_MPI=ON, and ask find_package() for the component mpi");
}

}  // namespace detail
}  // namespace lamina
