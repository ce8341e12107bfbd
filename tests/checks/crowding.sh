#!/usr/bin/env bash
# Where ranks have more threads than there are processors, the lines before a run say so, and what
# would fit.
set -euo pipefail
tool=$LAMINA_BUILD/bin/lamina
unset OMP_NUM_THREADS
processors=$(nproc)
images=$((2 * processors + 64))
train=(train --model lenet --data synthetic --limit "$images" --batch-size 1 --steps 1)
failed=0

# expect LINES WORDS COMMAND...: how many hosts are named, and what is said
expect() {
  local said
  said=$("${@:3}" 2>&1) || { echo "$said"; exit 1; }
  said=$(grep -A1 '^# warning: ' <<<"$said" || true)
  if [[ $(grep -c '^# warning: ' <<<"$said") != "$1" || $said != *"$2"* ]]; then
    printf '%s\n%s\n^ expected %s times: %s\n' "${*:3}" "$said" "$1" "$2"
    failed=1
  fi
}

expect 0 "" "$tool" "${train[@]}"
expect 0 "" "$tool" "${train[@]}" --threads "$processors"
expect 1 ": $((processors + 1)) threads of 1 rank on $processors processor" \
  "$tool" "${train[@]}" --threads $((processors + 1))
expect 1 "expected --threads 1" taskset -c 0 "$tool" "${train[@]}" --threads 2
OMP_PROC_BIND=true expect 0 "" "$tool" "${train[@]}"
if "$tool" info | grep -q 'Open MPI'; then
  # Each rank binds its only thread to the first processor of those that it shares with the other.
  [[ $processors == 1 ]] || OMP_PROC_BIND=true expect 1 ": 2 threads of 2 ranks on 1 processor" \
    mpirun --bind-to none -n 2 "$tool" "${train[@]}" --threads 1
  expect 1 ": $((2 * processors)) threads of 2 ranks on $processors processor" \
    mpirun -n 2 "$tool" "${train[@]}" --threads "$processors"
  expect 1 "and at most $processors of the ranks" \
    mpirun -n $((processors + 1)) "$tool" "${train[@]}" --threads 1
fi
exit $failed
