#!/usr/bin/env bash
# Runs the tests of this folder with PyTorch 2 of Debian trixie, in a chroot made once in build/trixie.
#
# Where that cannot be had, the last line says `SKIP: torch2: WHY` and the exit code is 0.
#
# The libraries of the build run there as they are: glibc and libstdc++ of trixie are newer than those
# of bookworm, and Gloo's two functions that the shim replaces have the same signatures in both. What
# else they load and trixie has in another version (libfmt) or not installed is copied beside them.
# So nothing is compiled in the chroot, and what is tested is what the other tests have tested.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)

suite=trixie
packages=python3-torch,python3-numpy
limit_s=1200        # one file of tests: 3 minutes on a quiet machine
limit_fetch_s=1200  # 3 minutes over a fast network
build=$root/build/release
work=$root/build/trixie
libraries=/tmp/tarpon         # in the chroot
tests=/work/tests/tools/torch  # in the chroot

usage() {
  cat <<TEXT
usage: tests/tools/torch/torch2.sh [--build FOLDER] [FILE [TEST...]]
       tests/tools/torch/torch2.sh [--build FOLDER] --prepare
       tests/tools/torch/torch2.sh --exec [VARIABLE=VALUE...] COMMAND...
  --build FOLDER  where the libraries were built (build/release)
  FILE            backend, collectives, sharded, shim, states, torch2, waits, or one of hook*_test.py without _test.py; TEST: names of tests in FILE_test.py (default: all)
  --prepare       makes the chroot and copies the libraries alone
  --exec          runs a command there, after --prepare; the sources are in /work
The chroot is kept in build/trixie; ./dev clean removes it.
TEXT
}

skip() {
  echo "SKIP: torch2: $*"
  exit 0
}

fail() {
  echo "FAIL: torch2: $*" >&2
  exit 1
}

# bounded SECONDS COMMAND...: the command also ends when this script does, by Ctrl-C or a signal.
bounded() {
  setpriv --pdeathsig TERM timeout --foreground --kill-after=10 "$@"
}

# mirror: of the machine's own apt configuration, where it serves the suite.
mirror() {
  local each
  while read -r each; do
    [ -n "$each" ] || continue
    if /usr/lib/apt/apt-helper -o Acquire::Retries=1 -o Acquire::http::Timeout=20 \
      download-file "${each%/}/dists/$suite/InRelease" "$work/InRelease" >/dev/null 2>&1; then
      echo "$each"
      return
    fi
  done < <(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' | sort -u)
  return 1
}

# mmdebstrap mounts /proc, /sys and /dev in the chroot: in a mount namespace, which ends with it.
make_chroot() {
  local from
  [ ! -e "$work/root/.complete" ] || return 0
  [ -n "$(command -v apt-get)" ] || skip "this machine has no apt"
  apt-get update -qq || true  # the lists that are there may do
  if [ -z "$(command -v mmdebstrap)" ]; then
    echo "== installing mmdebstrap"
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends -qq mmdebstrap \
      >/dev/null || skip "cannot install mmdebstrap"
  fi
  rm -rf "$work/root"
  from=$(mirror) || skip "no mirror of this machine's apt serves $suite"
  echo "== making the chroot in $work/root"
  bounded "$limit_fetch_s" unshare --mount mmdebstrap --mode=root --variant=apt --components=main \
    --aptopt='APT::Install-Recommends "false"' --include="$packages" "$suite" "$work/root" "$from" \
    </dev/null >"$work/bootstrap.log" 2>&1 ||
    skip "cannot make the chroot: $(grep '^E:' "$work/bootstrap.log" | head -n 1); see $work/bootstrap.log"
  touch "$work/root/.complete"
}

# put_libraries: those of the build, and those that they need and the chroot lacks.
put_libraries() {
  local built=("$build/collectives/libtarpon.so.0" "$build/collectives/gloo/libtarpon_gloo.so")
  local place=$work/root$libraries library missing
  rm -rf "$place"
  mkdir -p "$place"
  for library in "${built[@]}"; do
    [ -e "$library" ] || fail "$library is not built"
    cp -L "$library" "$place/"
  done
  missing=$(chroot "$work/root" env LD_LIBRARY_PATH=$libraries ldd "$libraries/libtarpon_gloo.so" |
    sed -n 's/^\t\(.*\) => not found$/\1/p')
  for library in $missing; do
    cp -L "$(ldd "${built[0]}" | sed -n "s|^\t$library => \(/[^ ]*\).*|\1|p")" "$place/"
  done
}

# in_chroot COMMAND...: in mount and process namespaces of its own. Its mounts and its processes end
# with it, however it ends. The sources are bound read-only. Debian builds PyTorch without libuv, which
# the store of PyTorch 2 uses unless USE_LIBUV says otherwise.
in_chroot() {
  bounded "$limit_s" unshare --mount --pid --fork --kill-child sh -ceu '
      new=$1 root=$2
      shift 2
      mkdir -p "$new/work"
      mount --bind "$root" "$new/work"
      mount -o remount,bind,ro "$new/work"
      mount -t proc proc "$new/proc"
      mount --rbind /dev "$new/dev"
      exec chroot "$new" env -i "$@"' sh "$work/root" "$root" \
    PATH=/usr/bin:/bin HOME=/tmp LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 \
    PYTHONPATH=/work/tools/torch LD_LIBRARY_PATH=$libraries USE_LIBUV=0 \
    TARPON_LIBRARY=$libraries/libtarpon.so.0 TARPON_GLOO_SHIM=$libraries/libtarpon_gloo.so "$@"
}

run_file() {
  local file=$1
  shift
  [ -f "$root/tests/tools/torch/${file}_test.py" ] || { usage >&2; exit 2; }
  echo "== $file"
  in_chroot "TORCH2_FILE=$tests/${file}_test.py" python3 "$tests/torch2_run.py" "$@"
}

prepare=
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=$(realpath -m "${2:?--build needs a folder}"); shift 2 ;;
    --prepare) prepare=1; shift ;;
    --exec) shift; in_chroot "$@"; exit ;;
    -h | --help) usage; exit ;;
    *) break ;;
  esac
done
[ "$(id -u)" -eq 0 ] || skip "a chroot needs root"
unshare --mount --pid --fork true 2>/dev/null || skip "this machine allows no mount namespaces"
mkdir -p "$work"
exec 9>"$work/lock"
flock --timeout "$limit_s" 9 || fail "another run holds $work/lock"
make_chroot
put_libraries
[ -z "$prepare" ] || exit 0
in_chroot python3 -c 'import torch; print("torch", torch.__version__)'
if [ $# -gt 0 ]; then
  run_file "$@"
  exit
fi
failed=
run_file shim || failed="$failed shim"
# Its ddp trains for 50 steps, after which rounding shows with PyTorch 2: torch2 has a shorter one.
run_file backend types shapes groups errors || failed="$failed backend"
run_file torch2 || failed="$failed torch2"
for file in collectives sharded states waits hook hook_members hook_options hook_replicas; do
  run_file $file || failed="$failed $file"
done
[ -z "$failed" ] || fail "see above:$failed"
