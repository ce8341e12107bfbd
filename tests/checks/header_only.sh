#!/usr/bin/env bash
# Without the library: the README's program builds with the README's command, and says the same on
# four ranks as on one. Two source files of one program do not collide. What the library exports is
# there, or says that it is not.
set -euo pipefail
cd "$LAMINA_SOURCE"
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
export OMP_NUM_THREADS=1
unset LAMINA_RANKS

# refused WORDS PROGRAM: it ends with status 1 and one line that has these words
refused() {
  if "${@:2}" >"$temp/out" 2>&1; then echo "${*:2}: was not refused"; exit 1; fi
  [[ $(wc -l <"$temp/out") == 1 ]] && grep -qF -- "$1" "$temp/out" ||
    { cat "$temp/out"; echo "expected: $1"; exit 1; }
}

echo "== compiling, side by side, since each takes a minute or more"
command=$(grep -m1 -e '-DLAMINA_HEADER_ONLY' README.md) ||
  { echo "README.md has no such command"; exit 1; }
[[ $command == *program.cpp* ]] || { echo "it does not compile program.cpp: $command"; exit 1; }
awk -f tests/support/readme_program.awk README.md >"$temp/program.cpp"
ln -s "$LAMINA_SOURCE/include" "$temp/include"
compile=("$LAMINA_CXX" -std=c++20 -DLAMINA_HEADER_ONLY -I include -isystem /usr/include/eigen3)
if command -v ccache >/dev/null; then compile=(ccache "${compile[@]}"); fi
keep=-fkeep-inline-functions  # in the object, for a look at what there is
"$LAMINA_CXX" --version | grep -q 'Free Software' || keep=
(cd "$temp" && eval "${command/#g++/"$LAMINA_CXX"} -save-temps=obj") &
program=$!
"${compile[@]}" -O0 $keep -c tests/header_only/other.cpp -o "$temp/other.o"
wait $program

echo "== the README's program, by its command"
(cd "$temp" && timeout 240 ./a.out) | tee "$temp/said"
for words in "epoch 3" conv2d1 end_to_end; do
  grep -q "$words" "$temp/said" || { echo "it did not say: $words"; exit 1; }
done
refused "LAMINA_RANKS=N" env OMPI_COMM_WORLD_SIZE=2 "$temp/a.out"
refused "from 1 to 1024, got '4x'" env LAMINA_RANKS=4x "$temp/a.out"
refused "expected one of the two" env LAMINA_RANKS=2 OMPI_COMM_WORLD_SIZE=2 "$temp/a.out"

echo "== two source files, four ranks"
"$LAMINA_CXX" "$temp"/*program.o "$temp/other.o" -pthread -o "$temp/two"
LAMINA_RANKS=4 timeout 240 "$temp/two" | tee "$temp/four"
losses() { awk '$1 == "epoch" { print $2, $4 }' "$1"; }
[[ $(losses "$temp/four" | wc -l) == 3 ]] || { echo "expected three epochs"; exit 1; }
paste -d ' ' <(losses "$temp/said") <(losses "$temp/four") |
  awk '$1 != $3 || $2 - $4 > 1e-3 || $4 - $2 > 1e-3 { print "four ranks differ: " $0; bad = 1 }
       END { exit bad }'

if [[ -n $keep ]]; then
  echo "== what the library exports"
  cmake --build "$LAMINA_BUILD" --target lamina | tail -1
  # Functions by name and arguments: but for those of implementations, and private ones.
  named() { nm -C --defined-only "$@" | sed -n "s/^[0-9a-f]* [TW] \(lamina::.*\)/\1/p" | sort -u; }
  missing=$(comm -23 \
    <(nm -C --defined-only "$LAMINA_BUILD"/liblamina_{core,kernels,cpu,mpi,cuda,nccl}.a |
        sed -n 's/^[0-9a-f]* T \(lamina::.*\)/\1/p' | sort -u |
        grep -v '^lamina::\(detail\|cuda\)::' |
        grep -v '^lamina::TraceWriter::\(open\|append\|show\|close\)(') \
    <(named "$temp/other.o"))
  [[ -z $missing ]] || { echo "$missing"; echo "^ neither there nor in absent.hpp"; exit 1; }
fi
