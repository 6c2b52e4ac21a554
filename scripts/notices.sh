#!/bin/bash
# Prints THIRD_PARTY_NOTICES: everything that is in the binary and not ours, with
# its licence. `scripts/notices.sh > THIRD_PARTY_NOTICES` brings the file up to
# date; a test of internal/e2e fails when it is not.
set -euo pipefail
cd "$(dirname "$0")/.."

# spdx names the licence of a file by the words that only it has.
spdx() {
  local text
  text=$(tr -s '[:space:]' ' ' <"$1")
  case $text in
    *"Apache License"*"Version 2.0"*) echo Apache-2.0 ;;
    *"Permission is hereby granted, free of charge"*) echo MIT ;;
    *"Redistribution and use in source and binary forms"*"either the name"*) echo BSD-3-Clause ;;
    *"Redistribution and use in source and binary forms"*) echo BSD-2-Clause ;;
    *"Permission to use, copy, modify, and"*) echo ISC ;;
    *[Pp]"ublic domain"* | *"Public Domain"*) echo "public domain" ;;
    *) echo "notices.sh: the licence in $1 is not known; look at it and add it" >&2 && return 1 ;;
  esac
}

rule() { printf '%.0s-' {1..78}; echo; }

# entry NAME VERSION DIR: the licences and notices in a directory. The text of
# Apache-2.0 is printed once, at the end.
entry() {
  local f id files=() extra=()
  for f in "$3"/*; do
    case ${f##*/} in
      *.go | *.json | *LOGO*) ;; # code, data, and a picture that is not in the binary
      LICENSE-3RD-PARTY* | NOTICE*) extra+=("$f") ;;
      LICEN[SC]E* | COPYING*) files+=("$f") ;;
    esac
  done
  if ((${#files[@]} == 0)); then
    echo "notices.sh: $1 has no licence file in $3" >&2
    return 1
  fi
  rule
  echo "$1${2:+ $2}"
  for f in "${files[@]}"; do
    id=$(spdx "$f")
    echo "Licence: $id (${f##*/})"
    if [ "$id" = Apache-2.0 ]; then
      grep -iE '^ *copyright +(\(c\)|©|[12][0-9]{3})' "$f" | sed 's/^ *//' || true
    else
      echo && cat "$f" && echo
    fi
  done
  for f in "${extra[@]}"; do
    echo && echo "${f##*/}:" && echo && cat "$f" && echo
  done
  echo
}

# The modules differ by system; all systems that are built for are in.
modules() {
  local os arch
  for os in linux darwin; do
    for arch in amd64 arm64; do
      GOOS=$os GOARCH=$arch CGO_ENABLED=0 go list -deps \
        -f '{{with .Module}}{{if not .Main}}{{with .Replace}}{{.Path}} {{.Version}} {{.Dir}}{{else}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}{{end}}' ./cmd/sluice
    done
  done | LC_ALL=C sort -u
}

list=$(modules)
cat <<'T'
Third-party notices

Sluice is licensed under Apache-2.0 (see LICENSE). Its binary contains the
software below, each part under its own licence. This file is made by
scripts/notices.sh.

T
entry "The Go standard library and runtime" "" "$(go env GOROOT)"
while read -r path version dir; do
  entry "$path" "$version" "$dir"
done <<<"$list"
# Vendored assets of the UI lie in directories with their licence beside them.
while IFS= read -r f; do
  dir=$(dirname "$f")
  entry "$dir (part of the web UI)" "" "$dir"
done < <(find web -type f -iname 'LICEN[SC]E*' | LC_ALL=C sort)
rule
echo "Apache-2.0, the text of the parts above that are under it"
echo
cat LICENSE
