#!/usr/bin/env bash
# Builds the wheel of tarpon_torch around a libtarpon.so.0, and prints its path.
#
#   build_wheel.sh LIBRARY VERSION DIRECTORY      the wheel goes to DIRECTORY
#
# Needs /usr/bin/python3 with setuptools and wheel.
set -euo pipefail
[ $# -eq 3 ] || { echo "usage: $0 LIBRARY VERSION DIRECTORY" >&2; exit 2; }
library=$1 version=$2 directory=$(mkdir -p "$3" && realpath "$3")
source=$(mktemp -d)
trap 'rm -rf "$source"' EXIT
# setup.py writes beside itself.
cp -r "$(dirname "${BASH_SOURCE[0]}")/." "$source"
cp "$library" "$source/tarpon_torch/libtarpon.so.0"
(cd "$source" && TARPON_VERSION=$version /usr/bin/python3 setup.py --quiet bdist_wheel --dist-dir "$directory")
ls "$directory"/tarpon_torch-"$version"-*.whl
