# Looks for what GPU components need: CUDA 13 with its compiler, cuDNN 9, and NCCL. The libraries
# are opened when a program asks for a GPU, so that it starts where they are not installed.
set(LAMINA_HAS_CUDA OFF)
set(LAMINA_HAS_NCCL OFF)
set(_found)  # what there is, or lacks

if(LAMINA_CUDA)
  find_package(CUDAToolkit QUIET)
  if(NOT CUDAToolkit_FOUND)
    set(_missing "no CUDA toolkit was found, 13 or later is needed")
  elseif(CUDAToolkit_VERSION VERSION_LESS 13)
    set(_missing "CUDA ${CUDAToolkit_VERSION} is too old, 13 or later is needed")
  elseif(NOT CUDAToolkit_NVCC_EXECUTABLE)
    set(_missing "CUDA ${CUDAToolkit_VERSION} has no compiler, nvcc")
  else()
    find_package(CUDNN 9 QUIET)
    if(CUDNN_FOUND)
      set(LAMINA_HAS_CUDA ON)
    else()
      set(_missing "cuDNN 9 was not found beside CUDA ${CUDAToolkit_VERSION}: CUDNN_ROOT may say where")
    endif()
  endif()
  if(NOT LAMINA_HAS_CUDA)
    if(NOT LAMINA_CUDA STREQUAL "AUTO")
      message(FATAL_ERROR "LAMINA_CUDA=${LAMINA_CUDA}: ${_missing}")
    endif()
    set(_found ": ${_missing}")
  endif()
endif()
lamina_report(CUDA "${_found}")

if(LAMINA_NCCL AND NOT LAMINA_NCCL STREQUAL "AUTO")
  message(FATAL_ERROR "LAMINA_NCCL=${LAMINA_NCCL}: this version has no NCCL component yet; "
                      "expected AUTO or OFF")
endif()
lamina_report(NCCL "")

if(LAMINA_HAS_CUDA)
  set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90)  # for newer ones, PTX of the last
  endif()
  if(CMAKE_CXX_COMPILER_LAUNCHER AND NOT DEFINED CMAKE_CUDA_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
  endif()
  enable_language(CUDA)
  file(GLOB _gpu_kernels CONFIGURE_DEPENDS kernels/*.cu)
  add_library(lamina_gpu_kernels OBJECT ${_gpu_kernels})
  target_link_libraries(lamina_gpu_kernels PRIVATE lamina_headers)
  target_include_directories(lamina_gpu_kernels PRIVATE ${PROJECT_SOURCE_DIR})
  set_target_properties(lamina_gpu_kernels PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_compile_options(lamina_gpu_kernels PRIVATE
    -std=c++20 --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra
    # Registers that do not suffice are a warning, too.
    -Xptxas=--warn-on-spills $<$<BOOL:${LAMINA_WERROR}>:-Werror=all-warnings -Xptxas=-Werror>)
endif()
