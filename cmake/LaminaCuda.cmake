# Looks for what the GPU components need: CUDA 13, cuDNN 9 and NCCL. The real components are not
# written yet, so whatever is found, the absent ones are built, and this says so. Kernels of our own
# are compiled for the tests, where the toolkit is.
set(LAMINA_HAS_CUDA OFF)
set(LAMINA_HAS_NCCL OFF)

foreach(_what CUDA NCCL)
  if(LAMINA_${_what} AND NOT LAMINA_${_what} STREQUAL "AUTO")
    message(FATAL_ERROR "LAMINA_${_what}=${LAMINA_${_what}}: this version has no ${_what} "
                        "component yet; expected AUTO or OFF")
  endif()
endforeach()

set(_found)
if(LAMINA_CUDA STREQUAL "AUTO")
  find_package(CUDAToolkit QUIET)
  find_path(LAMINA_CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_path(LAMINA_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  mark_as_advanced(LAMINA_CUDNN_INCLUDE LAMINA_NCCL_INCLUDE)
  if(CUDAToolkit_FOUND)
    set(_found "; found CUDA ${CUDAToolkit_VERSION}")
    if(LAMINA_CUDNN_INCLUDE)
      string(APPEND _found ", cuDNN")
    endif()
    if(LAMINA_NCCL_INCLUDE)
      string(APPEND _found ", NCCL")
    endif()
    if(CUDAToolkit_VERSION VERSION_LESS 13)
      string(APPEND _found ": too old, 13 is needed")
    else()
      string(APPEND _found ", which this version cannot use yet")
    endif()
  endif()
endif()
lamina_report(CUDA "${_found}")
lamina_report(NCCL "")

if(LAMINA_BUILD_TESTS AND CUDAToolkit_FOUND AND CUDAToolkit_NVCC_EXECUTABLE
   AND CUDAToolkit_VERSION VERSION_GREATER_EQUAL 13)
  set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90)  # for newer ones, PTX of the last
  enable_language(CUDA)
  file(GLOB _gpu_kernels CONFIGURE_DEPENDS kernels/*.cu src/cuda/*.cpp)
  list(FILTER _gpu_kernels EXCLUDE REGEX "absent")
  add_library(lamina_gpu_kernels STATIC ${_gpu_kernels})
  target_link_libraries(lamina_gpu_kernels PRIVATE lamina_headers CUDA::cudart_static)
  target_include_directories(lamina_gpu_kernels PRIVATE
    ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src)
  target_compile_options(lamina_gpu_kernels PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:
    -std=c++20 --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra
    # Registers that do not suffice are a warning, too.
    -Xptxas=--warn-on-spills $<$<BOOL:${LAMINA_WERROR}>:-Werror=all-warnings -Xptxas=-Werror>>)
  find_package(NCCL 2.20 QUIET)
  if(NCCL_FOUND)
    file(GLOB _nccl CONFIGURE_DEPENDS src/comm/nccl*.cpp)
    list(FILTER _nccl EXCLUDE REGEX "absent")
    target_sources(lamina_gpu_kernels PRIVATE ${_nccl})
    target_link_libraries(lamina_gpu_kernels PRIVATE NCCL::NCCL)
    target_compile_definitions(lamina_gpu_kernels PRIVATE LAMINA_NCCL_LIBRARY="${NCCL_LIBRARY}")
  endif()
  if(CMAKE_CXX_COMPILER_LAUNCHER)
    set_target_properties(lamina_gpu_kernels PROPERTIES
      CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
  endif()
endif()
