#!/usr/bin/env bash
# Includes go down only: a header may include its own floor's folder and lower floors, never an SDK,
# and asks about no built-in component. An interface does not include what is compiled once. First
# the check is tried on planted violations.
set -euo pipefail
cd "$LAMINA_SOURCE"

# scan ROOT: prints one line per violation under ROOT/include/lamina.
scan() {
  (cd "$1/include/lamina" && find . -name '*.hpp' | sed 's,^\./,,' | sort | xargs awk '
    BEGIN {
      split("base 0 tensor 1 cost 2 kernels 3 comm 3 layers 4 network 5 profile 6 plan 7 " \
            "train 8", f)
      for (i = 1; i in f; i += 2) floor[f[i]] = f[i + 1]
      sdk = "<(mpi|nccl|cud|cublas|dnnl|oneapi|omp|nlohmann|CLI|png|zlib|jpeg|turbojpeg|ft2build)"
    }
    function bad(why) { printf "%s:%d: %s\n", FILENAME, FNR, why }
    FNR == 1 {
      own = FILENAME ~ "/" ? substr(FILENAME, 1, index(FILENAME, "/") - 1) : "lamina"
      if (own != "lamina" && !(own in floor)) bad("folder " own " is on no floor")
    }
    /^[ \t]*#[ \t]*(el)?if.*LAMINA_HAS_/ { bad("asks what is built in") }
    /^[ \t]*#[ \t]*include[ \t]*"/ { bad("include <lamina/...>, not \"...\"") }
    /^[ \t]*#[ \t]*include[ \t]*</ {
      file = $0
      sub(/^[^<]*</, "<", file)
      if (file ~ sdk) bad("SDK header " file)
      if (file ~ /^<(Eigen|unsupported)\// && FILENAME !~ /^kernels\/reference/)
        bad("Eigen outside of kernels/reference*.hpp")
      if (file ~ /^<lamina\// && own != "lamina") {
        split(file, part, "/")
        if (part[2] ~ />/) bad("includes the umbrella")
        else if (!(part[2] in floor)) bad("no such floor: " file)
        else if (part[2] != own && floor[part[2]] >= floor[own])
          bad(own " may not include " part[2])
      }
      if (file ~ /\/impl(\/|\.hpp>)/ && FILENAME !~ /(^|\/)(impl|header_only)\.hpp$/)
        bad("includes what is compiled once: " file)
    }')
}

# plant FILE LINE FINDINGS: of a tree with this one line there must be so many findings.
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
plant() {
  local file=$temp/include/lamina/$1
  rm -rf "$temp/include"
  mkdir -p "$(dirname "$file")"
  printf '%s\n' '#pragma once' "$2" >"$file"
  [[ $(scan "$temp" | wc -l) == "$3" ]] ||
    { echo "self-test: $1: $2: expected $3 finding(s)"; exit 1; }
}
plant base/a.hpp '#include <lamina/tensor/shape.hpp>' 1
plant kernels/a.hpp '#include <lamina/comm/world.hpp>' 1
plant comm/a.hpp '  # include <lamina/kernels/backend.hpp>' 1
plant plan/a.hpp '#include <lamina/lamina.hpp>' 1
plant cost/a.hpp '#include <lamina/kernels/backend.hpp>' 1
plant cost/a.hpp '#include <lamina/comm/communicator.hpp>' 1
plant cost/a.hpp '#include <lamina/layers/site.hpp>' 1
plant cost/impl/a.hpp '#include <lamina/comm/communicator.hpp>' 1
plant cost/impl/a.hpp '#include <lamina/cost/blocks.hpp>' 0
plant layers/impl/a.hpp '#include <lamina/comm/communicator.hpp>' 0
plant layers/a.hpp '#include <lamina/layers/impl/conv2d.hpp>' 1
plant layers/a.hpp '#include <lamina/cost/impl.hpp>' 1
plant layers/impl.hpp '#include <lamina/layers/impl/conv2d.hpp>' 0
plant layers/impl/a.hpp '#include <lamina/layers/impl/conv2d.hpp>' 1
plant comm/a.hpp '#include <lamina/cost/collective.hpp>' 0
plant comm/a.hpp '#include <mpi.h>' 1
plant layers/a.hpp '#include <Eigen/Core>' 1
plant train/deep/a.hpp '#include "shape.hpp"' 1
plant attic/a.hpp '// nothing' 1
plant layers/a.hpp '#if defined(LAMINA_HAS_MPI)' 1
plant kernels/reference.hpp '#include <Eigen/Core>' 0
plant train/deep/a.hpp '#include <lamina/layers/layer.hpp>' 0
plant lamina.hpp '#include <lamina/train/trainer.hpp>' 0

found=$(scan .)
[[ -z $found ]] || { echo "$found"; exit 1; }
echo "$(find include -name '*.hpp' | wc -l) headers include downwards only"
