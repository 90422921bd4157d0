# shellcheck shell=bash
# In a guest under systemd: rdmad installed as its package would, then started by its socket, used, reloaded, restarted below
# a waiting application, killed by the watchdog and stopped; the journal stays clean. After rxe_pair it serves the kernel's
# rxe, else the soft device.
# shellcheck source=guest.sh
source "$VM_DIR/guest.sh"

host=${A4:-127.0.0.1}
# rxe has UDP port 4791 to itself, on every address.
devices=
[ -z "${A4:-}" ] || devices=$'[soft]\nenabled = false\n'

fail() {
  echo "FAILED: $*"
  journalctl --no-pager -u rdmad.service -u rdmad.socket | tail -n 40
  exit 1
}

install_all() {
  install -D -m 755 daemon/rdmad client/rdmactl/rdmactl client/examples/hello -t /usr/bin &&
    install -D -m 644 systemd/rdmad.service systemd/rdmad.socket -t /usr/lib/systemd/system &&
    install -D -m 644 systemd/sysusers.conf /usr/lib/sysusers.d/rdmad.conf &&
    install -D -m 644 systemd/tmpfiles.conf /usr/lib/tmpfiles.d/rdmad.conf &&
    install -D -m 644 config/rdmad.toml -t /etc/rdmad || return
  [ -z "$devices" ] || printf '%s' "$devices" >/etc/rdmad/rdmad.toml
  # One that may attach and one that may not.
  printf 'u member - "may attach"\nm member rdma\nu stranger - "may not"\n' >/usr/lib/sysusers.d/zz-test.conf
  # Half a minute is long to wait for.
  mkdir -p /etc/systemd/system/rdmad.service.d
  printf '[Service]\nWatchdogSec=4\n' >/etc/systemd/system/rdmad.service.d/test.conf
  systemd-sysusers && systemd-tmpfiles --create rdmad.conf && systemctl daemon-reload
}
as() {
  local user=$1
  shift
  setpriv --reuid "$user" --regid "$user" --init-groups "$@"
}
property() { systemctl show -P "$1" rdmad.service; }
active() { [ "$(property ActiveState)/$(property SubState)" = active/running ]; }
gone() { [ "$(property ActiveState)" = inactive ]; }
# Emulated, rdmad takes seconds to start.
status() { rdmactl --wait 20 status >/tmp/status 2>&1 || { cat /tmp/status; return 1; }; }
journal() { journalctl --no-pager -o cat -u rdmad.service "$@"; }

check "installs" install_all || fail install

systemctl start rdmad.socket || fail "systemctl start rdmad.socket"
check "the socket alone starts no daemon" gone
check "the first rdmactl starts it" status
check "it runs" active
check "as its own user" [ "$(ps -o user= -p "$(property MainPID)")" = rdmad ]
active || fail "not running"

listens() { rdmactl --wait 20 connections 2>/dev/null | grep -qi "listen.*:$1\b"; }
# say_hello PORT: both processes of the example hear each other; the server, whose process is $server, waits already.
greets() { as member timeout 20 hello client "$host:$1" >/tmp/client 2>&1; }
say_hello() {
  wait_until 30 greets "$1" && wait_until 20 _gone "$server" && wait "$server" &&
    grep -q 'got "hello, RDMA"' /tmp/server && grep -q 'got "hello, RDMA"' /tmp/client && return
  kill "$server"
  cat /tmp/server /tmp/client
  return 1
}
hello() {
  as member hello server "$host:7471" >/tmp/server 2>&1 &
  server=$!
  say_hello 7471
}
check "a member of rdma sends and receives" hello
if [ -n "${A4:-}" ]; then
  shown() { rdmactl devices >/tmp/devices && grep -q 'rxeA .*verbs' /tmp/devices && grep -q 'rxeB .*verbs' /tmp/devices; }
  check "rdmactl shows verbs devices as any other" shown
  scrape() {
    /usr/bin/python3 -c 'import urllib.request as r; print(r.urlopen("http://127.0.0.1:9464/metrics").read().decode())' >/tmp/metrics &&
      grep -q '^rdmad_device_port_active{device="rxeA"} 1' /tmp/metrics &&
      grep -q '^rdmad_device_hw_sent_pkts_total{device="rxeA"} [1-9]' /tmp/metrics
  }
  check "the kernel's counters of it are exported" scrape
fi
refused() { as stranger rdmactl status 2>/tmp/refused; [ $? = 4 ]; }
check "a stranger is refused" refused

reload() {
  local before
  before=$(property MainPID)
  printf '%s[log]\nlevel = "debug"\n' "$devices" >/etc/rdmad/rdmad.toml
  systemctl reload rdmad && wait_until 10 reloaded && [ "$(property MainPID)" = "$before" ] && status
}
reloaded() { journal | grep -q 'reload'; }
check "systemctl reload reads the configuration, without a restart" reload

# The listener of the waiting application comes back by itself. It looks for the lost daemon for 5 s, which is less than an
# emulated one needs to start when the machine is busy: hence three tries.
restart() {
  local before
  before=$(property MainPID)
  as member hello server "$host:7472" >/tmp/server 2>&1 &
  server=$!
  wait_until 30 listens 7472 && systemctl restart rdmad && active && [ "$(property MainPID)" != "$before" ] && say_hello 7472
}
three_tries() { "$@" || "$@" || "$@"; }
check "an application that waits lives through systemctl restart" three_tries restart
check "nothing failed so far" [ "$(property NRestarts)/$(property Result)" = 0/success ]
# But for the stranger, and for who gave up while rdmad, emulated, was starting.
quiet() {
  ! journalctl --no-pager -p warning -u rdmad.service -u rdmad.socket |
    grep -v -e '-- No entries --' -e "refused uid=$(id -u stranger)" -e 'refused .* why="the session has ended"'
}
check "the journal has no warning and no error" quiet

watchdog() {
  local before
  before=$(property MainPID)
  kill -STOP "$before"
  wait_until 30 restarted "$before" && status && journal | grep -q 'Watchdog timeout'
}
restarted() { active && [ "$(property MainPID)" != "$1" ] && [ "$(property NRestarts)" = 1 ]; }
check "the watchdog kills a daemon that hangs, and another serves" watchdog
check "applications too" hello

stop() { systemctl stop rdmad.service rdmad.socket && gone && [ "$(property Result)" = success ]; }
check "systemctl stop" stop
nothing_left() { ! pgrep -x rdmad && ! [ -e /run/rdmad/attach.sock ] && ! [ -e /run/rdmad/rdmad.sock ]; }
check "neither process nor sockets are left" nothing_left

no_errors() { ! journal -p err _SYSTEMD_UNIT=rdmad.service | grep -v -- '-- No entries --'; }
check "rdmad logged no error" no_errors

# A mistake in the configuration is told, and not tried again and again.
refuses() {
  echo 'nonsense = 1' >/etc/rdmad/rdmad.toml
  ! systemctl start rdmad.service 2>/dev/null && sleep 4 && [ "$(property ActiveState)/$(property NRestarts)" = failed/0 ] &&
    journal | grep -q '/etc/rdmad/rdmad.toml:1:1: unknown key'
}
check "a bad configuration is named, once" refuses

systemd-analyze security --no-pager rdmad.service | tail -n 1
[ "$FAILED" = 0 ] || fail "see above"
