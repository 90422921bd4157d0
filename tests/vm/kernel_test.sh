# shellcheck shell=bash
# In a guest with rxe_pair: the kernel is Debian's, its soft-RoCE devices show, and rping moves checked data by SEND, RDMA READ
# and RDMA WRITE between them, over packets that cross the wire.
# shellcheck source=guest.sh
source "$VM_DIR/guest.sh"
# shellcheck source=../../bazel/setup.sh
source bazel/setup.sh

ibv_devinfo=$(rdmad_tool ibv_devinfo) && rping=$(rdmad_tool rping) || exit 1

check "the kernel is the one that was fetched" [ "$(uname -r)" = "$VM_KERNEL" ]
shows() {
  local output
  output=$("$ibv_devinfo" -d "$1") && grep -q 'state:.*PORT_ACTIVE' <<<"$output" && grep -q 'active_mtu:.*4096' <<<"$output" && return
  echo "$output"
  return 1
}
check "rxeA shows as an active RoCE device" shows rxeA
check "rxeB too" shows rxeB
has_gid() { gid_index "$@" >/dev/null; }
check "the IPv4 GID of rxeA" has_gid rxeA "$A4"
check "the IPv6 GID of rxeB" has_gid rxeB "$B6"

rping_works() {
  local address=$1 before after
  before=$(</sys/class/net/vA/statistics/tx_packets)
  serve_and 60 "exec $rping -s -a $address -C 10 -V -S 4096" "exec $rping -c -a $address -C 10 -V -S 4096"
  after=$(</sys/class/net/vA/statistics/tx_packets)
  # Each of the 10 rounds is at least two messages, a read and a write.
  [ "$SRC" = 0 ] && [ "$CRC" = 0 ] && [ $((after - before)) -ge 40 ] && return
  echo "server: $SRC, client: $CRC, $((after - before)) packets"
  cat "$SLOG" "$CLOG"
  return 1
}
check "rping over IPv4" rping_works "$B4"
check "rping over IPv6" rping_works "$B6"
exit "$FAILED"
