#!/usr/bin/env bash
# Boots a guest with two virtio-net cards and a kernel of Debian, and runs guest_test in it, or the pairs of
# programs that ./dev bench zerocopy compares.
#
# Where that cannot be had, the last line says `SKIP: zero-copy: WHY` and the exit code is 0.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
here=$root/tests/guest

limit_s=400  # a minute on a quiet machine
build=
suite=trixie-backports
what=tests
dispatcher=/usr/lib/x86_64-linux-gnu/bpf/xdp-dispatcher.o  # libxdp loads it from there
accelerator=(-accel tcg -cpu max)

usage() {
  cat <<TEXT
usage: tests/guest/zerocopy.sh [--build FOLDER] [--suite NAME] [--kvm] [--bench] [ARGUMENT...]
  --build FOLDER  where the programs were built (build/release; --bench: build/bench)
  --suite NAME    takes the kernel from this suite of Debian (trixie-backports, whose kernel has zero-copy
                  on virtio-net; bookworm has 6.1, without)
  --kvm           by /dev/kvm in place of emulation
  --bench         runs tests/guest/pairs in place of guest_test
  ARGUMENT...     for either, as --gtest_filter='*Frames*'
Kernel and image are kept in build/guest.
TEXT
}

skip() {
  echo "SKIP: zero-copy: $*"
  exit 0
}

fail() {
  echo "FAIL: zero-copy: $*" >&2
  exit 1
}

# need PACKAGE...: installs what is missing, as root.
need() {
  local missing=() package command
  for package in "$@"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
      missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  command="apt-get install -y --no-install-recommends ${missing[*]}"
  [ "$(id -u)" -eq 0 ] || skip "missing packages: run as root: apt-get update && $command"
  echo "== installing ${missing[*]}"
  apt-get update -qq || true  # the lists that are there may do
  DEBIAN_FRONTEND=noninteractive $command -qq >/dev/null || skip "cannot install ${missing[*]}"
}

# put PROGRAM...: into the image's /bin, and the libraries that it loads to where it looks for them.
put() {
  local program library
  for program in "$@"; do
    cp -L "$program" "$image/bin/"
    while read -r library; do
      mkdir -p "$image${library%/*}"
      cp -Lu "$library" "$image$library"
    done < <(ldd "$program" 2>/dev/null | grep -o '/[^ ]*')
  done
}

put_tests() {
  put "$(command -v xdp-loader)" "$build/bin/tarpon" "$build/tests/guest/guest_test"
  ln -s guest_test "$image/bin/main"
  mkdir -p "$image${dispatcher%/*}"
  cp "$dispatcher" "$image$dispatcher"
  cp "$build/tests/guest/stranger.bpf.o" "$image/"
}

put_pairs() {
  put "$here/pairs" "$build/bin/xdp_minimal" "$build/bin/xdp_port_pair"
  ln -s pairs "$image/bin/main"
}

# make_image ARGUMENT...: for the program that the guest's init starts.
make_image() {
  image=$work/image
  rm -rf "$image"
  mkdir -p "$image"/{bin,etc,modules,run,var}
  ln -s /run "$image/var/run"
  put "$(command -v busybox)" "$(command -v ip)" "$(command -v nsenter)"
  ln -s busybox "$image/bin/sh"
  "put_$what"
  cp "$kernel"/modules/*.ko "$image/modules/"
  install -m 755 "$here/init" "$image/init"
  printf '%s\n' "$@" >"$image/arguments"
  (cd "$image" && find . | cpio --quiet -o -H newc) >"$work/initrd"
}

# A hub inside qemu joins the cards: no socket, no tap, no privilege. Zero-copy needs an IOMMU's
# addresses (iommu_platform) and the reset of single queues (machine type 7.2 or later).
boot() {
  local cards=() i
  for i in 0 1; do
    cards+=(-netdev "hubport,hubid=0,id=n$i" -device "virtio-net-pci,netdev=n$i,romfile=,$(
      )mac=02:00:00:00:00:0$((i + 1)),iommu_platform=on,disable-legacy=on")
  done
  timeout --kill-after=5 "$limit_s" qemu-system-x86_64 -machine pc "${accelerator[@]}" -smp 1 \
    -m 512 -kernel "$kernel/vmlinuz" -initrd "$work/initrd" \
    -append "console=ttyS0 quiet panic=-1 ipv6.disable=1" \
    -nodefaults -no-user-config -display none -serial stdio -no-reboot "${cards[@]}" \
    </dev/null 2>"$work/qemu.log" | tr -d '\r' | tee "$work/console.log"
}

# judge STATUS: qemu ends with 0 whatever became of the guest; what was printed tells.
judge() {
  if ! grep -q '^GUEST' "$work/console.log"; then
    [ "$1" -eq 124 ] || [ "$1" -eq 0 ] ||
      skip "qemu does not start: $(tail -n 1 "$work/qemu.log")"
    [ "${accelerator[1]}" = tcg ] || skip "no guest starts with KVM here within $limit_s s"
    fail "the guest did not start within $limit_s s; see $work/console.log"
  fi
  [ "$1" -ne 124 ] || fail "the guest was stopped after $limit_s s"
  grep -q '^RESULT rc=0$' "$work/console.log" || fail "see above, or $work/console.log"
}

while [ $# -gt 0 ]; do
  case $1 in
    --build) build=$(realpath -m "${2:?--build needs a folder}"); shift 2 ;;
    --suite) suite=${2:?--suite needs a name}; shift 2 ;;
    --kvm) accelerator=(-accel kvm -cpu host); shift ;;
    --bench) what=pairs limit_s=1800; shift ;;
    -h | --help) usage; exit ;;
    --) shift; break ;;
    *) break ;;
  esac
done
work=$root/build/guest
kernel=$work/$suite
mkdir -p "$work"
[ "$(uname -m)" = x86_64 ] || skip "the guest is for x86-64, this machine is $(uname -m)"
programs=(bin/tarpon tests/guest/guest_test)
[ $what = tests ] || programs=(bin/xdp_minimal bin/xdp_port_pair)
[ -n "$build" ] || build=$root/build/$([ $what = tests ] && echo release || echo bench)
for program in "${programs[@]}"; do
  [ -x "$build/$program" ] || fail "$build/$program is not built"
done
need qemu-system-x86 busybox-static cpio xz-utils iproute2 util-linux xdp-tools
why=$("$here/kernel.sh" "$kernel" "$suite" 2>&1) || skip "${why##*$'\n'}"
make_image "$@"
status=0
boot || status=$?
judge "$status"
