#!/usr/bin/env bash
# The commit in version.h follows the working tree, and the file stays as it is when nothing changed.
#
#   version_test.sh CMAKE TOOLS_DIR
set -euo pipefail
[ $# -eq 2 ] || { echo "usage: $0 CMAKE TOOLS_DIR" >&2; exit 2; }
cmake=$1 tools=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/tree
mkdir "$tree"

# The configuration of whoever runs this must not count.
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null GIT_CEILING_DIRECTORIES=$work
in_tree() { git -C "$tree" -c user.name=t -c user.email=t@example.org -c commit.gpgsign=false "$@"; }

# expect COMMIT: what version.h then says.
expect() {
  "$cmake" -D SOURCE_DIR="$tree" -D INPUT="$tools/version.h.in" \
    -D OUTPUT="$work/version.h" -P "$tools/cmake/TarponVersion.cmake"
  grep -q "kGitCommit = \"$1\"" "$work/version.h" || { cat "$work/version.h"; echo "FAIL: not $1"; exit 1; }
}

expect unknown
in_tree init -q
echo 1 >"$tree/file"
in_tree add file
in_tree commit -q -m first
first=$(in_tree rev-parse --short=12 HEAD)
expect "$first"
touch -d 2001-01-01 "$work/version.h"
expect "$first"
[ "$(date -r "$work/version.h" +%Y)" = 2001 ] || { echo "FAIL: written again without need"; exit 1; }
echo 2 >"$tree/file"
expect "$first-dirty"
in_tree commit -q -a -m second
expect "$(in_tree rev-parse --short=12 HEAD)"
in_tree tag v9
expect "$(in_tree rev-parse --short=12 HEAD)"
echo "version.h follows the tree"
