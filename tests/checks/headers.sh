#!/usr/bin/env bash
# Every header compiles alone; what the umbrella header costs is printed.
set -euo pipefail

cmake --build "$LAMINA_BUILD" --target all_verify_interface_header_sets

umbrella=$LAMINA_SOURCE/include/lamina/lamina.hpp
[[ -e $umbrella ]] || { echo "no umbrella header"; exit 1; }
start=$(date +%s%N)
CCACHE_DISABLE=1 "$LAMINA_CXX" -std=c++20 -fsyntax-only -I"$LAMINA_SOURCE/include" \
  -include "$umbrella" -x c++ /dev/null
printf 'the umbrella header takes %d ms to compile\n' $((($(date +%s%N) - start) / 1000000))

# The umbrella covers what programs are written with.
cd "$LAMINA_SOURCE/include"
reached=$("$LAMINA_CXX" -std=c++20 -M -I. -x c++ lamina/lamina.hpp | tr ' \\' '\n\n' |
  grep -o 'lamina/.*\.hpp$' | sort -u)
left_out=$(comm -13 <(echo "$reached") <(find lamina/{layers,network,profile} -name '*.hpp' |
  grep -v '/impl\|/detail/' | sort))
[[ -z $left_out ]] || { echo "lamina.hpp leaves out:" $left_out; exit 1; }
