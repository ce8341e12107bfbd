# Finds cuDNN: the target CUDNN::CUDNN, which has its headers alone, since the library is opened at
# run time; CUDNN_LIBRARY is where it lies. Looks in CUDNN_ROOT, beside a CUDA toolkit that was
# found before, and where NVIDIA's wheels put it: nvidia/cudnn in site-packages, where there is no
# libcudnn.so.
find_path(CUDNN_INCLUDE_DIR cudnn.h
  HINTS ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include nvidia/cudnn/include)
find_library(CUDNN_LIBRARY NAMES cudnn libcudnn.so.9 NAMES_PER_DIR
  HINTS ${CUDNN_INCLUDE_DIR}/.. ${CUDAToolkit_LIBRARY_DIR} PATH_SUFFIXES lib lib64 nvidia/cudnn/lib)
mark_as_advanced(CUDNN_INCLUDE_DIR CUDNN_LIBRARY)

if(EXISTS "${CUDNN_INCLUDE_DIR}/cudnn_version.h")
  file(STRINGS "${CUDNN_INCLUDE_DIR}/cudnn_version.h" _lines
    REGEX "#define CUDNN_(MAJOR|MINOR|PATCHLEVEL) +[0-9]+")
  string(REGEX MATCHALL "[0-9]+" _numbers "${_lines}")
  list(JOIN _numbers "." CUDNN_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CUDNN
  REQUIRED_VARS CUDNN_LIBRARY CUDNN_INCLUDE_DIR VERSION_VAR CUDNN_VERSION)

if(CUDNN_FOUND AND NOT TARGET CUDNN::CUDNN)
  add_library(CUDNN::CUDNN INTERFACE IMPORTED)
  set_target_properties(CUDNN::CUDNN PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${CUDNN_INCLUDE_DIR}")
endif()
