// The version of MPI that is found at run time.
#include <lamina/comm/mpi.hpp>

#include <mpi.h>

namespace lamina {

std::string mpi_library() {
  char version[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(version, &length);
  const std::string text(version, std::size_t(length));
  return text.substr(0, text.find_first_of(",\n"));
}

}  // namespace lamina
