# pcaps.sh OUTDIR - makes the captures of this folder again. Run as root in a throwaway virtual machine with rdma_rxe,
# rdmacm-utils, python3-pyverbs, iproute2 and tcpdump.
set -u
OUT=${1:?usage: pcaps.sh OUTDIR}
HERE=$(dirname "$(readlink -f "$0")")
. "$HERE/rxe_pair.sh"
mkdir -p "$OUT"
rxe_pair
GA=$(gid_index rxeA $A4) GB=$(gid_index rxeB $B4) GA6=$(gid_index rxeA $A6) GB6=$(gid_index rxeB $B6)

op() { # FILE OPERATION [SIZE]
    pcap_start "$OUT/$1.pcap"
    timeout 20 /usr/bin/python3 "$HERE/op.py" "$2" ${GIDS:-$GA $GB} ${3:-} > "$OUT/$1.log" 2>&1
    echo "$1: $? $(tail -1 "$OUT/$1.log")"
    pcap_stop
}
pair() { # FILE SERVER CLIENT [FILTER]
    pcap_start "$OUT/$1.pcap" "${4:-udp port 4791}"
    serve_and "$2" "$3" > "$OUT/$1.log" 2>&1
    echo "$1: server $SRC client $CRC"
    pcap_stop
}

pair rping-1 "rping -s -a $B4 -C 1 -v" "rping -c -a $B4 -I $A4 -C 1 -v"
pair rping-1-ipv6 "rping -s -a $B6 -C 1 -v" "rping -c -a $B6 -I $A6 -C 1 -v"
pair reject-no-listener "true" "rping -c -a $B4 -I $A4 -p 9998 -C 1"
pair ucmatose-1 "ucmatose -b $B4 -C 2 -S 100" "ucmatose -s $B4 -b $A4 -C 2 -S 100"
pair udaddy-1 "udaddy -b $B4 -C 2 -S 100" "udaddy -s $B4 -b $A4 -C 2 -S 100"
pair mckey "mckey -m 239.7.7.7 -b $B4 -C 3 -S 100" "mckey -m 239.7.7.7 -b $A4 -s -C 3 -S 100" "udp port 4791 or igmp"
pair cmtime-1 "cmtime -b $B4" "cmtime -s $B4 -b $A4 -c 1"
op write-256 write 256
op write-multi write 10000
op write-imm writeimm 300
op write-imm-multi writeimm 10000
op read-256 read 256
op read-multi read 10000
op read-3x-multi read3 9000
op send-256 send 256
op send-odd-pad send 255
op send-multi send 10000
op send-3 send3 64
op send-imm sendimm 100
op zero-length zero
op atomic-cas cas
op atomic-faa faa
op bad-rkey-write badrkey 256
op bad-rkey-read badrkeyread 256
op out-of-bounds-write outofbounds 256
op short-recv shortrecv 256
op rnr-then-ok rnr 64
op rnr-exhausted rnrfail 64
op nak-psn badpsn 64
op no-such-qp noqp 64
op ud-send ud 200
op ud-send-imm udimm 4096
op uc-send uc-send 10000
op uc-write uc-write 10000
GIDS="$GA6 $GB6"
op ipv6-write-multi write 10000
op ipv6-ud ud 200
GIDS=
op mw-bind-write sendinv 100
