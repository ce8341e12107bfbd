#!/bin/sh
# However a rank fails, all ranks are gone within 30 s, and one line says what happened.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
program=$LAMINA_BUILD/bin/mpi_tests
[ -x "$program" ] || { echo "no $program: MPI is not built in"; exit 0; }
out=$(mktemp) && trap 'rm -f "$out"' EXIT
failed=0

# expect HOW STATUS LINES TEXT: the exit status, how many lines of ours, and what one of them says
expect() {
  timeout 30 mpirun -n 3 "$program" --fail "$1" >"$out" 2>&1
  status=$?
  lines=$(grep -c '^lamina: error: ' "$out")
  said=yes
  [ -z "$4" ] || grep -q -- "$4" "$out" || said=no
  if [ $status -ne "$2" ] || [ "$lines" -ne "$3" ] || [ $said = no ]; then
    echo "--fail $1: status $status, $lines lines; expected $2, $3 and '$4' in:"
    cat "$out"
    failed=1
  fi
}

expect same   1 1 '^lamina: error: data/missing: no such file$'
expect usage  2 0 ''
expect negative 255 0 ''
if grep -q MPI_ABORT "$out"; then
  echo "--fail negative: ranks were not heard of:"
  cat "$out"
  failed=1
fi
expect thrown 1 1 '^lamina: error: rank 1: images/7.jpg: not a JPEG$'
expect parked 1 1 '^lamina: error: rank 1: images/7.jpg: not a JPEG$'
expect early  1 1 'rank 1 .* ended before all_reduce .* in layer 10'
export LAMINA_COMM_TIMEOUT=2
expect stuck  1 1 'all_reduce .* in layer 10 .*no answer from rank 1 '
export LAMINA_COMM_TIMEOUT=2
expect late 1 1 'rank 0: halo .*: not all ranks came within 2 s'
unset LAMINA_COMM_TIMEOUT
expect outside 0 0 ''
mixed='rank 0 called all_reduce sum of 1000 f32 in layer 10 .* but rank 1 called .* of 999'
halo='rank 0 called all_reduce sum of 1000 f32 in layer 10 .* but rank 1 called halo of 1000'
expect mixed 1 1 "$mixed"  # always compared where memory is shared
export LAMINA_NODE_SIZE=2
expect mixed 1 1 "$mixed"
unset LAMINA_NODE_SIZE
export LAMINA_CHECK_COLLECTIVES=0
expect short 1 1 'rank 2: halo of 1000 f32 in layer 10 .*: rank 1 has sent 999 of 1000'
export LAMINA_CHECK_COLLECTIVES=1
expect halo 1 1 "$halo"
expect short 1 1 'rank 1 called halo of 999 f32 in layer 10 .* to rank 2, which expects 1000'
export LAMINA_SHM=0
expect mixed 1 1 "$mixed"
expect halo 1 1 "$halo"
unset LAMINA_CHECK_COLLECTIVES
if grep -q '^CMAKE_BUILD_TYPE:[A-Z]*=Debug$' "$LAMINA_BUILD/CMakeCache.txt"; then
  expect mixed 1 1 "$mixed"  # the default of a debug build
fi
expect thrown 1 1 '^lamina: error: rank 1: images/7.jpg: not a JPEG$'
expect early  1 1 'rank 1 .* ended before all_reduce .* in layer 10'
unset LAMINA_SHM

# Lost: mpirun may end the others before they can say it, but the rank is named, by them or by it.
timeout 30 mpirun -n 3 "$program" --fail killed >"$out" 2>&1
status=$?
if [ $status -eq 0 ] || [ $status -eq 124 ] || ! grep -q 'rank 1 ' "$out"; then
  echo "--fail killed: status $status:"
  cat "$out"
  failed=1
fi
exit $failed
