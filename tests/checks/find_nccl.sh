#!/bin/bash
# FindNCCL.cmake on folders of its own: NVIDIA's wheel, which has no libnccl.so, and a plain prefix;
# the version that the header says; and none at all. The system's own is not looked for.
set -euo pipefail

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root"/{wheel/nvidia/nccl,plain,empty}/{include,lib} "$root/project"
for folder in wheel/nvidia/nccl plain; do
  printf '#define NCCL_MAJOR 2\n#define NCCL_MINOR 28\n#define NCCL_PATCH 9\n' \
    > "$root/$folder/include/nccl.h"
done
touch "$root/wheel/nvidia/nccl/lib/libnccl.so.2" "$root"/plain/lib/libnccl.so{,.2}

cat > "$root/project/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(find_nccl LANGUAGES CXX)
foreach(_where CMAKE_SYSTEM_PATH SYSTEM_ENVIRONMENT_PATH CMAKE_ENVIRONMENT_PATH)
  set(CMAKE_FIND_USE_\${_where} OFF)
endforeach()
list(APPEND CMAKE_MODULE_PATH $LAMINA_SOURCE/cmake)
find_package(NCCL \${WANTED})
if(TARGET NCCL::NCCL)
  get_target_property(_include NCCL::NCCL INTERFACE_INCLUDE_DIRECTORIES)
endif()
message(STATUS "got: \${NCCL_FOUND} \${NCCL_VERSION} \${_include} \${NCCL_LIBRARY}")
END

# expect "what it says" options...
expect() {
  local right=$1
  shift
  rm -rf "$root/build"
  cmake -S "$root/project" -B "$root/build" -DCMAKE_CXX_COMPILER="$LAMINA_CXX" \
    "$@" > "$root/log" 2>&1 || true
  if ! grep -qF -- "-- got: $right" "$root/log"; then
    echo "find_nccl: $*: expected $right, got:"
    cat "$root/log"
    exit 1
  fi
}

wheel=$root/wheel/nvidia/nccl plain=$root/plain
expect "TRUE 2.28.9 $wheel/include $wheel/lib/libnccl.so.2" -DNCCL_ROOT="$root/wheel"
expect "TRUE 2.28.9 $wheel/include $wheel/lib/libnccl.so.2" -DNCCL_ROOT="$wheel"
expect "TRUE 2.28.9 $wheel/include $wheel/lib/libnccl.so.2" -DCMAKE_PREFIX_PATH="$root/wheel"
expect "TRUE 2.28.9 $plain/include $plain/lib/libnccl.so" -DNCCL_ROOT="$plain"
expect "FALSE 2.28.9" -DNCCL_ROOT="$wheel" -DWANTED=2.29
expect "FALSE" -DNCCL_ROOT="$root/empty"
echo "NCCL is found where it should be"
