# shellcheck shell=bash disable=SC2034  # variables in capitals are the caller's
# For scripts in a guest of tests/vm/vm: `source "$VM_DIR/guest.sh"`. Functions that set up the kernel's RDMA devices and
# networks, and helpers to use them. Variables in capitals are what a function leaves to its caller.
#
# Set-ups, each to be called once at most (MTU=BYTES before it changes the default of 9000, RoCE path MTU 4096):
#
#   rxe_dummy   rxe0 on a dummy interface, 10.7.0.1 and fd07::1; packets stay in the driver
#   rxe_lo      rxelo on lo, 127.0.0.1
#   rxe_pair    rxeA on vA (10.77.0.1, fd77::1) and rxeB on vB (10.77.0.2, fd77::2), both in the first network namespace
#               (rxe 6.1 knows no other), whose packets cross the veth pair: two hosts, as far as programs can see
#   two_hosts   rxeA on vA (10.77.0.1, fd77::1) against vB (10.77.0.2, fd77::2) in the namespace "peer", where there is
#               no rxe and UDP port 4791 is free: the kernel against a user-space device. `in_peer COMMAND...`
#   two_hosts_1500  the same on links of 1500 bytes, path MTU 1024

note() { echo "guest: $*" >&2; }

# make_rxe NETDEV NAME: a soft-RoCE device on an interface of the first network namespace that is up.
make_rxe() { rdma link add "$2" type rxe netdev "$1"; }

# Addresses are usable at once, without duplicate address detection.
_no_dad() {
  local scope
  for scope in all default; do echo 0 >"/proc/sys/net/ipv6/conf/$scope/accept_dad"; done
}

rxe_dummy() {
  _no_dad
  ip link add d0 type dummy && ip link set d0 mtu "${MTU:-9000}" up
  ip addr add 10.7.0.1/24 dev d0 && ip addr add fd07::1/64 dev d0
  make_rxe d0 rxe0
  A4=10.7.0.1 A6=fd07::1
}

rxe_lo() {
  ip link set lo up
  make_rxe lo rxelo
  A4=127.0.0.1 A6=::1
}

# veth vA and vB with the addresses that they have in either set-up. $1: the namespace of vB, or nothing.
_veth() {
  _no_dad
  ip link add vA mtu "${MTU:-9000}" type veth peer name vB mtu "${MTU:-9000}"
  A4=10.77.0.1 B4=10.77.0.2 A6=fd77::1 B6=fd77::2
  ip addr add $A4/24 dev vA && ip addr add $A6/64 dev vA && ip link set vA up
  local there=()
  if [ -n "$1" ]; then
    ip netns add "$1" && ip link set vB netns "$1"
    there=(ip netns exec "$1")
    "${there[@]}" ip link set lo up
    "${there[@]}" sh -c 'echo 0 >/proc/sys/net/ipv6/conf/vB/accept_dad'
  fi
  "${there[@]}" ip addr add $B4/24 dev vB && "${there[@]}" ip addr add $B6/64 dev vB && "${there[@]}" ip link set vB up
}

two_hosts() {
  _veth peer
  make_rxe vA rxeA
}
two_hosts_1500() {
  MTU=1500
  two_hosts
}
in_peer() { ip netns exec peer "$@"; }

rxe_pair() {
  _veth ""
  local link family a b mac_a mac_b
  for link in vA vB; do
    echo 1 >/proc/sys/net/ipv4/conf/$link/accept_local
    echo 0 >/proc/sys/net/ipv4/conf/$link/rp_filter
    echo 1 >/proc/sys/net/ipv4/conf/$link/arp_ignore
  done
  echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
  mac_a=$(</sys/class/net/vA/address) mac_b=$(</sys/class/net/vB/address)
  for family in 4 6; do
    if [ $family = 4 ]; then a=$A4 b=$B4; else a=$A6 b=$B6; fi
    ip -$family neigh replace $b lladdr "$mac_b" dev vA nud permanent
    ip -$family neigh replace $a lladdr "$mac_a" dev vB nud permanent
    ip -$family route add $b dev vA src $a table 100
    ip -$family route add $a dev vB src $b table 101
    # What came by the right wire is for us; everything else to these addresses goes by wire.
    ip -$family rule add pref 1 to $b iif vB lookup local
    ip -$family rule add pref 2 to $a iif vA lookup local
    ip -$family rule add pref 10 to $b lookup 100
    ip -$family rule add pref 11 to $a lookup 101
    ip -$family rule add pref 100 lookup local
    ip -$family rule del pref 0
  done
  make_rxe vA rxeA && make_rxe vB rxeB
  # For LoopbackTest (tests/integration).
  export RDMAD_TEST_VERBS="rxeA,$A4,$A6 rxeB,$B4,$B6"
}

# An address as sysfs writes a GID. IPv6 addresses may have one "::".
_gid_of() {
  local address=$1 head tail words missing
  if [[ $address == *.* ]]; then
    # shellcheck disable=SC2046,SC2086  # one word a byte
    printf '0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x\n' ${address//./ }
    return
  fi
  head=${address%%::*} tail=
  [[ $address != *::* ]] || tail=${address##*::}
  # shellcheck disable=SC2206  # one word a group
  words=(${head//:/ }) && missing=(${tail//:/ })
  while [ $((${#words[@]} + ${#missing[@]})) -lt 8 ]; do words+=(0); done
  # shellcheck disable=SC2046,SC2183
  printf '%04x:%04x:%04x:%04x:%04x:%04x:%04x:%04x\n' $(printf '0x%s ' "${words[@]}" "${missing[@]}")
}

# gid_index DEVICE ADDRESS: prints the index of the address's RoCE v2 GID.
gid_index() {
  local port=/sys/class/infiniband/$1/ports/1 gid file
  gid=$(_gid_of "$2")
  for _ in {1..50}; do
    for file in "$port"/gids/*; do
      if [ "$(<"$file")" = "$gid" ] && [ "$(cat "$port/gid_attrs/types/${file##*/}" 2>/dev/null)" = "RoCE v2" ]; then
        echo "${file##*/}"
        return
      fi
    done
    sleep 0.1
  done
  note "no RoCE v2 GID for $2 on $1"
  return 1
}

# wait_until SECONDS COMMAND...: tries the command until it succeeds; 1 when it never did.
wait_until() {
  local end=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || return 1
    sleep 0.1
  done
}

# serve_and SECONDS 'SERVER' 'CLIENT': starts the server, waits until something more listens (rdma_cm, or TCP) or 2 s have
# passed, and runs the client for at most that long. SRC and CRC are how they ended (124: stopped after SECONDS; a
# server has 3 s to end after its client, and SRC is "killed" if it did not); their output is in $SLOG and $CLOG.
_listeners() { echo "$(rdma res show cm_id 2>/dev/null | grep -c LISTEN) $(ss -Hltn | wc -l)"; }
_more_listeners() { [ "$(_listeners)" != "$1" ]; }
_gone() { ! kill -0 "$1" 2>/dev/null; }
serve_and() {
  SLOG=$(mktemp) CLOG=$(mktemp)
  local before server
  before=$(_listeners)
  setsid bash -c "$2" >"$SLOG" 2>&1 &
  server=$!
  wait_until 2 _more_listeners "$before"
  CRC=0
  timeout -k 3 "$1" bash -c "$3" >"$CLOG" 2>&1 || CRC=$?
  wait_until 3 _gone $server
  if _gone $server; then
    SRC=0
    wait $server || SRC=$?
  else
    kill -KILL -- -$server 2>/dev/null
    wait $server 2>/dev/null
    SRC=killed
  fi
}

# check WHAT COMMAND...: one step of a test, "ok" or "FAILED"; end the script with `exit "$FAILED"`.
FAILED=0
check() {
  local what=$1
  shift
  if "$@"; then
    echo "ok: $what"
  else
    echo "FAILED: $what"
    FAILED=1
  fi
}
