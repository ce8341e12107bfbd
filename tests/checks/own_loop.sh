#!/bin/bash
# The example of a loop of one's own, on one rank and on several: it goes on from its checkpoint as
# if it had never stopped, and inference from the file says what its evaluation said.
set -u
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
program=$LAMINA_BUILD/bin/own_loop
[ -x "$program" ] || { echo "no $program: examples are not built"; exit 77; }
temp=$(mktemp -d) && trap 'rm -rf "$temp"' EXIT
failed=0
fail() { echo "$*"; cat "$temp/out"; failed=1; }

# train RANKS FILE EPOCHS
train() {
  local start=()
  [ "$1" = 1 ] || start=(mpirun -n "$1")
  timeout 120 "${start[@]}" "$program" "$temp/$2" "$3" >"$temp/out" 2>&1 ||
    fail "$1 ranks, $3 epochs: status $?"
}
# the last number after a word in the lines that begin with another
number() { sed -n "s/^$1 .*$2 \([0-9.e+-]*\).*/\1/p" "$temp/out" | tail -1; }
# near A B: to five digits
near() { awk -v a="$1" -v b="$2" 'BEGIN { d = a - b; exit !(a > 0 && d * d <= (1e-5 * a) ^ 2) }'; }

all=1
[ -x "$LAMINA_BUILD/bin/mpi_tests" ] && all="1 2 3"
for ranks in $all; do
  train "$ranks" "whole$ranks" 2
  loss=$(number epoch loss) top1=$(number epoch top-1)
  near "$loss" "$(number from loss)" || fail "$ranks ranks: the file has another loss"
  near "$top1" "$(number from top-1)" || fail "$ranks ranks: the file has other hits"
  # Learning: guessing gives ln 40 and one in 40.
  awk -v loss="$loss" -v top1="$top1" 'BEGIN { exit !(loss < 3 && top1 > 50) }' ||
    fail "$ranks ranks: nothing was learnt"

  train "$ranks" "parts$ranks" 1
  train "$ranks" "parts$ranks" 2
  cmp "$temp/whole$ranks" "$temp/parts$ranks" || fail "$ranks ranks: resuming gives another file"

  train 1 "whole$ranks" 2  # nothing is left to train
  near "$loss" "$(number from loss)" || fail "one rank: $ranks ranks' file has another loss"
done
exit $failed
