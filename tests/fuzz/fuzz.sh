#!/usr/bin/env bash
# Runs the fuzz targets of a build of the preset `fuzz`, one after another.
#
#   fuzz.sh BUILD [TARGET...] [--seconds N] [--merge]
#
# New inputs go to BUILD/corpus/TARGET, findings to BUILD/findings. --merge moves what is new to
# tests/fuzz/corpus/TARGET.
set -euo pipefail
build=$(realpath "$1")
shift
here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")

targets() {
  sed -n 's/^tarpon_fuzz(\([a-z_]*\).*/\1/p' "$here/CMakeLists.txt"
}

usage() {
  echo "usage: ./dev fuzz [TARGET...] [--seconds N] [--merge] - runs fuzz targets with libFuzzer, each for N"
  echo "seconds (default: 60), all of them without TARGET; ends with 1 where one finds something, whose"
  echo "input is left in build/fuzz/findings. --merge runs nothing: it adds what runs have found that is new"
  echo "to tests/fuzz/corpus"
  echo "targets:"
  local target
  for target in $(targets); do
    printf '  %-18s %s\n' "$target" "$(sed -n '1s|^// ||p' "$here/$target.cc")"
  done
}

# stat_of LOG NAME: a number of libFuzzer's closing statistics; 0 where it has none.
stat_of() {
  local value
  value=$(sed -n "s/^stat::$2: *//p" "$1" | tail -n 1)
  echo "${value:-0}"
}

# watch PID LOG TARGET: prints the last progress line every 10 seconds while PID runs.
watch() {
  local elapsed=0
  while kill -0 "$1" 2>/dev/null; do
    sleep 1
    elapsed=$((elapsed + 1))
    [ $((elapsed % 10)) -ne 0 ] || echo "$3: ${elapsed} s: $(grep '^#[0-9]' "$2" | tail -n 1)"
  done
}

# run TARGET: ends with 1 when it finds something, or a signal ends it.
run() {
  local target=$1 code=0 last pid
  local log=$build/findings/$target.log corpus=$build/corpus/$target
  mkdir -p "$build/findings" "$corpus"
  "$build/bin/fuzz_$target" -max_total_time="$seconds" -print_final_stats=1 -timeout=10 -max_len=4096 \
    -len_control=20 -entropic=0 -rss_limit_mb=2048 -artifact_prefix="$build/findings/$target-" "$corpus" "$here/corpus/$target" \
    >"$log" 2>&1 &
  pid=$!
  trap 'kill $pid 2>/dev/null' EXIT
  watch $pid "$log" "$target"
  wait $pid || code=$?
  trap - EXIT
  last=$(grep '^#[0-9].* cov: ' "$log" | tail -n 1 | sed 's/.* cov: \([0-9]*\) ft: \([0-9]*\).*/\1 edges, \2 features/')
  if [ $code -eq 0 ]; then
    echo "$target: $(stat_of "$log" number_of_executed_units) runs, ${last:-no coverage}, nothing found"
    return 0
  fi
  if grep -q 'libFuzzer: run interrupted' "$log"; then
    echo "$target: ended by a signal after $(stat_of "$log" number_of_executed_units) runs, ${last:-no coverage}, nothing found"
    return 1
  fi
  grep -E '^broken promise|^SUMMARY|^==[0-9]*==ERROR|ERROR: libFuzzer' "$log" | head -n 4
  last=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
  echo "$target: FOUND something (log: $log); again: $build/bin/fuzz_$target ${last:-}"
  return 1
}

# hashed DIRECTORY: the inputs in it that a merge put there, named by their SHA-1; not those that a person named.
hashed() {
  find "$1" -type f -regextype egrep -regex '.*/[0-9a-f]{40}'
}

# merge TARGET: the corpus becomes its named inputs and the fewest others that reach the same edges.
merge() {
  local target=$1 before
  local corpus=$here/corpus/$target merged=$build/merged/$target
  rm -rf "$merged"
  mkdir -p "$build/corpus/$target" "$build/findings" "$corpus" "$merged"
  before=$(find "$corpus" -type f | wc -l)
  cp "$corpus"/* "$merged"
  hashed "$merged" | xargs -r rm
  "$build/bin/fuzz_$target" -set_cover_merge=1 -use_counters=0 -max_len=4096 "$merged" "$corpus" \
    "$build/corpus/$target" >"$build/findings/$target.merge.log" 2>&1 ||
    { tail -n 5 "$build/findings/$target.merge.log" >&2; return 1; }
  hashed "$corpus" | xargs -r rm
  hashed "$merged" | xargs -r cp -t "$corpus"
  echo "$target: $before inputs in tests/fuzz/corpus/$target before, $(find "$corpus" -type f | wc -l) now"
}

seconds=60
action=run
chosen=()
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) usage; exit ;;
    --merge) action=merge ;;
    --seconds)
      [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || { echo "--seconds ${2:-}: write a number of seconds, e.g. 60" >&2; exit 2; }
      seconds=$2
      shift ;;
    *)
      targets | grep -qx -- "$1" ||
        { echo "$1: no such target; the targets are $(targets | paste -sd' ')" >&2; exit 2; }
      chosen+=("$1") ;;
  esac
  shift
done
[ ${#chosen[@]} -gt 0 ] || mapfile -t chosen < <(targets)
found=0
for target in "${chosen[@]}"; do
  $action "$target" || found=1
done
exit $found
