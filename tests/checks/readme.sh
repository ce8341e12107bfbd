#!/usr/bin/env bash
# The README keeps its word: its program compiles against this build and runs, and every command and
# flag that it shows exists.
set -euo pipefail
cd "$LAMINA_SOURCE"
[[ -e README.md ]] || { echo "no README.md"; exit 1; }
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT

awk -f tests/support/readme_program.awk README.md >"$temp/main.cpp"
[[ -s $temp/main.cpp ]] || { echo "README.md shows no program"; exit 1; }

echo "== the README's program"
cat >"$temp/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(Readme LANGUAGES CXX)
find_package(Lamina CONFIG REQUIRED)
add_executable(readme main.cpp)
target_link_libraries(readme PRIVATE lamina::lamina)
END
cmake --build "$LAMINA_BUILD" | tail -1
cmake --install "$LAMINA_BUILD" --prefix "$temp/prefix" >"$temp/log" || { cat "$temp/log"; exit 1; }
cmake -G Ninja -S "$temp" -B "$temp/build" -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_CXX_COMPILER="$LAMINA_CXX" -DCMAKE_PREFIX_PATH="$temp/prefix" >"$temp/log" ||
  { cat "$temp/log"; exit 1; }
cmake --build "$temp/build"
(cd "$temp" && timeout 120 build/readme)

echo "== the README's commands"
bad=0
./dev help >"$temp/dev"
tool=$LAMINA_BUILD/bin/lamina
commands=$(awk '/^```(sh|bash|console|text)?$/ && !inside { inside = 1; next } /^```/ { inside = 0 }
  inside' README.md | sed -e :a -e '/\\$/N; s/\\\n//; ta')
while read -r verb; do
  [[ -z $verb ]] || grep -q "^  $verb " "$temp/dev" || { echo "no such verb: ./dev $verb"; bad=1; }
done < <(grep -oE '\./dev [a-z]+' README.md | sed 's/.* //' | sort -u)
# Each line "[mpirun -n N] build/bin/PROGRAM [SUBCOMMAND] --flags": PROGRAM's help lists the flags.
while read -r line; do
  words=(${line#*build/bin/})
  program=$LAMINA_BUILD/bin/${words[0]}
  help=()
  [[ ${words[0]} == lamina && ${words[1]-} == [a-z]* ]] && help=("${words[1]}")
  if [[ ! -x $program ]]; then
    echo "no such program: ${words[0]}"
    bad=1
    continue
  fi
  "$program" "${help[@]}" --help >"$temp/help" 2>&1 ||
    { echo "${words[0]} ${help[*]}: no such command"; bad=1; continue; }
  for word in "${words[@]:1}"; do
    [[ $word != --* ]] || grep -qE -- "${word%%=*}([^a-z-]|$)" "$temp/help" ||
      { echo "${words[0]} ${help[*]}: no flag ${word%%=*}"; bad=1; }
  done
done < <(grep -E '(^|[ $])build/bin/' <<<"$commands" || true)
exit $bad
