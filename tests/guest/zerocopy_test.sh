#!/usr/bin/env bash
# zerocopy.sh with stand-ins for the programs that it calls: what makes it skip, what makes it fail.
#
#   zerocopy_test.sh FOLDER    the folder that holds zerocopy.sh
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: $0 FOLDER" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{bin,tests,build/bin,build/tests/guest}
cp -r "$1" "$work/tests/guest"
touch "$work"/build/{bin/tarpon,tests/guest/guest_test,tests/guest/stranger.bpf.o,dispatcher.o}
chmod +x "$work"/build/{bin/tarpon,tests/guest/guest_test}
sed -i "s|^dispatcher=[^ ]*|dispatcher=$work/build/dispatcher.o|" "$work/tests/guest/zerocopy.sh"
failures=0

# stand_in NAME: a program that does what standard input says; settings are the environment's.
stand_in() {
  { echo '#!/usr/bin/env bash'; cat; } >"$work/bin/$1"
  chmod +x "$work/bin/$1"
}

stand_in dpkg-query <<<'echo "${PACKAGES:-installed}"'
stand_in id <<<'if [ "$1" = -u ]; then echo "${USER_ID:-0}"; else echo somebody; fi'
stand_in uname <<<'echo x86_64'
stand_in cpio <<<'cat >/dev/null'
stand_in xz <<<'for file in "$@"; do case $file in *.xz) mv "$file" "${file%.xz}" ;; esac; done'
for name in busybox ip nsenter xdp-loader; do stand_in "$name" <<<'true'; done
stand_in apt-get <<'TEXT'
case $1 in
  indextargets) echo "${MIRROR-http://mirror/debian/}" ;;
  update) [ -z "${NO_SUITE:-}" ] || { echo "E: no such suite"; exit 100; } ;;
  install) [ -z "${NO_PACKAGE:-}" ] ;;
  download) [ -z "${NO_PACKAGE:-}" ] || { echo "E: not found"; exit 100; }; touch linux.deb ;;
esac
TEXT
stand_in apt-cache <<'TEXT'
case $1 in
  show) echo "Version: 7.1.2-1~bpo13+1" ;;
  depends) printf '%s\n' metapackage '  Depends: linux-base' linux-image-7.1.2-cloud-amd64 ;;
esac
TEXT
stand_in dpkg-deb <<'TEXT'
kernel=$3/usr/lib/modules/7.1.2/kernel
mkdir -p "$kernel"/{net/core,drivers/net}
echo kernel >"$kernel/../vmlinuz"
for module in net/core/failover drivers/net/net_failover ${NO_MODULE-drivers/net/virtio_net}; do
  echo module >"$kernel/$module.ko.xz"
done
TEXT
stand_in qemu-system-x86_64 <<'TEXT'
echo "qemu's own words" >&2
printf "${GUEST-GUEST kernel 7.1.2\r\nRESULT rc=0\r\n}"
exit "${QEMU:-0}"
TEXT

# expect CODE TEXT SETTING...: zerocopy.sh with SETTINGs ends with CODE, and its last line has TEXT.
expect() {
  local code=0 said
  said=$(env PATH="$work/bin:$PATH" "${@:3}" "$work/tests/guest/zerocopy.sh" --build "$work/build" \
    ${arguments:-} 2>&1) || code=$?
  if [ "$code" -ne "$1" ] || [[ $(tail -n 1 <<<"$said") != *"$2"* ]]; then
    echo "FAIL: $*: exit code $code: $said" >&2
    failures=$((failures + 1))
  fi
}

# fresh CODE TEXT SETTING...: the same without a kernel from before.
fresh() {
  rm -rf "$work/build/guest"
  expect "$@"
}

skips="SKIP: zero-copy: "
fresh 0 "${skips}missing packages: run as root: apt-get update" PACKAGES=no USER_ID=1000
fresh 0 "${skips}cannot install qemu-system-x86" PACKAGES=no NO_PACKAGE=1 NO_SUITE=1
fresh 0 "${skips}no mirror of Debian" MIRROR=
fresh 0 "${skips}http://mirror/debian/ has no trixie-backports: E: no such suite" NO_SUITE=1
arguments="--suite sid" fresh 0 "${skips}http://mirror/debian/ has no sid: E: no such suite" NO_SUITE=1
fresh 0 "${skips}cannot fetch linux-image-7.1.2-cloud-amd64: E: not found" NO_PACKAGE=1
fresh 0 "${skips}no drivers/net/virtio_net.ko in linux-image" NO_MODULE=
fresh 0 "RESULT rc=0"
expect 0 "RESULT rc=0" MIRROR=  # the kernel is there already
expect 0 "${skips}qemu does not start: qemu's own words" GUEST= QEMU=1
expect 1 "the guest did not start" GUEST=
expect 1 "the guest did not start" GUEST= QEMU=124
arguments=--kvm expect 0 "${skips}no guest starts with KVM" GUEST= QEMU=124
expect 1 "FAIL: zero-copy: see above" GUEST="GUEST\nRESULT rc=1\n"
expect 1 "FAIL: zero-copy: see above" GUEST="GUEST\n"
expect 1 "the guest was stopped" GUEST="GUEST\n" QEMU=124
arguments="--bench 1" expect 1 "bin/xdp_minimal is not built"
touch "$work"/build/bin/xdp_{minimal,port_pair}
chmod +x "$work"/build/bin/xdp_{minimal,port_pair}
arguments="--bench 1" expect 0 "RESULT rc=0"
rm "$work/build/bin/tarpon"
expect 1 "bin/tarpon is not built"

[ "$failures" -eq 0 ] && echo "skips and failures are told apart"
exit "$((failures > 0))"
