// Which MPI there is.
#pragma once

#include <string>

namespace lamina {

/// The library found at run time, "Open MPI v4.1.4" for example; empty where MPI is not built in.
std::string mpi_library();

/// Whether it is one whose ranks can go on when others are lost (user-level failure mitigation), if
/// mpirun is told to.
bool mpi_outlives();

}  // namespace lamina
