#!/usr/bin/env bash
# Nothing of one machine or one moment stays in the sources: absolute paths, half-done work, stray
# files, lines past 100 columns.
set -euo pipefail
cd "$LAMINA_SOURCE"
files=$(git ls-files 2>/dev/null | grep -v '^tests/checks/leftovers\.sh$\|^LICENSE$' ||
  find . -type f -not -path './.git/*' -not -path './build*' -not -name leftovers.sh -not -name LICENSE)
bad=0
forbid() {  # forbid WHY REGEX FILES...
  local why=$1 regex=$2
  shift 2
  (($#)) || return 0
  if grep -nIE -- "$regex" "$@" /dev/null; then
    echo "^ $why"
    bad=1
  fi
}
text=() code=()
while IFS= read -r file; do
  [[ -f $file ]] || continue
  [[ $file =~ \.(png|svg|jpg|gz|bin)$ ]] || text+=("$file")
  [[ $file =~ \.(cpp|hpp|cu|cmake|sh|py)$|CMakeLists\.txt$ ]] && code+=("$file")
done <<<"$files"

forbid "a path of one machine" '(^|[^[:alnum:]_./-])/(work|home|root|tmp/build)/' "${text[@]}"
forbid "a mark of unfinished work" '\b(TODO|FIXME|XXX|HACK)\b|<{7} |>{7} ' "${text[@]}"
# The expected tables of a wide terminal stand as they are printed.
narrow=()
for file in "${code[@]}"; do [[ $file == tests/unit/profile_table.cpp ]] || narrow+=("$file"); done
forbid "a line past 100 columns" '^.{101}' "${narrow[@]}"
for file in "${text[@]}"; do  # prose, too: not tables, nor what a program printed
  [[ $file == *.md ]] || continue
  sed -E '/^ *```/,/^ *```/d; /^\|/d' "$file" | LC_ALL=C.UTF-8 grep -E '^.{101}' &&
    { echo "^ $file: a line past 100 columns"; bad=1; }
done
forbid "a tab" $'\t' "${code[@]}"
forbid "a trailing blank" '[[:blank:]]$' "${code[@]}"
stray=$(grep -E '(^|/)(build[^/]*/|.*\.(orig|rej|o|a|swp|pyc))$' <<<"$files" || true)
[[ -z $stray ]] || { echo "stray files: $stray"; bad=1; }
for file in "${code[@]}"; do
  first=$(sed '/^#!/d; q' "$file")
  [[ $first == //* || $first == '#'* || $first == '"""'* ]] ||
    { echo "$file: the first line does not say what the file is for"; bad=1; }
done
exit $bad
