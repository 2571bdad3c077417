#!/usr/bin/env bash
# Builds the wheel, unpacks it as pip would, and runs the example from it: two ranks under torchrun.
#
#   wheel_test.sh LIBRARY VERSION
set -euo pipefail
[ $# -eq 2 ] || { echo "usage: $0 LIBRARY VERSION" >&2; exit 2; }
tools=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../../../tools/torch")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
wheel=$("$tools/build_wheel.sh" "$1" "$2" "$work")
[ "$(basename "$wheel")" = "tarpon_torch-$2-py3-none-linux_x86_64.whl" ] ||
  { echo "FAIL: the wheel is called $(basename "$wheel")" >&2; exit 1; }
/usr/bin/python3 -m zipfile -e "$wheel" "$work/site"
for needed in torch numpy; do
  grep -q "^Requires-Dist: $needed" "$work"/site/tarpon_torch-*.dist-info/METADATA ||
    { echo "FAIL: the wheel does not require $needed" >&2; exit 1; }
done
cp "$tools/example.py" "$work"
cd "$work"
# Nothing of the source tree, and no other library.
version=$(env -u TARPON_LIBRARY PYTHONPATH="$work/site" PYTHONDONTWRITEBYTECODE=1 \
  /usr/bin/python3 -c 'import tarpon_torch; print(tarpon_torch.__version__)')
[ "$version" = "$2" ] || { echo "FAIL: __version__ is $version" >&2; exit 1; }
env -u TARPON_LIBRARY PYTHONPATH="$work/site" PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 \
  GLOO_SOCKET_IFNAME=lo timeout 100 /usr/bin/python3 -m torch.distributed.run --nproc_per_node 2 \
  -r 1 -t 1 example.py >out 2>&1 || { cat out >&2; echo "FAIL: the example ended badly" >&2; exit 1; }
cat out
grep -q 'all ranks have one model' out || { echo "FAIL: the example did not end well" >&2; exit 1; }
