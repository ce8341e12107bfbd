#!/usr/bin/env bash
# A project uses Lamina as a subdirectory and as an installed package that has been moved; it gets
# the components that it asks for, and needs no library for the others. Asking for a component that
# is not there says so. Licence, pages and examples are installed, too.
set -euo pipefail
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
consumer=$LAMINA_SOURCE/tests/consumer
launcher=()
command -v ccache >/dev/null && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
# The linker is told to keep what is not used, so that it cannot hide a library that nobody needs.
configure=(cmake -G Ninja -S "$consumer" -DCMAKE_CXX_COMPILER="$LAMINA_CXX" "${launcher[@]}"
  -DCMAKE_EXE_LINKER_FLAGS=-Wl,--no-as-needed)

# expect PROGRAM WORDS: what it says that it was linked with
expect() {
  local said
  said=$("${@:3}" "$1")
  echo "$said"
  [[ $said == *"$2"* ]] || { echo "^ expected: $2"; exit 1; }
}
# needs PROGRAM LIBRARY: whether it is linked with that
needs() { readelf -d "$1" | grep -q "NEEDED.*\[$2"; }
has() { grep -q "Lamina_HAS_$1 ON" "$temp"/prefix/lib*/cmake/Lamina/LaminaConfig.cmake; }

echo "== as a subdirectory"
"${configure[@]}" -B "$temp/sub" -DLAMINA_SOURCE="$LAMINA_SOURCE" \
  -DCMAKE_EXPORT_COMPILE_COMMANDS=ON >"$temp/log" || { cat "$temp/log"; exit 1; }
# The library would be compiled as in its own build; so that one's is what programs are linked with.
python3 - "$temp/sub" "$LAMINA_BUILD" <<'END'
import json, os, shlex, sys

def options_of_sources(build):
    found = {}
    for entry in json.load(open(f"{build}/compile_commands.json")):
        words = shlex.split(entry["command"].replace("-isystem ", "-isystem="))
        output = words[words.index("-o") + 1].removeprefix("lamina/")
        library = output.startswith("CMakeFiles/lamina_")
        if library and entry["file"].startswith(os.environ["LAMINA_SOURCE"] + "/src/"):
            options = (w for w in words if w.startswith(("-D", "-I", "-isystem=", "-f", "-m")))
            found[entry["file"]] = sorted(o for o in options if o != "-DNDEBUG")
    return found

own = options_of_sources(sys.argv[2])
sub = options_of_sources(sys.argv[1])
for file, options in sub.items():
    if own.get(file) != options:
        sys.exit(f"{file}: as a subdirectory it gets {options}, otherwise {own.get(file)}")
if len(sub) < 50:
    sys.exit(f"only {len(sub)} sources are compiled")
print(f"{len(sub)} sources, to be compiled alike")
END
cmake --build "$LAMINA_BUILD" | tail -1
ln -s "$LAMINA_BUILD"/liblamina_*.a "$temp/sub/lamina"
for program in consumer only_core; do
  (cd "$temp/sub" &&
    ninja -t commands $program | grep -e "main.cpp.o -c" -e " -o $program " | bash -e)
  "$temp/sub/$program"
done

echo "== installed, then moved"
cmake --install "$LAMINA_BUILD" --prefix "$temp/first" >"$temp/log" || { cat "$temp/log"; exit 1; }
mv "$temp/first" "$temp/prefix"
if grep -rlE "$LAMINA_SOURCE|$LAMINA_BUILD" "$temp"/prefix/lib*/cmake; then
  echo "^ the package names the directory that it was built in"
  exit 1
fi
configure+=(-DCMAKE_PREFIX_PATH="$temp/prefix")
package() {  # package NAME COMPONENTS TARGETS FLAGS...: configures and builds with the package
  "${configure[@]}" -B "$temp/$1" -DCOMPONENTS="$2" "${@:4}" >"$temp/log" 2>&1 ||
    { cat "$temp/log"; exit 1; }
  cmake --build "$temp/$1" --target $3
}

echo "== everything that was built"
package all "" "consumer only_core"
"$temp/all/only_core"
if has ONEDNN; then expect "$temp/all/consumer" "onednn,"; fi
if has MPI; then
  expect "$temp/all/consumer" "rank 1 of 2" mpirun -n 2
  if needs "$temp/all/consumer" libmpi_cxx; then
    echo "the package brings along the C++ interface of MPI"
    exit 1
  fi
fi

echo "== the core, on a machine with neither MPI nor oneDNN"
none=(-DCMAKE_DISABLE_FIND_PACKAGE_{MPI,PlainMPI,OneDNN}=ON)
package core core "consumer only_core" "${none[@]}"
for program in consumer only_core; do
  expect "$temp/core/$program" "reference, MPI: , rank 0 of 1"
  for library in libmpi libdnnl; do
    if needs "$temp/core/$program" $library; then echo "$program needs $library"; exit 1; fi
  done
done
if OMPI_COMM_WORLD_SIZE=2 "$temp/core/consumer" 2>"$temp/log"; then
  echo "without MPI, each rank trained alone"
  exit 1
fi
grep -q "ask find_package() for the component mpi" "$temp/log" || { cat "$temp/log"; exit 1; }

echo "== one of the two"
package fast "core;cpu" consumer "${none[@]:0:2}"
if has ONEDNN; then expect "$temp/fast/consumer" "onednn, MPI: , rank 0 of 1"; fi
package ranks mpi consumer "${none[2]}"
if has MPI; then expect "$temp/ranks/consumer" "reference, MPI: Open MPI"; fi

echo "== components that are not there"
refused() {  # refused COMPONENT MESSAGE FLAGS...
  if "${configure[@]}" -B "$temp/no-$1" -DCOMPONENTS="$1" "${@:3}" >"$temp/log" 2>&1; then
    echo "component $1 was accepted"
    exit 1
  fi
  tr -s ' \n' ' ' <"$temp/log" | grep -F "$2" >/dev/null ||
    { cat "$temp/log"; echo "expected: $2"; exit 1; }
}
refused teapot "'teapot' is no component of Lamina"
if grep -q 'Lamina_HAS_CUDA OFF' "$temp"/prefix/lib*/cmake/Lamina/LaminaConfig.cmake; then
  refused cuda "without the component 'cuda'"
fi
if has MPI; then refused mpi "PlainMPI" "${none[0]}"; fi
if has ONEDNN; then refused cpu "OneDNN" "${none[2]}"; fi

echo "== what else is installed"
doc=$(echo "$temp"/prefix/share/doc/*amina)
for file in LICENSE README.md docs/plans.md examples/custom_layer.cpp; do
  [[ -s $doc/$file ]] || { echo "no $doc/$file"; exit 1; }
done
for page in "$doc"/*.md "$doc"/docs/*.md; do  # links lead to what is installed, headers apart
  links=$(sed '/^ *```/,/^ *```/d' "$page" | grep -oE '[^[]\]\([^)#]+' | cut -c4- || true)
  for link in $links; do
    [[ $link == https:* || $link == *include/* || -e $(dirname "$page")/$link ]] ||
      { echo "$page: no $link"; exit 1; }
  done
done
cmake -G Ninja -S "$doc/examples" -B "$temp/examples" -DCMAKE_CXX_COMPILER="$LAMINA_CXX" \
  "${launcher[@]}" -DCMAKE_PREFIX_PATH="$temp/prefix" >"$temp/log" || { cat "$temp/log"; exit 1; }
cmake --build "$temp/examples" --target split_by_hand
