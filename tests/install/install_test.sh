#!/usr/bin/env bash
# Installs a finished build into a temporary prefix and uses it from outside: the tool with its manual
# pages and completion, each public header by itself, the examples by find_package(tarpon) and by
# pkg-config, in C and in C++, and a program of Gloo. Any step that fails fails the test.
#
#   install_test.sh CMAKE BUILD_DIR CC CXX LIBDIR DOCDIR MANDIR DATADIR
set -euo pipefail
here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
[ $# -eq 8 ] ||
  { echo "usage: $0 CMAKE BUILD_DIR CC CXX LIBDIR DOCDIR MANDIR DATADIR" >&2; exit 2; }
cmake=$1 build=$2 cc=$3 cxx=$4 libdir=$5 docdir=$6 mandir=$7 datadir=$8
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
prefix=$work/prefix
examples=$prefix/$docdir/examples

# Moved after installing: nothing may remember where it was.
"$cmake" --install "$build" --prefix "$work/first" >"$work/install.log"
mv "$work/first" "$prefix"
if grep -rlF "$work/first" "$prefix/$libdir/cmake" "$prefix/$libdir/pkgconfig"; then
  echo "FAIL: the files above name the prefix" >&2
  exit 1
fi

echo "== the tool"
"$prefix/bin/tarpon" --version

echo "== manual pages and completion"
man=$prefix/$mandir/man1
# Each command has its page: those that the program's own page names.
pages=$(sed -n 's/^\.BR tarpon\\-\([a-z]*\) (1).*/\1/p' "$man/tarpon.1")
[ "$(wc -w <<<"$pages")" -ge 9 ] || { echo "FAIL: tarpon.1 names few commands: $pages" >&2; exit 1; }
for page in $pages xdp-load flight; do
  head -1 "$man/tarpon-$page.1" | grep -q '^\.TH TARPON' ||
    { echo "FAIL: tarpon-$page.1 is no manual page" >&2; exit 1; }
done
if command -v man >/dev/null; then
  for page in "$man"/*.1; do
    said=$(MANROFFSEQ='' man --warnings -l "$page" 2>&1 >"$work/page.txt")
    [ -z "$said" ] || { echo "FAIL: $page: $said" >&2; exit 1; }
    grep -q SYNOPSIS "$work/page.txt" || { echo "FAIL: $page has no synopsis" >&2; exit 1; }
  done
else
  echo "no man here: the pages are not formatted"
fi
bash -n "$prefix/$datadir/bash-completion/completions/tarpon"

echo "== the pages lead to each other"
(
  cd "$prefix/$docdir"
  find . -name '*.md' | while read -r page; do
    { grep -o '](\([^)#]*\)' "$page" || true; } | sed 's/^](//' | while read -r link; do
      case $link in http*) continue ;; esac
      [ -e "$(dirname "$page")/$link" ] || { echo "FAIL: $page: $link is not installed" >&2; exit 1; }
    done
  done
)

echo "== each public header by itself, and older C++"
(cd "$prefix/include" && find tarpon -mindepth 2 -name '*.h' | sort) >headers
for header in collectives/tarpon.h collectives/communicator.h transport/endpoint.h; do
  grep -qx "tarpon/$header" headers || { echo "FAIL: <tarpon/$header> is not installed" >&2; exit 1; }
done
while read -r header; do
  echo "#include <$header>" >alone.cc
  "$cxx" -std=c++20 -fsyntax-only -Wall -Wextra -Wpedantic -Wconversion -Werror -I"$prefix/include" alone.cc
  case $header in tarpon/collectives/tarpon.h | tarpon/bpf/*) continue ;; esac
  said=$("$cxx" -std=c++17 -E -I"$prefix/include" alone.cc 2>&1 | grep -m1 'error:' || true)
  [[ $said == *"Tarpon needs C++20"* ]] || { echo "FAIL: $header: as C++17: $said" >&2; exit 1; }
done <headers
# Those of collectives/ have short names.
sed -n 's|^tarpon/collectives/||p' headers | while read -r name; do
  [ "$(cat "$prefix/include/tarpon/${name##*/}")" = "#include \"collectives/$name\"" ] ||
    { echo "FAIL: <tarpon/${name##*/}> is not <tarpon/collectives/$name>" >&2; exit 1; }
done

echo "== what a C program compiles"
echo '#include <tarpon/tarpon.h>
int main(void) { return tarpon_version() == 0; }' >trivial.c
for standard in c99 c17; do
  "$cc" -std=$standard -Wall -Wextra -Wpedantic -Wconversion -Werror -I"$prefix/include" \
    -c trivial.c -o trivial.o
done
# Compiling it costs what it reads.
lines=$("$cc" -E -I"$prefix/include" trivial.c | wc -l)
[ "$lines" -lt 2000 ] || { echo "FAIL: tarpon.h is $lines preprocessed lines" >&2; exit 1; }
cp trivial.c trivial.cc
"$cxx" -std=c++98 -Wall -Wextra -Werror -I"$prefix/include" -c trivial.cc -o trivial.o

# checked NAME PROGRAM: runs two ranks on this host, by the environment, and compares what they print.
checked() {
  local rank pids=()
  for rank in 0 1; do
    RANK=$rank WORLD_SIZE=2 TARPON_RENDEZVOUS=file://$work/$1.address TARPON_INTERFACE=lo \
      "$2" >"$work/$1.$rank" &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || { echo "FAIL: $1 ended badly" >&2; exit 1; }; done
  cat "$work/$1".[01]
  [ "$(cat "$work/$1".[01])" = "rank 0 of 2: the average is 0.5
rank 1 of 2: the average is 0.5" ] || { echo "FAIL: $1: not the averages that were expected" >&2; exit 1; }
}

echo "== find_package(tarpon)"
"$cmake" -S "$examples" -B by_cmake -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" \
  -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=Release >cmake.log
"$cmake" --build by_cmake >>cmake.log
checked c_by_cmake by_cmake/allreduce_c
checked cc_by_cmake by_cmake/allreduce_cc

echo "== find_package(tarpon COMPONENTS shared), in a project without C++"
mkdir c_alone
sed 's|<tarpon/tarpon.h>|"collectives/tarpon.h"|' "$examples/allreduce.c" >c_alone/allreduce.c  # as before 0.2
echo 'cmake_minimum_required(VERSION 3.25)
project(c_alone LANGUAGES C)
find_package(tarpon 0.2 REQUIRED COMPONENTS shared)
add_executable(allreduce_c allreduce.c)
target_link_libraries(allreduce_c PRIVATE tarpon::tarpon_shared)' >c_alone/CMakeLists.txt
"$cmake" -S c_alone -B c_alone/build -DCMAKE_C_COMPILER="$cc" -DCMAKE_PREFIX_PATH="$prefix" >>cmake.log
"$cmake" --build c_alone/build >>cmake.log
checked c_alone c_alone/build/allreduce_c

echo "== pkg-config tarpon-shared and tarpon"
export PKG_CONFIG_PATH=$prefix/$libdir/pkgconfig
# shellcheck disable=SC2046 # the flags are words
"$cc" -std=c99 -O2 "$examples/allreduce.c" -o c_by_pkg_config $(pkg-config --cflags --libs tarpon-shared)
LD_LIBRARY_PATH=$prefix/$libdir checked c_by_pkg_config ./c_by_pkg_config
# shellcheck disable=SC2046
"$cxx" -std=c++20 -O2 "$examples/allreduce.cc" -o cc_by_pkg_config $(pkg-config --cflags --libs tarpon)
checked cc_by_pkg_config ./cc_by_pkg_config

echo "== headers as programs included them before 0.2"
sed 's|<tarpon/\(.*\)>|"collectives/\1"|' "$examples/allreduce.cc" >old.cc
# shellcheck disable=SC2046
"$cxx" -std=c++20 -fsyntax-only old.cc $(pkg-config --cflags tarpon)
# shellcheck disable=SC2046
"$cc" -std=c99 -fsyntax-only $(pkg-config --cflags tarpon-shared) -x c - <<<'#include "collectives/tarpon.h"'
"$cxx" -std=c++20 -fsyntax-only old.cc -I"$prefix/include/tarpon"
# A header of the program's own comes first.
mkdir own
echo '#define OWN' >own/version.h
# shellcheck disable=SC2046
"$cxx" -fsyntax-only $(pkg-config --cflags tarpon-shared) -Iown -x c++ - <<<'#include "version.h"
#ifndef OWN
#error "the header of Tarpon"
#endif'

echo "== Gloo: tarpon::gloo, and tarpon run"
if [ ! -e "$prefix/$libdir/libtarpon_gloo.so" ]; then
  echo "libtarpon_gloo.so is not built here (it needs libgloo-dev): not tried"
  exit 0
fi
# carried COMMAND...: runs it, and says whether both of its ranks went by Tarpon.
carried() {
  TARPON_DEBUG=INFO "$@" >gloo.out 2>gloo.err || { cat gloo.err >&2; echo "FAIL: $*" >&2; exit 1; }
  grep -q '^sums 3 3$' gloo.out || { echo "FAIL: $*: $(cat gloo.out)" >&2; exit 1; }
  grep -q '^tarpon: rank [01] carried 2 allreduces, 8000 bytes' gloo.err
}
mkdir gloo
cp "$here/gloo_program.cc" gloo
echo 'cmake_minimum_required(VERSION 3.25)
project(gloo_program LANGUAGES CXX)
set(CMAKE_CXX_STANDARD 17)
find_package(tarpon 0.2 REQUIRED COMPONENTS shared)
find_package(Threads REQUIRED)
add_executable(linked gloo_program.cc)
target_link_libraries(linked PRIVATE tarpon::gloo gloo Threads::Threads)
add_executable(plain gloo_program.cc)
target_link_libraries(plain PRIVATE gloo Threads::Threads)' >gloo/CMakeLists.txt
"$cmake" -S gloo -B gloo/build -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_PREFIX_PATH="$prefix" >>cmake.log
"$cmake" --build gloo/build >>cmake.log
carried gloo/build/linked || { echo "FAIL: linked with tarpon::gloo, but not carried" >&2; exit 1; }
carried "$prefix/bin/tarpon" run -- gloo/build/plain ||
  { echo "FAIL: tarpon run: not carried" >&2; exit 1; }
if carried gloo/build/plain; then echo "FAIL: carried without Tarpon" >&2; exit 1; fi
cat gloo.out
