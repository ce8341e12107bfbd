#!/usr/bin/env bash
# Without the library: the README's program builds with the flags of the README's command, but less
# optimised, with a second source file beside it, and trains on one rank and on four. What the
# library exports is there, or says that it is not.
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

echo "== the README's program, by the flags of its command, with a second source file"
command=$(grep -m1 -e '-DLAMINA_HEADER_ONLY' README.md) ||
  { echo "README.md has no such command"; exit 1; }
[[ $command == "g++ "*" -O2 "*" program.cpp "* ]] ||
  { echo "expected g++ with -O2 and program.cpp: $command"; exit 1; }
awk -f tests/support/readme_program.awk README.md >"$temp/program.cpp"
ln -s "$LAMINA_SOURCE/include" "$temp/include"
cp tests/header_only/other.cpp "$temp"
keep=-fkeep-inline-functions  # in the object, for a look at what there is
"$LAMINA_CXX" --version | grep -q 'Free Software' || keep=
cd "$temp"
# compile FLAGS FILE: as the command does, but with these flags in place of -O2, which takes longer
launcher=$(command -v ccache || true)
compile() {
  local line=${command/#g++/"$launcher" "$LAMINA_CXX"}
  line=${line/ -O2 / $1 }
  eval "${line/ program.cpp / -c $2.cpp -o $2.o }"
}
compile "-O0 $keep" other &
compile "-O1 -Wall -Wextra -Wshadow -Werror" program
wait $!
eval "${command/#g++*program.cpp/"$LAMINA_CXX" program.o other.o}"
for ranks in 1 4; do
  LAMINA_RANKS=$ranks timeout 240 ./a.out | tee said
  for words in "epoch 3" conv2d1 end_to_end; do
    grep -q "$words" said || { echo "it did not say: $words"; exit 1; }
  done
done
refused "LAMINA_RANKS=N" env OMPI_COMM_WORLD_SIZE=2 ./a.out
refused "from 1 to 1024, got '4x'" env LAMINA_RANKS=4x ./a.out
refused "expected one of the two" env LAMINA_RANKS=2 OMPI_COMM_WORLD_SIZE=2 ./a.out

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
    <(named other.o))
  [[ -z $missing ]] || { echo "$missing"; echo "^ neither there nor in absent.hpp"; exit 1; }
fi
