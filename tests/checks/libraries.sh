#!/usr/bin/env bash
# Nothing is linked with the C++ interface of MPI, which its standard has given up and not every
# machine has. Many linkers leave out what is not used, but not all do: so the commands are read.
set -euo pipefail
if [[ -e $LAMINA_BUILD/build.ninja ]]; then
  links=$(ninja -C "$LAMINA_BUILD" -t commands | grep -- ' -o bin/' || true)
else
  links=$(find "$LAMINA_BUILD" -name link.txt -exec cat {} +)
fi
[[ -n $links ]] || { echo "no programs are linked in $LAMINA_BUILD"; exit 1; }
if grep -oE -- '[^ ]*(mpi_?cxx|mpi\+\+)[^ ]*' <<<"$links" | sort | uniq -c | grep .; then
  echo "^ programs are linked with it"
  exit 1
fi
echo "$(wc -l <<<"$links") programs are linked without the C++ interface of MPI"
