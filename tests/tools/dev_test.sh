#!/usr/bin/env bash
# ./dev with stand-ins for the programs that it calls: a step that fails makes it fail and is shown, and
# ./dev test ends with ctest's closing lines.
#
#   dev_test.sh DEV
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: $0 DEV" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$1" "$work/dev"
mkdir -p "$work/bin" "$work/build"/{one,two} "$work/tests"
cp "$(dirname "$1")/tests/run.py" "$work/tests"
failures=0

fail() {
  echo "FAIL: $*" >&2
  failures=$((failures + 1))
}

# stand_in NAME: a program that reads what it does from standard input.
stand_in() {
  { echo '#!/usr/bin/env bash'; cat; } >"$work/bin/$1"
  chmod +x "$work/bin/$1"
}

stand_in dpkg-query <<<'shift 2; printf "%s installed\n" "$@"'
stand_in cmake <<<'[[ " $* " != *" $BREAKS "* ]]'
stand_in ctest <<'TEXT'
echo "ctest $*" >>calls
cat <<LOG
    Start 1: good
1/2 Test #1: good .............................   Passed    0.01 sec
2/2 Test #2: maybe ............................ ${BREAKS/ctest/***Failed}    0.01 sec
why it failed

99% tests passed, x tests failed out of 2

a    =   0.01 sec*proc (1 test)
b    =   0.01 sec*proc (1 test)
c    =   0.01 sec*proc (1 test)
d    =   0.01 sec*proc (1 test)

Total Test time (real) =   0.01 sec
LOG
[ "$BREAKS" != ctest ]
TEXT

# dev BREAKS ARGUMENT...: runs ./dev where the program or word BREAKS fails; what it said is in $said.
dev() {
  local code=0
  said=$(BREAKS=$1 PATH=$work/bin:$PATH bash "$work/dev" "${@:2}" 2>&1) || code=$?
  return $code
}

dev nothing test one two || fail "a good run failed: $said"
[ "$(grep -c '^99% tests passed' <<<"$said")" -eq 2 ] || fail "closing lines of two presets: $said"
grep -q '^== test two: [0-9]* s$' <<<"$said" || fail "no time: $said"
grep -q '^the 4 slowest of 4 tests:$' <<<"$said" || fail "no slowest tests: $said"
grep -q '^ *0.0 s  two: good$' <<<"$said" || fail "no time of a test: $said"
[[ $(tail -n 1 <<<"$said") =~ ^build\ one:\ [0-9]+\ s\;.*\;\ in\ all\ [0-9]+\ s$ ]] || fail "the end: $said"
jobs=$(($(nproc) + 1))
[ "$(cat "$work/calls")" = "$(printf "ctest --preset %s --parallel $jobs -LE long\n" one two)" ] || fail "calls: $(cat "$work/calls")"
rm "$work/calls"
dev nothing test --all two || fail "the long suite failed: $said"
[ "$(cat "$work/calls")" = "ctest --preset two --parallel $jobs" ] || fail "the long suite leaves tests out: $(cat "$work/calls")"

dev ctest test one two && fail "tests failed and nobody noticed: $said"
grep -q 'why it failed' <<<"$said" || fail "the failing test's output is missing: $said"
grep -q ' Passed ' <<<"$said" && fail "tests that passed hide those that failed: $said"
grep -q 'test two' <<<"$said" && fail "went on after a failure: $said"

for breaks in --preset --build; do
  dev $breaks test one && fail "cmake $breaks failed and nobody noticed: $said"
  grep -q '== test' <<<"$said" && fail "tested what was not built: $said"
  dev $breaks build && fail "build: cmake $breaks failed and nobody noticed: $said"
done
mkdir -p "$work/build/release/bin"
stand_in tarpon-sim <<'TEXT'
while [ "$1" != --failures ]; do shift; done
echo "the rest: ${*:3}"
echo "seed 120: 2 ranks" >"$2"
[ "$BREAKS" != seed ]
TEXT
mv "$work/bin/tarpon-sim" "$work/build/release/bin/"
dev nothing sim --seeds 250 --jobs 2 || fail "good seeds failed: $said"
grep -q '^the rest: --seeds 250 --jobs 2$' <<<"$said" || fail "arguments are not passed on: $said"
dev seed sim && fail "a broken promise and nobody noticed: $said"
grep -q '^failed seeds: build/sim/failed.txt$' <<<"$said" || fail "failing seeds: $said"

mkdir -p "$work/tests/fuzz" "$work/build/fuzz/bin"
cp "$(dirname "$1")/tests/fuzz/fuzz.sh" "$work/tests/fuzz"
printf 'tarpon_fuzz(one a.cc)\ntarpon_fuzz(two)\n' >"$work/tests/fuzz/CMakeLists.txt"
for target in one two; do
  echo "// What $target reads." >"$work/tests/fuzz/$target.cc"
  stand_in fuzz_$target <<'TEXT'
echo "#7	DONE   cov: 3 ft: 4 corp: 1/1b"
echo "stat::number_of_executed_units: 7"
name=$(basename "$0")
[ "$BREAKS" != "${name#fuzz_}" ] || { echo "broken promise: of $name"; exit 77; }
TEXT
  mv "$work/bin/fuzz_$target" "$work/build/fuzz/bin/"
done
dev nothing fuzz --seconds 1 || fail "targets that find nothing failed: $said"
grep -q '^two: 7 runs, 3 edges, 4 features, nothing found$' <<<"$said" || fail "closing line: $said"
dev one fuzz --seconds 1 && fail "a finding and nobody noticed: $said"
grep -q '^one: FOUND something' <<<"$said" || fail "the finding's target is missing: $said"
grep -q '^broken promise: of fuzz_one$' <<<"$said" || fail "what was found is missing: $said"
grep -q '^two: 7 runs' <<<"$said" || fail "the targets after a finding did not run: $said"
dev one fuzz two --seconds 1 || fail "a target that was not asked for ran: $said"
dev nothing fuzz --help && grep -q '^  two  *What two reads.$' <<<"$said" || fail "list of targets: $said"
dev nothing fuzz three && fail "an unknown target was accepted: $said"

dev nothing bogus && fail "an unknown command was accepted"

[ "$failures" -eq 0 ] && echo "a step that fails is noticed"
exit "$((failures > 0))"
