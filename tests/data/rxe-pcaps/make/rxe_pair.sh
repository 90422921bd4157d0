# Shell functions for pcaps.sh: two kernel rxe devices whose packets really cross a veth pair, captures of it, and a
# way to run a server and a client. Sourced; run as root in a throwaway virtual machine.

# rxe_pair - devices vA/rxeA (10.77.0.1 fd77::1) and vB/rxeB (10.77.0.2 fd77::2), both in the initial namespace, as
# rxe of Linux 6.1 knows no other. Policy routing makes the kernel send between its own addresses by wire. Sets A4, A6,
# B4, B6.
rxe_pair() {
    modprobe rdma_rxe
    echo 0 > /proc/sys/net/ipv6/conf/all/accept_dad
    echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad
    ip link add vA mtu 9000 type veth peer name vB mtu 9000
    local i f a b macA macB
    for i in vA vB; do
        for f in accept_local=1 rp_filter=0 arp_ignore=1 route_localnet=0; do
            echo "${f#*=}" > "/proc/sys/net/ipv4/conf/$i/${f%=*}"
        done
    done
    echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter
    A4=10.77.0.1 B4=10.77.0.2 A6=fd77::1 B6=fd77::2
    ip addr add $A4/24 dev vA; ip addr add $A6/64 dev vA
    ip addr add $B4/24 dev vB; ip addr add $B6/64 dev vB
    ip link set vA up; ip link set vB up
    macA=$(cat /sys/class/net/vA/address) macB=$(cat /sys/class/net/vB/address)
    for f in 4 6; do
        if [ $f = 4 ]; then a=$A4 b=$B4; else a=$A6 b=$B6; fi
        ip -$f neigh replace $b lladdr "$macB" dev vA nud permanent
        ip -$f neigh replace $a lladdr "$macA" dev vB nud permanent
        ip -$f route add $b dev vA src $a table 100
        ip -$f route add $a dev vB src $b table 101
        ip -$f rule add pref 1 to $b iif vB lookup local
        ip -$f rule add pref 2 to $a iif vA lookup local
        ip -$f rule add pref 10 to $b lookup 100
        ip -$f rule add pref 11 to $a lookup 101
        ip -$f rule add pref 100 lookup local
        ip -$f rule del pref 0
    done
    rdma link add rxeA type rxe netdev vA
    rdma link add rxeB type rxe netdev vB
}

# gid_index DEVICE ADDRESS - the index of the address's RoCE v2 GID
gid_index() {
    /usr/bin/python3 - "$1" "$2" <<'PY'
import ipaddress, os, sys, time
device, text = sys.argv[1:]
address = ipaddress.ip_address(text)
if address.version == 4:
    address = ipaddress.ip_address("::ffff:" + text)
port = f"/sys/class/infiniband/{device}/ports/1/"
for attempt in range(20):
    for index in sorted(map(int, os.listdir(port + "gids"))):
        try:
            gid = open(f"{port}gids/{index}").read().strip()
            kind = open(f"{port}gid_attrs/types/{index}").read().strip()
        except OSError:
            continue
        if ipaddress.ip_address(gid) == address and kind == "RoCE v2":
            sys.exit(print(index))
    time.sleep(0.1)
sys.exit(f"no GID for {text} on {device}")
PY
}

# pcap_start FILE [FILTER] / pcap_stop - capture on vA
pcap_start() {
    tcpdump -i vA -w "$1" -U -s 0 -B 4096 --immediate-mode "${2:-udp port 4791}" 2> /run/pcap.err &
    PCAP_PID=$!
    local i
    for i in {1..60}; do grep -q 'listening on' /run/pcap.err && return; sleep 0.1; done
    echo "tcpdump did not start: $(cat /run/pcap.err)" >&2
    return 1
}
pcap_stop() { sleep 0.3; kill -INT $PCAP_PID; wait $PCAP_PID; }

# serve_and SERVER CLIENT - runs both command lines, the client two seconds after the server; at most 20 s
serve_and() {
    timeout 22 bash -c "exec $1" & local server=$!
    sleep 2
    timeout 20 bash -c "exec $2"; CRC=$?
    sleep 1; kill $server 2> /dev/null
    wait $server; SRC=$?
}
