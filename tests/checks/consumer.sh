#!/usr/bin/env bash
# A project uses Lamina as a subdirectory and as an installed package that has been moved; asking
# for a component that is not there says so.
set -euo pipefail
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
consumer=$LAMINA_SOURCE/tests/consumer
launcher=()
command -v ccache >/dev/null && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
configure=(cmake -G Ninja -S "$consumer" -DCMAKE_CXX_COMPILER="$LAMINA_CXX" "${launcher[@]}")

echo "== as a subdirectory"
"${configure[@]}" -B "$temp/sub" -DLAMINA_SOURCE="$LAMINA_SOURCE" >"$temp/log" ||
  { cat "$temp/log"; exit 1; }
cmake --build "$temp/sub" --target consumer only_core
"$temp/sub/consumer"
"$temp/sub/only_core"

echo "== installed, then moved"
cmake --build "$LAMINA_BUILD" | tail -1
cmake --install "$LAMINA_BUILD" --prefix "$temp/first" >"$temp/log" || { cat "$temp/log"; exit 1; }
mv "$temp/first" "$temp/prefix"
if grep -rlE "$LAMINA_SOURCE|$LAMINA_BUILD" "$temp"/prefix/lib*/cmake; then
  echo "^ the package names the directory that it was built in"
  exit 1
fi
configure+=(-DCMAKE_PREFIX_PATH="$temp/prefix")
"${configure[@]}" -B "$temp/pkg" -DCOMPONENTS="core;cpu" >"$temp/log" ||
  { cat "$temp/log"; exit 1; }
cmake --build "$temp/pkg" --target consumer only_core
"$temp/pkg/consumer"
"$temp/pkg/only_core"

echo "== components that are not there"
refused() {  # refused COMPONENT MESSAGE
  if "${configure[@]}" -B "$temp/no-$1" -DCOMPONENTS="$1" >"$temp/log" 2>&1; then
    echo "component $1 was accepted"
    exit 1
  fi
  tr -s ' \n' ' ' <"$temp/log" | grep -F "$2" >/dev/null ||
    { cat "$temp/log"; echo "expected: $2"; exit 1; }
}
refused teapot "'teapot' is no component of Lamina"
if grep -q 'Lamina_HAS_CUDA OFF' "$temp"/prefix/lib*/cmake/Lamina/LaminaConfig.cmake; then
  refused cuda "without the component 'cuda'"
fi
