#!/usr/bin/env bash
# The shared library exports the functions of tarpon.h and nothing else, and the C program uses them all.
#
#   symbols_test.sh NM LIBRARY HEADER C_PROGRAM
set -euo pipefail
[ $# -eq 4 ] || { echo "usage: $0 NM LIBRARY HEADER C_PROGRAM" >&2; exit 2; }
nm=$1 library=$2 header=$3 program=$4

# A declaration begins with TARPON_API and names its function before the first parenthesis.
declared=$(sed -n 's/^TARPON_API [^(]*\(tarpon_[a-z_]*\)(.*/\1/p' "$header" | LC_ALL=C sort)
# Type A: the version of the symbols itself.
exported=$("$nm" -D --defined-only --format=posix "$library" |
  awk '$2 != "A" { sub(/@.*/, "", $1); print $1 }' | LC_ALL=C sort)
[ -n "$declared" ] || { echo "FAIL: $header declares nothing" >&2; exit 1; }
if ! diff <(echo "$declared") <(echo "$exported"); then
  echo "FAIL: < declared in the header, > exported by the library" >&2
  exit 1
fi
failures=0
for name in $declared; do
  grep -q "\b$name(" "$program" || { echo "FAIL: the C program does not call $name" >&2; failures=1; }
done
[ "$failures" -eq 0 ] || exit 1
echo "$(wc -l <<<"$declared") functions are declared, exported and called"
