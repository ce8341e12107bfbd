#!/usr/bin/env bash
# Where ranks have more threads than there are processors, the lines before a run say so, and what
# would fit. Where they have as many, each is bound to one of them. A quota counts as fewer.
set -euo pipefail
tool=$LAMINA_BUILD/bin/lamina
unset OMP_NUM_THREADS
processors=$(nproc)
if [[ $("$tool" info) != *"threads of $processors processors"* && $processors != 1 ]]; then
  echo "a control group lets this have less than its $processors processors: nothing to test"
  exit 77
fi
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

# Half of a processor, as `docker --cpus 0.5` lets a program have, of either version.
groups=/sys/fs/cgroup
[[ ! -d $groups/cpu ]] || groups=$groups/cpu
limited=$groups/lamina.$$
limit() { echo 50000 >"$limited/cpu.cfs_quota_us" || echo "50000 100000" >"$limited/cpu.max"; }
in_group() { (echo "$BASHPID" >"$limited/cgroup.procs" && exec "$@"); }
if ((processors > 1)) && mkdir "$limited" 2>/dev/null; then
  trap 'rmdir "$limited"' EXIT
  if limit 2>/dev/null; then
    expect 0 "" in_group "$tool" "${train[@]}"
    expect 1 ": 2 threads of 1 rank on 1 processor (quota of a control group)" \
      in_group "$tool" "${train[@]}" --threads 2
    said=$(in_group "$tool" info)
    [[ $said == *"1 thread of 1 processor"* ]] || { echo "$said: no quota"; failed=1; }
  else
    echo "control groups have no quota here: not tried"
  fi
  rmdir "$limited"
  trap - EXIT
fi

# bound N COMMAND...: so many processors have a thread, of ranks that train, that may run there only
log=$(mktemp) program=
trap 'rm -f "$log"; [[ ! $program ]] || kill "$program"' EXIT
bound() {
  : >"$log"
  "${@:2}" "${train[@]:0:7}" --batch-size 1 --steps 1000000 --epochs 1000000 --no-validation \
    --profile-steps 0 --log "$log" --threads "$threads" >/dev/null 2>&1 &
  program=$!
  local ranks=$program found rank
  for _ in {1..300}; do [[ ! -s $log ]] && sleep 0.1 || break; done
  [[ $2 != mpirun ]] || ranks=$(pgrep -P "$program" || true)
  found=$(for rank in $ranks; do cat /proc/"$rank"/task/*/status; done 2>/dev/null |
    grep '^Cpus_allowed_list:' | grep -E '\s[0-9]+$' | sort -u | wc -l || true)
  kill "$program" && wait "$program" || true
  program=
  [[ -s $log && $ranks && $found == "$1" ]] || {
    printf '%s: processors with a thread: %s, expected %s\n' "${*:2}" "$found" "$1"
    failed=1
  }
}
if ((processors > 1)); then
  threads=$processors bound "$processors" "$tool"
  OMP_PROC_BIND=false threads=$processors bound 0 "$tool"
  threads=1 bound 0 "$tool"
  if "$tool" info | grep -q 'Open MPI'; then
    if ((processors % 2 == 0)); then
      threads=$((processors / 2)) bound "$processors" mpirun --bind-to none -n 2 "$tool"
      threads=0 bound "$processors" mpirun --bind-to none -n 2 "$tool"
    fi
    threads=$processors bound 0 mpirun --bind-to none -n 2 "$tool"
    ((processors > 16)) || threads=1 bound 0 mpirun --bind-to none -n $((processors + 1)) "$tool"
  fi
fi
exit $failed
