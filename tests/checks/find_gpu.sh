#!/usr/bin/env bash
# FindCUDNN.cmake and FindNCCL.cmake on folders of their own: NVIDIA's wheel, which has no link
# without a version, and a plain prefix; the version that the header says; and none at all. The
# system's own is not looked for. Toolkits, cuDNN and NCCL that are too old, or not all there, are
# refused in a line, and what is insisted on is an error.
set -euo pipefail

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root"/{wheel/nvidia/{cudnn,nccl},plain,empty}/{include,lib} "$root/project"
for folder in wheel/nvidia/nccl plain; do
  printf '#define NCCL_MAJOR 2\n#define NCCL_MINOR 28\n#define NCCL_PATCH 9\n' \
    >"$root/$folder/include/nccl.h"
done
for folder in wheel/nvidia/cudnn plain; do
  touch "$root/$folder/include/cudnn.h"
  printf '#define CUDNN_MAJOR 9\n#define CUDNN_MINOR 19\n#define CUDNN_PATCHLEVEL 1\n' \
    >"$root/$folder/include/cudnn_version.h"
done
touch "$root"/wheel/nvidia/{cudnn/lib/libcudnn.so.9,nccl/lib/libnccl.so.2} \
  "$root"/plain/lib/lib{cudnn.so,cudnn.so.9,nccl.so,nccl.so.2}

cat >"$root/project/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(find_gpu LANGUAGES CXX)
foreach(_where CMAKE_SYSTEM_PATH SYSTEM_ENVIRONMENT_PATH CMAKE_ENVIRONMENT_PATH)
  set(CMAKE_FIND_USE_\${_where} OFF)
endforeach()
list(APPEND CMAKE_MODULE_PATH $LAMINA_SOURCE/cmake)
foreach(_name CUDNN NCCL)
  find_package(\${_name} \${WANTED_\${_name}})
  set(_include)
  if(TARGET \${_name}::\${_name})
    get_target_property(_include \${_name}::\${_name} INTERFACE_INCLUDE_DIRECTORIES)
  endif()
  message(STATUS "\${_name}: \${\${_name}_FOUND} \${\${_name}_VERSION} \${_include} "
                 "\${\${_name}_LIBRARY}")
endforeach()
END

# expect "what it says of cuDNN" "and of NCCL" options...
expect() {
  local right=("-- CUDNN: $1" "-- NCCL: $2") line
  shift 2
  rm -rf "$root/build"
  cmake -S "$root/project" -B "$root/build" -DCMAKE_CXX_COMPILER="$LAMINA_CXX" \
    "$@" >"$root/log" 2>&1 || true
  for line in "${right[@]}"; do
    grep -qF -- "$line" "$root/log" || { cat "$root/log"; echo "$*: expected $line"; exit 1; }
  done
}

wheel=$root/wheel/nvidia plain=$root/plain
of_wheel=("TRUE 9.19.1 $wheel/cudnn/include $wheel/cudnn/lib/libcudnn.so.9"
  "TRUE 2.28.9 $wheel/nccl/include $wheel/nccl/lib/libnccl.so.2")
of_plain=("TRUE 9.19.1 $plain/include $plain/lib/libcudnn.so"
  "TRUE 2.28.9 $plain/include $plain/lib/libnccl.so")
expect "${of_wheel[@]}" -DCUDNN_ROOT="$root/wheel" -DNCCL_ROOT="$root/wheel"
expect "${of_wheel[@]}" -DCUDNN_ROOT="$wheel/cudnn" -DNCCL_ROOT="$wheel/nccl"
expect "${of_wheel[@]}" -DCMAKE_PREFIX_PATH="$root/wheel"
expect "${of_plain[@]}" -DCUDNN_ROOT="$plain" -DNCCL_ROOT="$plain"
expect "FALSE 9.19.1" "FALSE 2.28.9" -DCMAKE_PREFIX_PATH="$root/wheel" \
  -DWANTED_CUDNN=10 -DWANTED_NCCL=2.29
expect "FALSE" "FALSE" -DCUDNN_ROOT="$root/empty" -DNCCL_ROOT="$root/empty"

# A toolkit as far as CMake looks at it; Debian's own is 11.8, with cuDNN 8.
# toolkit folder version
toolkit() {
  mkdir -p "$root/$1"/{bin,include,lib64}
  printf '#!/bin/sh\n[ "$1" != -v ] || echo "#$ TOP=%s/bin/.."\n%s\n' "$root/$1" \
    "echo 'Cuda compilation tools, release ${2%.*}, V$2'" >"$root/$1/bin/nvcc"
  chmod +x "$root/$1/bin/nvcc"
  touch "$root/$1"/include/cuda_runtime.h "$root/$1"/lib64/{libcudart.so,libcublasLt.so}
}
toolkit old 11.8.89
toolkit new 13.0.48
cp -r "$root/new" "$root/bare" && rm "$root/bare/lib64/libcublasLt.so"
cp -r "$plain" "$root/former"
sed -i 's/MAJOR 9/MAJOR 8/' "$root/former/include/cudnn_version.h"
sed -i 's/MINOR 28/MINOR 16/' "$root/former/include/nccl.h"

sed -i '/^foreach(_name CUDNN NCCL)/,$d' "$root/project/CMakeLists.txt"
cat >>"$root/project/CMakeLists.txt" <<'END'
function(lamina_report what missing)
  message(STATUS "${what}: ${LAMINA_HAS_${what}}${missing}")
endfunction()
macro(enable_language)
endmacro()
include(LaminaCuda)
END

# says toolkit prefix "a line" options...
says() {
  local toolkit=$root/$1 prefix=$root/$2 line=$3
  shift 3
  rm -rf "$root/build"
  cmake -S "$root/project" -B "$root/build" -DCMAKE_CXX_COMPILER="$LAMINA_CXX" -DLAMINA_CUDA=AUTO \
    -DLAMINA_NCCL=AUTO -DCUDAToolkit_ROOT="$toolkit" -DCUDNN_ROOT="$prefix" -DNCCL_ROOT="$prefix" \
    "$@" >"$root/log" 2>&1 || true
  tr -s ' \n' ' ' <"$root/log" | grep -qF -- "$line" ||
    { cat "$root/log"; echo "$toolkit, $prefix, $*: expected $line"; exit 1; }
}

says new plain "CUDA: ON -- NCCL: ON --"
says empty plain "CUDA: OFF: no CUDA toolkit was found, 13 or later is needed -- NCCL: OFF: CUDA"
says old former "CUDA: OFF: CUDA 11.8.89 is too old, 13 or later is needed -- NCCL: OFF: CUDA"
says bare plain "CUDA: OFF: CUDA 13.0.48 has no cuBLAS, libcublasLt --"
says new former "CUDA: OFF: cuDNN 8.19.1 is too old, 9 or later is needed --"
says new empty "CUDA: OFF: cuDNN 9 or later was not found: CUDNN_ROOT may say where --"
says new plain "NCCL: OFF: NCCL 2.16.9 is too old, 2.20 or later is needed --" \
  -DNCCL_ROOT="$root/former"
says new plain "NCCL: OFF: NCCL 2.20 or later was not found: NCCL_ROOT may say where --" \
  -DNCCL_ROOT="$root/empty"
says old former "LAMINA_CUDA=ON: CUDA 11.8.89 is too old, 13 or later is needed" -DLAMINA_CUDA=ON
says new plain "CUDA: OFF -- NCCL: OFF: CUDA is not built in --" -DLAMINA_CUDA=OFF
echo "cuDNN and NCCL are found where they should be, and what is too old is refused"
