#!/usr/bin/env bash
# FindCUDNN.cmake and FindNCCL.cmake on folders of their own: NVIDIA's wheel, which has no link
# without a version, and a plain prefix; the version that the header says; and none at all. The
# system's own is not looked for.
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
echo "cuDNN and NCCL are found where they should be"
