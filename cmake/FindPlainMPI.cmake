# Finds MPI as its standard has it since version 3, for C++: the target PlainMPI::PlainMPI. That is
# CMake's MPI::MPI_CXX without the library of the C++ interface that the standard has given up; Open
# MPI 4 still brings it along, and not every machine that runs a program has it.
find_package(MPI ${PlainMPI_FIND_VERSION} QUIET COMPONENTS CXX)
set(PlainMPI_LIBRARIES ${MPI_CXX_LIBRARIES})
list(FILTER PlainMPI_LIBRARIES EXCLUDE REGEX "mpi_?(cxx|\\+\\+)[^/]*$")

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(PlainMPI REQUIRED_VARS MPI_CXX_FOUND)

if(PlainMPI_FOUND AND NOT TARGET PlainMPI::PlainMPI)
  add_library(PlainMPI::PlainMPI INTERFACE IMPORTED)
  set_target_properties(PlainMPI::PlainMPI PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${MPI_CXX_INCLUDE_DIRS}"
    INTERFACE_COMPILE_DEFINITIONS
      "${MPI_CXX_COMPILE_DEFINITIONS};OMPI_SKIP_MPICXX;MPICH_SKIP_MPICXX"
    INTERFACE_COMPILE_OPTIONS "${MPI_CXX_COMPILE_OPTIONS}"
    INTERFACE_LINK_LIBRARIES "${PlainMPI_LIBRARIES}")
  separate_arguments(_flags UNIX_COMMAND "${MPI_CXX_LINK_FLAGS}")
  set_property(TARGET PlainMPI::PlainMPI PROPERTY INTERFACE_LINK_OPTIONS ${_flags})
endif()
