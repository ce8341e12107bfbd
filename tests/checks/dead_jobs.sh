#!/usr/bin/env bash
# What a job leaves in shared memory and in the launcher's folder, where all of it is killed at
# once, is gone after the next start; what others have stays.
set -euo pipefail
program=$LAMINA_BUILD/bin/mpi_tests
[[ -x $program ]] || { echo "no $program: MPI is not built in"; exit 0; }
temp=$(mktemp -d)
foreign=/dev/shm/vader_segment.lamina-check.$$
: >"$foreign"
processes=()
trap 'kill -9 "${processes[@]}" 2>/dev/null || true; rm -rf "$temp" "$foreign"' EXIT

# job NAME: starts one that waits; sets NAME_processes and NAME_left, what it has outside of itself
job() {
  local -n own=$1_processes left=$1_left
  mpirun -n 2 "$program" --fail stuck >"$temp/$1" 2>&1 &
  local launcher=$! ranks=() notes=() rank
  for ((i = 0; i < 600; ++i)); do
    mapfile -t ranks < <(pgrep -P "$launcher" || true)
    notes=()
    for rank in "${ranks[@]}"; do notes+=($(compgen -G "/dev/shm/lamina-*-$rank" || true)); done
    ((${#notes[@]} < 2)) && kill -0 "$launcher" 2>/dev/null || break
    sleep 0.1
  done
  own=("$launcher" "${ranks[@]}")
  processes+=("${own[@]}")
  ((${#notes[@]} == 2)) || { echo "$1: no notes of two ranks"; cat "$temp/$1"; exit 1; }
  left=("${notes[@]}" $(cut -d' ' -f2- "${notes[@]}" | sort -u))
  echo "$1: ${left[*]}"
}
there() { for f in "$@"; do [[ ! -e $f ]] || echo "$f"; done; }
# Beside a rank that takes memory as it gets ready to join, which has a lock for that.
next_start() {
  flock -s /dev/shm mpirun -n 2 "$program" --fail usage >"$temp/next" 2>&1 || true
}

job killed
job living
[[ $(there "${killed_left[@]}" | wc -l) == "${#killed_left[@]}" ]] ||
  { echo "a job has less in memory than expected"; exit 1; }
kill -9 "${killed_processes[@]}"
for ((i = 0; i < 100; ++i)); do
  kill -0 "${killed_processes[@]}" 2>/dev/null || break
  sleep 0.1
done
next_start  # unless somebody else's on this machine came first
[[ -z $(there "${killed_left[@]}") ]] ||
  { echo "still there:"; there "${killed_left[@]}"; cat "$temp/next"; exit 1; }
[[ $(there "${living_left[@]}" "$foreign" | wc -l) == $((${#living_left[@]} + 1)) ]] ||
  { echo "of a job that lives, or of nobody's, there is only:"; there "${living_left[@]}" "$foreign"
    exit 1; }
kill -0 "${living_processes[@]}" || { echo "the other job died"; cat "$temp/living"; exit 1; }

# The launcher lives: it tidies up itself, and its folder is not ours to remove.
kill -9 "${living_processes[1]}" "${living_processes[2]}"
wait "${living_processes[0]}" || true
next_start
[[ -z $(there "${living_left[@]}") ]] || { echo "still there:"; there "${living_left[@]}"; exit 1; }
