#!/usr/bin/env bash
# Judges seeds that change with the commit, so that days of changes see many seeds. Says which.
#
#   seeds.sh SOURCE KIND_BASE COUNT JUDGE_SEEDS
#
# KIND_BASE: where the seeds of a kind begin (tools/simulation/README.md); 10,000,000 belong to it. Without
# a commit (a source archive) the first seed is KIND_BASE itself.
set -euo pipefail
[ $# -eq 4 ] || { echo "usage: $0 SOURCE KIND_BASE COUNT JUDGE_SEEDS" >&2; exit 2; }
first=$2
commit=$(git -C "$1" -c safe.directory='*' rev-parse HEAD 2>/dev/null) || commit=
[ -z "$commit" ] || first=$((first + 16#${commit:0:12} % 999 * 10000))
echo "commit ${commit:-unknown}; repeat: tarpon-sim seeds --seed $first --seeds $3"
exec "$4" "$first" "$3"
