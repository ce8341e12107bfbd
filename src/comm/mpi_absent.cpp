// Ranks as processes, where MPI was not built in.
#include <lamina/comm/mpi.hpp>
#include <lamina/comm/world.hpp>

namespace lamina {

std::string mpi_library() { return {}; }

namespace detail {

std::unique_ptr<Job> start_mpi(int&, char**&) {
  throw Error(
      "started by an MPI launcher, but MPI was not built in: install its development files and "
      "configure again (-DLAMINA_MPI=ON)");
}

}  // namespace detail
}  // namespace lamina
