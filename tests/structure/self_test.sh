#!/usr/bin/env bash
# Shows that the structure checks can fail: each rule is broken once in a small tree that keeps them.
#
#   self_test.sh CXX NM
set -euo pipefail
[ $# -eq 2 ] || { echo "usage: $0 CXX NM" >&2; exit 2; }
cxx=$1 nm=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

fail() {
  echo "FAIL: $*" >&2
  failures=$((failures + 1))
}

# put FILE LINE...: a file in the tree under test.
put() {
  local file=$tree/$1
  shift
  mkdir -p "$(dirname "$file")"
  printf '%s\n' "$@" >"$file"
}

good_tree() {
  tree=$work/tree
  rm -rf "$tree"
  mkdir -p "$tree"/{bpf,xdp,codec,transport/endpoint,collectives/engine,tests/transport}
  put bpf/wire.h '#ifndef TARPON_BPF_WIRE_H' '#define TARPON_BPF_WIRE_H' '#endif'
  put xdp/base/result.h '#pragma once' '#include "bpf/wire.h"'
  put codec/codec.h '#pragma once' '#include <cstdint>' '#include <xsimd/xsimd.hpp>'
  put transport/port.h '#pragma once' '#include "xdp/base/result.h"'
  put transport/endpoint/state.h '#pragma once' '#include "transport/port.h"'
  put transport/endpoint/state.cc '#include "transport/endpoint/state.h"'
  put collectives/engine/engine.h '#pragma once' '#include "transport/port.h"'
  put collectives/engine/reducer.h '#pragma once'
  put collectives/engine/engine.cc '#include "collectives/engine/reducer.h"' '#include "codec/codec.h"'
  put collectives/membership/facts.h '#pragma once' '#include "collectives/engine/reducer.h"'
  put tools/version.h.in '#pragma once'
  put collectives/communicator.h '#pragma once'
  put collectives/communicator.cc '#include "collectives/engine/engine.h"'
  put tools/tarpon.cc '#include "collectives/communicator.h"' '#include "tools/version.h"'
  put tools/simulation/rank.cc '#include "collectives/engine/engine.h"'
  put tools/b/second.h '#pragma once' '#include "tools/a/first.h"'
  put tools/a/first.h '#pragma once'
  put tools/c/third.h '#pragma once' '#include "tools/b/second.h"'
  put tests/transport/state_test.cc '#include "transport/endpoint/state.h"'
  put tests/simulation/plant_test.cc '#include "transport/endpoint/state.h"'
  put tests/fuzz/state.cc '#include "transport/endpoint/state.h"'
}

# refused RULE FILE LINE...: a good tree with this file is refused for it, and by this rule alone.
refused() {
  local rule=$1 file=$2 said
  shift
  good_tree
  put "$@"
  if said=$(bash "$here/includes.sh" "$tree" 2>&1); then
    fail "$rule: $* was accepted"
  elif [ "$(grep -c "^$file:[0-9]*: $rule:" <<<"$said")" -ne 1 ] || [ "$(wc -l <<<"$said")" -ne 1 ]; then
    fail "$rule: $*: said: $said"
  fi
}

good_tree
bash "$here/includes.sh" "$tree" >/dev/null || fail "the good tree was refused"

once='#pragma once'
refused direction xdp/a.h "$once" '#include "transport/port.h"'
refused direction bpf/a.h '#ifndef TARPON_BPF_A_H' '#define TARPON_BPF_A_H' '#include "xdp/base/result.h"' '#endif'
refused direction transport/a.cc '#include "collectives/engine/engine.h"'
refused direction transport/a.cc '#include "codec/codec.h"'
refused direction codec/a.cc '#include "bpf/wire.h"'
refused direction collectives/a.cc '#include "tools/version.h"'
refused direction tools/a.cc '#include "tests/transport/state_test.cc"'
refused leaf codec/a.cc '#include <fmt/format.h>'
refused leaf codec/a.cc '#include <linux/types.h>'
refused private tools/a.cc '#include "transport/endpoint/state.h"'
refused private tests/tools/a.cc '  #  include "collectives/engine/reducer.h"'
refused public collectives/a.h "$once" '#include "collectives/engine/reducer.h"'
refused private collectives/a.cc '#include "transport/endpoint/state.h"'
refused private tools/a.cc '#include "collectives/engine/engine.h"'
refused circle tools/a/use.cc '#include "tools/b/second.h"'
refused circle tools/a/use.cc '#include "tools/c/third.h"'
refused circle collectives/engine/use.cc '#include "collectives/membership/facts.h"'
refused name transport/queue/port.h "$once"
refused quotes transport/a.cc '#include <transport/port.h>'
refused quotes transport/a.cc '#include "port.h"'
refused quotes transport/a.cc '#include "transport/missing.h"'
refused guard tools/a.h '#include <cstdint>'
refused guard bpf/a.h '#pragma once'

# A class in one source, then in two.
good_tree
put transport/endpoint/router.cc 'void Router::receive() {' '}' 'int Router::State::count() const {' '}'
put transport/endpoint/other.cc 'void Other::receive() {' '}'
bash "$here/classes.sh" "$tree" >/dev/null 2>&1 || fail "classes: a good tree was refused"
put transport/endpoint/more.cc 'Result<void> Router::send(int frames) {' '}'
if said=$(bash "$here/classes.sh" "$tree" 2>&1); then
  fail "classes: a class in two sources was accepted"
elif [ "$said" != "Router: transport/endpoint/more.cc transport/endpoint/router.cc" ]; then
  fail "classes: said $said"
fi

# methods PUBLIC OTHERS: whether methods.py accepts a class with so many functions.
methods() {
  good_tree
  { echo 'class Wide final : public Base {'
    echo ' public:'
    echo '  Wide(int a, int b) : a_(a), b_(b) {}  // f(1)'
    echo '  ~Wide() override;'
    echo '  Wide(const Wide&) = delete;'
    for ((i = 0; i < $1; ++i)); do echo "  int f$i(int (*g)(int)) const { return g(b_); }"; done
    echo ' private:'
    for ((i = 0; i < $2; ++i)); do echo "  static Result<void> h$i(int a = f(1), Span b = {});"; done
    echo '  int a_ = f(2), b_ = f(3);'
    echo '};'; } >"$tree/transport/wide.h"
  python3 -B "$here/methods.py" "$tree" >"$work/said" 2>&1
}

methods 25 15 || fail "methods: 25 public functions and 15 others were refused"
methods 26 0 && fail "methods: 26 public functions were accepted"
grep -q '^transport/wide.h: Wide: 26 public functions, 0 others$' "$work/said" || fail "methods: said $(cat "$work/said")"
methods 25 16 && fail "methods: 41 functions were accepted"

# io NAME CODE: whether sans_io.sh accepts an object file of this code.
io() {
  printf '%s\n' "$2" >"$work/$1.cc"
  "$cxx" -std=c++20 -O1 -c "$work/$1.cc" -o "$work/$1.o"
  bash "$here/sans_io.sh" "$nm" "$work/$1.o" >/dev/null 2>&1
}

io pure '#include <memory>
#include <cstdio>
std::shared_ptr<int> f() { std::fputs("broken", stderr); return std::make_shared<int>(1); }' ||
  fail "sans_io: plain memory was refused"
io clock '#include <chrono>
auto f() { return std::chrono::steady_clock::now(); }' && fail "sans_io: a clock was accepted"
io c_clock '#include <ctime>
long f() { return time(nullptr); }' && fail "sans_io: time() was accepted"
io socket '#include <sys/socket.h>
int f() { return socket(AF_INET, SOCK_DGRAM, 0); }' && fail "sans_io: a socket was accepted"
io thread '#include <thread>
void f() { std::thread([] {}).join(); }' && fail "sans_io: a thread was accepted"
io mutex '#include <mutex>
std::mutex m; void f() { m.lock(); }' && fail "sans_io: a mutex was accepted"
io chance '#include <random>
unsigned f() { return std::random_device()(); }' && fail "sans_io: random_device was accepted"
io rand '#include <cstdlib>
int f() { return rand(); }' && fail "sans_io: rand() was accepted"
io environment '#include <cstdlib>
char* f() { return getenv("HOME"); }' && fail "sans_io: getenv() was accepted"

[ "$failures" -eq 0 ] && echo "every rule can fail"
exit "$((failures > 0))"
