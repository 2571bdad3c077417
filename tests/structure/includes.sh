#!/usr/bin/env bash
# Checks the include graph of a source tree; prints FILE:LINE: RULE for each line that breaks it.
#
#   includes.sh ROOT
#
#   direction   tools -> collectives -> {transport, codec} -> xdp -> bpf; tests may use all
#   leaf        codec includes the C++ standard library, xsimd and itself
#   private     a folder inside xdp, codec, transport or collectives, but xdp/base and
#               collectives/environment, is for its own top folder, that
#               folder's tests, the tests that drive parts of all folders, and the folders in the
#               table `open` with their tests; so are folders of tools/ that are in that table
#   public      a header that is installed includes only headers that are
#   circle      no two folders include each other, directly or through others. The headers that lie
#               directly in a top folder count as one folder, the sources there as another one
#   name        no two headers have one name
#   quotes      project headers are quoted, by their path from the root, and exist
#   guard       #pragma once; in bpf/, which C reads too, an include guard
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: $0 ROOT" >&2; exit 2; }
cd "$1"

folders=(bpf xdp codec transport collectives tools tests)
mapfile -t files < <(find "${folders[@]}" -type f \( -name '*.h' -o -name '*.cc' -o -name '*.c' \) |
  LC_ALL=C sort)
[ ${#files[@]} -gt 0 ] || { echo "$1: no source files" >&2; exit 2; }

headers() {
  local file macro
  for file in "${files[@]}"; do
    case $file in
      bpf/*.h)
        macro=TARPON_$(tr 'a-z/.' 'A-Z__' <<<"$file")
        if ! grep -q "^#ifndef $macro\$" "$file" || ! grep -q "^#define $macro\$" "$file"; then
          echo "$file:1: guard: no include guard $macro"
        fi ;;
      *.h) grep -q '^#pragma once$' "$file" || echo "$file:1: guard: no #pragma once" ;;
    esac
  done
}

includes() {
  printf '%s\n' "${files[@]}" |
    awk -v generated="$(find tools -name '*.h.in' | sed 's/\.in$//')" '
      function top(path) { return substr(path, 1, index(path, "/") - 1) }
      function say(rule) { printf "%s:%d: %s: %s\n", file, line, rule, text }
      function folder(path) { sub(/\/[^\/]*$/, "", path); return path }
      function is_private(home) {
        return home in open || (home ~ /^(xdp|codec|transport|collectives)\// && !(home in public_folder))
      }
      function may_open(file, home, i, count, names, user) {
        user = folder(file)
        if (top(file) == top(home) || user ~ /^tests\/(support|simulation|fuzz|bench|hostile)$/) return 1
        count = split("tests/" top(home) (home in open ? " " open[home] : ""), names, " ")
        for (i = 1; i <= count; ++i)
          if (index(user "/", names[i] "/") == 1 || index(user "/", "tests/" names[i] "/") == 1) return 1
        return 0
      }
      function is_public(path) {
        return path in public || (folder(path) in public_folder && path ~ /\.h$/) ||
               path ~ /^(xdp|codec|transport|collectives)\/[^\/]*\.h$/
      }
      function check_quoted(path, home) {
        if (!(path in known)) { say("quotes"); return }
        if (index(" " allowed[top(file)] " ", " " top(path) " ") == 0) { say("direction"); return }
        home = folder(path)
        if (is_private(home) && !may_open(file, home)) say("private")
        if (is_public(file) && !is_public(path)) say("public")
        if (!(path in made)) note_edge(room(file), room(path))
      }
      function room(path) {
        if (path ~ /^(xdp|codec|transport|collectives)\/[^\/]*$/) sub(/\/.*\./, "/*.", path)
        else path = folder(path)
        return path
      }
      function note_edge(from, to) {
        if (from == to || (from, to) in edge) return
        rooms[from]; rooms[to]
        reaches[from, to]
        edge[from, to] = file ":" line ": circle: " text
      }
      # One line for each circle at least: of each edge of it that leads to a later folder.
      function check_circles(from, to, by, key, ends) {
        for (by in rooms) for (from in rooms) for (to in rooms)
          if ((from, by) in reaches && (by, to) in reaches) reaches[from, to]
        for (key in edge) {
          split(key, ends, SUBSEP)
          if (ends[1] < ends[2] && (ends[2], ends[1]) in reaches) print edge[key]
        }
      }
      function check_angled(path) {
        if (path in known) say("quotes")
        if (top(file) == "codec" && path !~ /^[a-z_]+$/ && path !~ /^xsimd\//) say("leaf")
      }
      BEGIN {
        allowed["bpf"] = "bpf"
        allowed["xdp"] = "xdp bpf"
        allowed["codec"] = "codec"
        allowed["transport"] = "transport xdp bpf"
        allowed["collectives"] = "collectives codec transport xdp bpf"
        allowed["tools"] = "tools collectives codec transport xdp bpf"
        allowed["tests"] = "tests tools collectives codec transport xdp bpf"
        # Folder -> folders of other top folders that include it.
        open["collectives/driver"] = "tools/check tools/doctor tools/job tools/simulation"
        open["collectives/engine"] = "tools/collective tools/flight tools/simulation"
        open["collectives/engine/call"] = "tools/flight tools/simulation"
        open["collectives/engine/hosts"] = "tools/simulation tools/reference"
        open["collectives/engine/kernels"] = "tools/doctor tools/simulation tools/reference"
        open["collectives/engine/learning"] = "tools/scale tools/simulation"
        open["collectives/engine/schedules"] = "tools/reference tools/scale tools/simulation"
        open["collectives/hosts"] = "tools/doctor tools/simulation"
        open["collectives/gloo"] = "tools/launch"
        open["collectives/flight"] = "tools/flight tools/job tests/tools/status"
        open["collectives/membership"] = "tools/flight tools/job tools/simulation"
        open["collectives/rendezvous"] = "tools/job tests/tools/flight"
        open["tools/testbed"] = ""  # no other top folder
        open["transport/ports"] = "collectives/driver collectives/membership tests/collectives" \
                                  " tools/doctor tools/job tools/simulation"
        open["transport/ports/uring"] = "collectives/driver tests/collectives tools/doctor"
        open["transport/ports/xdp"] = "collectives/driver tools/doctor"
        open["transport/seal"] = "tools/simulation"
        open["transport/simulated"] = "tools/scale tools/simulation"
        # As tools/cmake/TarponInstall.cmake installs them.
        public_folder["xdp/base"]; public_folder["collectives/environment"]
        public["bpf/wire.h"]; public["bpf/packet.h"]
        count = split(generated, names, "\n")
        for (i = 1; i <= count; ++i) { known[names[i]]; made[names[i]] }
      }
      { known[$0]; order[NR] = $0 }
      END {
        for (i = 1; i <= NR; ++i) {
          file = order[i]
          line = 0
          text = file
          if (sub(/.*\//, "", text) && text ~ /\.h$/) {
            if (text in named) printf "%s:1: name: %s has it too\n", file, named[text]
            named[text] = file
          }
          while ((getline text < file) > 0) {
            ++line
            if (text !~ /^[ \t]*#[ \t]*include/) continue
            path = text
            if (sub(/^[^"<]*"/, "", path)) { sub(/".*/, "", path); check_quoted(path) }
            else if (sub(/^[^<]*</, "", path)) { sub(/>.*/, "", path); check_angled(path) }
            else say("quotes")
          }
          close(file)
        }
        check_circles()
      }'
}

broken=$(headers; includes | LC_ALL=C sort)
[ -z "$broken" ] && echo "${#files[@]} files keep the rules" && exit
echo "$broken" >&2
exit 1
