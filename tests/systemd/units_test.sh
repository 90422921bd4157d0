#!/usr/bin/env bash
# The units are correct, hardened (exposure at most 3.0), lift the memory lock and keep RDMA devices visible; the users
# and directories that they name are made by our sysusers and tmpfiles files.
set -euo pipefail

# shellcheck source=../../bazel/skip.sh
source bazel/skip.sh
for tool in systemd-analyze systemd-sysusers systemd-tmpfiles; do
  command -v "$tool" >/dev/null || rdmad_skip "needs $tool (Debian: systemd)"
done

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
failed=0
check() {  # WHAT COMMAND...
  local what=$1
  shift
  if "$@"; then
    echo "ok: $what"
  else
    echo "FAILED: $what"
    failed=1
  fi
}

# systemd-analyze wants the program that a unit starts to be there; everything else is as installed.
units=$root/units
mkdir -p "$units"
printf '#!/bin/sh\n' >"$root/rdmad"
chmod +x "$root/rdmad"
for unit in rdmad.service rdmad.socket; do
  sed "s|^ExecStart=/usr/bin/rdmad|ExecStart=$root/rdmad|" "systemd/$unit" >"$units/$unit"
done

verify() {
  local output
  output=$(SYSTEMD_LOG_LEVEL=warning systemd-analyze verify --man=no "$units/rdmad.service" "$units/rdmad.socket" 2>&1)
  local code=$?
  # Units of the machine that ours need may have faults of their own.
  output=$(grep -F rdmad <<<"$output" || true)
  [ -z "$output" ] || echo "$output"
  [ "$code" = 0 ] && [ -z "$output" ]
}
check "systemd-analyze verify finds nothing" verify

exposure() {
  # --threshold is ten times the exposure; the exit code says whether it is exceeded.
  systemd-analyze security --offline=true --no-pager --threshold=30 "$units/rdmad.service" | tail -n 1
}
check "systemd-analyze security: exposure at most 3.0" exposure

has() { grep -qxF "$1" systemd/rdmad.service; }
check "no limit of locked memory" has 'LimitMEMLOCK=infinity'
check "RDMA devices are allowed" has 'DeviceAllow=char-infiniband* rw'
check "PrivateDevices= would hide them" bash -c '! grep -qi "^PrivateDevices=" systemd/rdmad.service'
check "started by notification" has 'Type=notify'
check "watched" has 'WatchdogSec=30'

# The users and groups of the units, made from nothing.
mkdir -p "$root/etc"
check "sysusers.conf is taken" systemd-sysusers --root="$root" "$PWD/systemd/sysusers.conf"
check "user rdmad" grep -q '^rdmad:' "$root/etc/passwd"
check "rdmad is below 1000: a system account" awk -F: '$1 == "rdmad" { exit $3 < 1000 ? 0 : 1 }' "$root/etc/passwd"
check "group rdma has rdmad" grep -Eq '^rdma:[^:]*:[^:]*:rdmad$' "$root/etc/group"

tmpfiles() {
  # As root it is really made, with its owner; others can only have it parsed.
  if [ "$(id -u)" = 0 ]; then
    systemd-tmpfiles --create --root="$root" "$PWD/systemd/tmpfiles.conf" &&
      [ "$(stat -c '%a %u' "$root/run/rdmad")" = "755 $(awk -F: '$1 == "rdmad" { print $3 }' "$root/etc/passwd")" ]
  else
    systemd-tmpfiles --create --dry-run "$PWD/systemd/tmpfiles.conf" 2>/dev/null || systemd-tmpfiles --cat-config >/dev/null
  fi
}
check "tmpfiles.conf makes the run directory" tmpfiles

exit "$failed"
