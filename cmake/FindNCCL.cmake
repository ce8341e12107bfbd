# Finds NCCL 2: the target NCCL::NCCL, which has its header alone, since the library is opened at
# run time; NCCL_LIBRARY is where it lies. Looks in NCCL_ROOT, beside a CUDA toolkit that was found
# before, and where NVIDIA's wheels put it: nvidia/nccl in site-packages, with no libnccl.so.
find_path(NCCL_INCLUDE_DIR nccl.h
  HINTS ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include nvidia/nccl/include)
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 NAMES_PER_DIR
  HINTS ${NCCL_INCLUDE_DIR}/.. ${CUDAToolkit_LIBRARY_DIR} PATH_SUFFIXES lib lib64 nvidia/nccl/lib)
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)

if(EXISTS "${NCCL_INCLUDE_DIR}/nccl.h")
  file(STRINGS "${NCCL_INCLUDE_DIR}/nccl.h" _lines REGEX "#define NCCL_(MAJOR|MINOR|PATCH) ")
  string(REGEX MATCHALL "[0-9]+" _numbers "${_lines}")
  list(JOIN _numbers "." NCCL_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL
  REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR VERSION_VAR NCCL_VERSION)

if(NCCL_FOUND AND NOT TARGET NCCL::NCCL)
  add_library(NCCL::NCCL INTERFACE IMPORTED)
  set_target_properties(NCCL::NCCL PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${NCCL_INCLUDE_DIR}")
endif()
