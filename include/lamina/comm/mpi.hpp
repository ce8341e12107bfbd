// Which MPI there is.
#pragma once

#include <string>

namespace lamina {

/// The library found at run time, "Open MPI v4.1.4" for example; empty where MPI is not built in.
std::string mpi_library();

}  // namespace lamina
