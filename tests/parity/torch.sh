#!/usr/bin/env bash
# torch.sh DIR: makes a virtual environment with PyTorch in DIR, for processors alone, from the
# Python package index alone. PyTorch's wheel for Linux on x86-64 there is linked against CUDA, of
# which it would bring 3 GB. It is installed without; in the place of each library that is missing
# comes an empty one, and whoever calls into it is told that there is no driver.
set -euo pipefail
dir=$1
python=$dir/bin/python

works() { "$python" -c 'import numpy, safetensors, torch; torch.ones(2, 2) @ torch.ones(2, 2)'; }

# The libraries that PyTorch's ask for and that CUDA has.
cuda_libraries() {
  readelf -d "$1"/*.so 2>/dev/null | sed -n 's/.*(NEEDED).*\[\(lib\(cu\|nccl\|nv\)[^]]*\)\]/\1/p' |
    sort -u
}

# stand_in DIR: makes them, where they are not in DIR, next to PyTorch's.
stand_in() {
  local lib=$1 work names name
  work=$(mktemp -d)
  nm -D --defined-only "$lib"/*.so* 2>/dev/null | awk 'NF == 3 { sub(/@.*/, "", $3); print $3 }' |
    sort -u >"$work/defined"
  nm -D --undefined-only "$lib"/*.so 2>/dev/null |
    awk '$1 == "U" { sub(/@.*/, "", $2); if ($2 ~ /^_*(cu|nccl|nv)/) print $2 }' |
    sort -u >"$work/undefined"
  # All names are one function: 35 is cudaErrorInsufficientDriver.
  {
    echo '.text'
    comm -23 "$work/undefined" "$work/defined" |
      sed 's/.*/.globl &\n.type &, @function\n&:/'
    printf 'mov $35, %%eax\nret\n.section .note.GNU-stack, "", @progbits\n'
  } >"$work/names.s"
  "${CC:-cc}" -shared -nostdlib -o "$lib/libnocuda.so" -Wl,-soname,libnocuda.so "$work/names.s"
  # The loader wants versions of a symbol in a library that has the name it looks for, so that one
  # has none: it only leads on to libnocuda.so.
  names=$(cuda_libraries "$lib")
  for name in $names; do
    [[ -e $lib/$name ]] || "${CC:-cc}" -shared -nostdlib -o "$lib/$name" -Wl,--no-as-needed \
      -Wl,-rpath,'$ORIGIN' -Wl,-z,noexecstack "$lib/libnocuda.so"
  done
  rm -r "$work"
}

if [[ -x $python ]] && works 2>/dev/null; then exit 0; fi
# What is not of this script is not its to remove.
if [[ -n $(ls -A "$dir" 2>/dev/null) && ! -e $dir/made-by-torch.sh ]]; then
  echo "$dir: is there, but PyTorch does not work in it: expected a folder that this may make" >&2
  exit 1
fi
echo "making $dir: PyTorch from the Python package index, some 600 MB"
rm -rf "$dir"
mkdir -p "$dir"
touch "$dir/made-by-torch.sh"
python3 -m venv "$dir"
# PyTorch, and what it imports of Python: all by name, as --no-deps wants.
"$python" -m pip --disable-pip-version-check -q install --no-cache-dir --no-deps \
  torch filelock typing-extensions sympy mpmath networkx jinja2 MarkupSafe fsspec setuptools \
  numpy safetensors
works 2>/dev/null || stand_in "$(echo "$dir"/lib/python3*/site-packages/torch/lib)"
works
