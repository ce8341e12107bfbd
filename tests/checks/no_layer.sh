#!/usr/bin/env bash
# What is no type of layer cannot be added to a network; the compiler says so in three lines each
# time: where it is, who asked for it, and what was expected instead.
set -euo pipefail
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
cat >"$temp/program.cpp" <<'END'
#include <lamina/layers/relu.hpp>
#include <lamina/network/network.hpp>
struct NoLayer {};
struct NoOptions : lamina::Layer {};
int main() {
  lamina::Network net({.c = 3, .h = 8, .w = 8});
  const lamina::Node x = net.add<lamina::ReLU>({}, "first");
#ifdef WRONG
  net.add<NoLayer>();
  x.add<NoOptions>({}, "second").add<lamina::ReLU>();
  net.join<int>({x, x});
#endif
}
END
compile() {
  CCACHE_DISABLE=1 "$LAMINA_CXX" -std=c++20 -fsyntax-only -fno-diagnostics-show-caret \
    -I"$LAMINA_SOURCE/include" "$@" "$temp/program.cpp"
}
compile || { echo "the program without mistakes does not compile"; exit 1; }
if compile -DWRONG 2>"$temp/said"; then
  echo "what is no layer was added"
  exit 1
fi
errors=$(grep -c "error: .*expected a class derived from lamina::Layer, with its Options" \
  "$temp/said" || true)
# Not counted: the way through the headers, and notes.
lines=$(grep -cvE '^In file included|^ +from |note:|errors? generated' "$temp/said" || true)
if [[ $errors != 3 ]] || ((lines > 3 * errors)); then
  cat "$temp/said"
  echo "^ $lines lines, $errors of which say what was expected; expected 9 and 3"
  exit 1
fi
echo "3 mistakes, $lines lines"
