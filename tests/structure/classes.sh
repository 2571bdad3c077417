#!/usr/bin/env bash
# Checks that the methods of each class stand in one source; prints CLASS: FILE... for each that
# breaks it. Tests are left out: they have fixtures of equal names.
#
#   classes.sh ROOT
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: $0 ROOT" >&2; exit 2; }
cd "$1"

mapfile -t files < <(find bpf xdp codec transport collectives tools -type f -name '*.cc' | LC_ALL=C sort)
[ ${#files[@]} -gt 0 ] || { echo "$1: no source files" >&2; exit 2; }

# A definition begins in the first column: a type or none, then CLASS::METHOD( or CLASS::~CLASS(.
awk '
  /^[A-Za-z].*[A-Za-z0-9_]+::~?[A-Za-z_0-9]+\(/ && !/;[ ]*$/ && !/^(using|return|#|static_assert)/ {
    line = $0
    sub(/\(.*/, "", line)               # up to the arguments
    sub(/^.*[ &*]/, "", line)           # without the type
    if (!match(line, /^([A-Z][A-Za-z0-9]*::)+~?[A-Za-z_0-9]+$/)) next
    sub(/::[^:]*$/, "", line)
    if (!((line, FILENAME) in seen)) { seen[line, FILENAME]; count[line]++; places[line] = places[line] " " FILENAME }
  }
  END {
    for (class in count) if (count[class] > 1) { print class ":" places[class]; bad = 1 }
    exit bad
  }' "${files[@]}" | LC_ALL=C sort
