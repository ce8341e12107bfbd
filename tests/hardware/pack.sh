#!/usr/bin/env bash
# pack.sh FILE PROGRAM...: makes an archive with which `./dev gpu-check` needs no network and
# nothing of Debian's: the programs with the libraries that they are linked with, and in usr/ what
# it takes to build them anew.
set -euo pipefail
file=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
dir=$work/pack
packages=(libeigen3-dev libcli11-dev nlohmann-json3-dev catch2 libbenchmark-dev libbenchmark1debian
  libpng-dev libpng16-16 libturbojpeg0-dev libturbojpeg0 zlib1g-dev zlib1g)

mkdir -p "$dir"/{bin,lib,usr}
for program in "$@"; do strip -o "$dir/bin/$(basename "$program")" "$program"; done
# Any system that is not older has the C and C++ libraries.
ldd "$@" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
  grep -vE '/(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s)\.so' |
  while read -r library; do cp -L "$library" "$dir/lib/"; done

(cd "$work" && apt-get -o APT::Sandbox::User=root download -qq "${packages[@]}")
for package in "$work"/*.deb; do dpkg-deb -x "$package" "$work/tree"; done
[[ ! -d $work/tree/lib ]] || cp -a "$work/tree/lib/." "$work/tree/usr/lib/"
rm -rf "$work"/tree/usr/{bin,share/doc,share/man,share/lintian,include/eigen3/unsupported}
# Links become copies: some of Debian's lead to /, and not all that carries folders keeps links.
find "$work/tree/usr" -type l -lname '/*' | while read -r link; do
  ln -sfn "$work/tree$(readlink "$link")" "$link"
done
find "$work/tree/usr" -xtype l -delete
cp -rL "$work/tree/usr/." "$dir/usr/"

here=$(dirname "${BASH_SOURCE[0]}")
sources=$(PYTHONPATH=$here python3 -B -c 'import check; print(check.sources_hash())')
cat >"$dir/manifest.json" <<JSON
{
 "sources": "$sources",
 "made": "$(date -u +%Y-%m-%dT%H:%M:%SZ)",
 "on": "$(. /etc/os-release && echo "$PRETTY_NAME"), $(ldd --version | sed -n '1s/.* /glibc /p')"
}
JSON
tar -C "$dir" -czf "$file" .
du -h "$file"
