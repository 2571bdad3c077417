#!/usr/bin/env bash
# Fetches the newest cloud kernel of a suite of Debian and unpacks what the guest needs of it.
# Nothing is installed, and the machine's own package lists stay as they are.
#
#   kernel.sh FOLDER SUITE    leaves FOLDER/vmlinuz, FOLDER/modules/*.ko and FOLDER/version
#
# What is there already stays. Fails with one line that says why.
set -euo pipefail
[ $# -eq 2 ] || { echo "usage: $0 FOLDER SUITE" >&2; exit 2; }

suite=$2
metapackage=linux-image-cloud-amd64
modules=(net/core/failover drivers/net/net_failover drivers/net/virtio_net)
may_be_built_in=(drivers/virtio/virtio{,_ring,_pci_legacy_dev,_pci_modern_dev,_pci})
keys=/usr/share/keyrings/debian-archive-keyring.gpg

fail() {
  echo "$*" >&2
  exit 1
}

# The mirror that this machine takes Debian's packages from.
mirror() {
  apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' |
    awk '/\/debian\/$/ { print; exit }'
}

# private_view FOLDER URI: from here on apt sees one suite of one mirror; lists and cache in FOLDER.
private_view() {
  mkdir -p "$1/lists/partial" "$1/cache/archives/partial"
  echo "deb [arch=amd64 signed-by=$keys] $2 $suite main" >"$1/sources.list"
  : >"$1/status"
  cat >"$1/apt.conf" <<TEXT
Dir::Etc::SourceList "$1/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Dir::State::Lists "$1/lists";
Dir::State::Status "$1/status";
Dir::Cache "$1/cache";
APT::Architecture "amd64";
APT::Sandbox::User "$(id -un)";
Acquire::http::Timeout "20";
TEXT
  export APT_CONFIG=$1/apt.conf
}

# The packages that the metapackage leads to and that hold a kernel or its modules.
kernel_packages() {
  apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks \
    --no-replaces --no-enhances $metapackage | grep -E '^linux-(image|binary|modules)-[0-9]' || true
}

fetch() {
  local work=$1/fetch uri version packages module
  uri=$(mirror)
  [ -n "$uri" ] || fail "no mirror of Debian among apt's sources"
  [ -r $keys ] || fail "no keys of Debian's archive: install debian-archive-keyring"
  rm -rf "$1"
  private_view "$work/apt" "$uri"
  timeout 120 apt-get update -qq -o APT::Update::Error-Mode=any >"$work/log" 2>&1 ||
    fail "$uri has no $suite: $(tail -n 1 "$work/log")"
  version=$(apt-cache show --no-all-versions $metapackage 2>"$work/log" | sed -n 's/^Version: //p')
  [ -n "$version" ] || fail "$suite of $uri has no $metapackage"
  mapfile -t packages < <(kernel_packages)
  (cd "$work" && timeout 300 apt-get download -qq "${packages[@]}" >log 2>&1) ||
    fail "cannot fetch ${packages[*]}: $(tail -n 1 "$work/log")"
  for package in "$work"/*.deb; do dpkg-deb -x "$package" "$work/root"; done
  mkdir -p "$1/modules"
  find "$work/root" -name 'vmlinuz*' -type f -exec cp {} "$1/vmlinuz" \;
  for module in "${modules[@]}" "${may_be_built_in[@]}"; do
    find "$work/root" -path "*/kernel/$module.ko*" -exec cp {} "$1/modules" \;
  done
  find "$1/modules" -name '*.xz' -exec xz -d {} +
  rm -rf "$work"
  [ -s "$1/vmlinuz" ] || fail "no vmlinuz in ${packages[*]}"
  for module in "${modules[@]}"; do
    [ -s "$1/modules/${module##*/}.ko" ] || fail "no $module.ko in ${packages[*]}"
  done
  echo "$version" >"$1/version"
}

# The version is written last: what was interrupted starts again.
[ -s "$1/version" ] || fetch "$(realpath -m "$1")"
