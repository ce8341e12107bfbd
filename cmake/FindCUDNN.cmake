# Finds cuDNN: the target CUDNN::CUDNN has its headers; the library, CUDNN_LIBRARY, is opened when a
# program runs. Also takes the folder of NVIDIA's Python wheel, nvidia/cudnn, as CUDNN_ROOT or in
# CMAKE_PREFIX_PATH: it has no link without a version.
find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_library(CUDNN_LIBRARY NAMES cudnn libcudnn.so.9 HINTS ${CUDAToolkit_LIBRARY_DIR})
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
    INTERFACE_INCLUDE_DIRECTORIES "${CUDNN_INCLUDE_DIR}"
    INTERFACE_COMPILE_DEFINITIONS "LAMINA_CUDNN_PATH=\"${CUDNN_LIBRARY}\"")
endif()
