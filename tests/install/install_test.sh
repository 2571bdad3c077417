#!/usr/bin/env bash
# Installs a finished build into a temporary prefix and uses it from outside: the tool, each public
# header by itself, find_package(tarpon), pkg-config. Any step that fails fails the test.
#
#   install_test.sh CMAKE BUILD_DIR CXX LIBDIR
set -euo pipefail
[ $# -eq 4 ] || { echo "usage: $0 CMAKE BUILD_DIR CXX LIBDIR" >&2; exit 2; }
cmake=$1 build=$2 cxx=$3 libdir=$4
consumer=$(cd "$(dirname "${BASH_SOURCE[0]}")/consumer" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix

# Moved after installing: nothing may remember where it was.
"$cmake" --install "$build" --prefix "$work/first" >"$work/install.log"
mv "$work/first" "$prefix"
if grep -rlF "$work/first" "$prefix/$libdir/cmake" "$prefix/$libdir/pkgconfig"; then
  echo "FAIL: the files above name the prefix" >&2
  exit 1
fi

echo "== the tool"
"$prefix/bin/tarpon" --version

echo "== each public header by itself"
cd "$prefix/include/tarpon"
find . -name '*.h' | sort | while read -r header; do
  echo "#include \"${header#./}\"" >"$work/alone.cc"
  "$cxx" -std=c++20 -fsyntax-only -Wall -Wextra -Wpedantic -Wconversion -Werror -I. "$work/alone.cc"
done
cd "$work"

# checked NAME PROGRAM: runs two ranks over loopback and compares what they print.
checked() {
  local printed
  printed=$("$2" "$work/$1.address")
  echo "$printed"
  [ "$printed" = "rank 0: 3 3 3 3
rank 1: 3 3 3 3" ] || { echo "FAIL: $1: not the sums that were expected" >&2; exit 1; }
}

echo "== find_package(tarpon)"
"$cmake" -S "$consumer" -B by_cmake -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_PREFIX_PATH="$prefix" \
  -DCMAKE_BUILD_TYPE=Release >cmake.log
"$cmake" --build by_cmake >>cmake.log
checked by_cmake by_cmake/consumer

echo "== pkg-config tarpon"
export PKG_CONFIG_PATH=$prefix/$libdir/pkgconfig
# shellcheck disable=SC2046 # the flags are words
"$cxx" -std=c++20 -O2 "$consumer/consumer.cc" -o by_pkg_config $(pkg-config --cflags --libs tarpon)
checked by_pkg_config ./by_pkg_config
