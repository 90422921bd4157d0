#!/usr/bin/python3
"""icrc_check.py [-v] [--min N] PCAP... - checks the ICRC of every RoCEv2 packet of captures.

Exit status 0 only if every packet is good and there are at least N (1) of them. Independent of the daemon's code:
zlib and the standard library only.

The ICRC is the CRC-32 (as Ethernet's) of 8 bytes of ones, the IP header with TOS, TTL and checksum as ones (IPv6:
traffic class, flow label, hop limit), the UDP header with its checksum as ones, the BTH with byte 4 as ones, and all
that follows up to the ICRC, pad included. It is sent least significant byte first.

A sender that hands the kernel many packets at once (UDP_SEGMENT) is captured before the kernel splits them: one frame of
several packets, of which packet i will get the IPv4 identification of the frame plus i. Such frames are split here;
the size of the packets is found by trying.

Reads classic pcap, any byte order, micro- and nanoseconds: Ethernet, Linux "any" captures, raw IP.
"""

import argparse
import struct
import sys
import zlib

PORT = 4791
MAX_PACKET = 40 + 4096 + 3 + 4  # headers, payload, pad, ICRC


class BadCapture(Exception):
    pass


def frames(path):
    """Yields (link type, bytes) of every frame."""
    with open(path, "rb") as file:
        data = file.read()
    for order in "<>":
        if len(data) >= 24 and struct.unpack_from(order + "I", data)[0] in (0xA1B2C3D4, 0xA1B23C4D):
            break
    else:
        raise BadCapture(f"{path}: not a pcap file")
    link_type = struct.unpack_from(order + "I", data, 20)[0] & 0x0FFFFFFF
    at = 24
    while at < len(data):
        if at + 16 > len(data):
            raise BadCapture(f"{path}: cut short")
        _, _, captured, length = struct.unpack_from(order + "IIII", data, at)
        at += 16
        if captured != length:
            raise BadCapture(f"{path}: a frame was not captured whole (tcpdump -s 0)")
        if at + captured > len(data):
            raise BadCapture(f"{path}: cut short")
        yield link_type, data[at:at + captured]
        at += captured


def ip_of(link_type, frame):
    """The IP packet in a frame, or None."""
    headers = {1: 14, 12: 0, 101: 0, 113: 16, 276: 20}  # Ethernet, raw, raw, cooked, cooked 2
    if link_type not in headers:
        raise BadCapture(f"link type {link_type} is not supported")
    size = headers[link_type]
    kind_at = {1: 12, 113: 14, 276: 0}.get(link_type)
    if kind_at is not None and frame[kind_at:kind_at + 2] not in (b"\x08\x00", b"\x86\xdd"):
        return None
    return frame[size:]


def roce(packet):
    """(IP header, UDP header, UDP payload) if the packet is UDP to the RoCE port, else None."""
    if len(packet) >= 20 and packet[0] >> 4 == 4 and packet[9] == 17:
        header = (packet[0] & 15) * 4
        if struct.unpack_from(">H", packet, 6)[0] & 0x3FFF:
            return None  # a fragment
        total = struct.unpack_from(">H", packet, 2)[0] or len(packet)  # 0: too long to say, a batch
        ip, udp = packet[:header], packet[header:total]
    elif len(packet) >= 40 and packet[0] >> 4 == 6 and packet[6] == 17:
        length = struct.unpack_from(">H", packet, 4)[0] or len(packet) - 40
        ip, udp = packet[:40], packet[40:40 + length]
    else:
        return None
    if len(udp) < 8 or struct.unpack_from(">H", udp, 2)[0] != PORT:
        return None
    return ip, udp[:8], udp[8:]


def icrc(ip, udp, payload, index=0):
    """The ICRC that `payload` (a whole packet, ICRC included) should have as packet `index` of its batch."""
    ip, udp, body = bytearray(ip), bytearray(udp), bytearray(payload[:-4])
    length = 8 + len(payload)
    if ip[0] >> 4 == 4:
        ip[1] = ip[8] = 0xFF
        ip[10:12] = b"\xff\xff"
        struct.pack_into(">H", ip, 2, len(ip) + length)
        struct.pack_into(">H", ip, 4, struct.unpack_from(">H", ip, 4)[0] + index & 0xFFFF)
    else:
        ip[0] |= 0x0F
        ip[1:4] = b"\xff\xff\xff"
        ip[7] = 0xFF
        struct.pack_into(">H", ip, 4, length)
    struct.pack_into(">H", udp, 4, length)
    udp[6:8] = b"\xff\xff"
    body[4] = 0xFF
    return zlib.crc32(b"\xff" * 8 + bytes(ip) + bytes(udp) + bytes(body)).to_bytes(4, "little")


def is_good(ip, udp, payload, index=0):
    return len(payload) >= 16 and icrc(ip, udp, payload, index) == payload[-4:]


def split(ip, udp, payload):
    """The packets of a frame: itself, or the equal pieces (the last may be shorter) that make its first one good."""
    if not is_good(ip, udp, payload):
        for size in range(16, min(MAX_PACKET, len(payload) - 1) + 1, 4):
            if is_good(ip, udp, payload[:size]):
                return [payload[at:at + size] for at in range(0, len(payload), size)]
    return [payload]


def describe(ip, udp, payload, index):
    if ip[0] >> 4 == 4:
        source, destination = (".".join(map(str, ip[at:at + 4])) for at in (12, 16))
        identification = f" id={(struct.unpack_from('>H', ip, 4)[0] + index) & 0xFFFF:#x}"
    else:
        source, destination = (ip[at:at + 16].hex() for at in (8, 24))
        identification = ""
    if len(payload) < 16:
        return f"{source} > {destination}: {len(payload)} bytes"
    return (f"{source} > {destination}:{identification} opcode={payload[0]:#04x}"
            f" qp={int.from_bytes(payload[5:8], 'big'):#x} psn={int.from_bytes(payload[9:12], 'big'):#x}"
            f" bytes={len(payload)}")


def check(path, verbose):
    """Checks one file; returns (packets, bad packets)."""
    count = bad = 0
    for number, (link_type, frame) in enumerate(frames(path), 1):
        packet = ip_of(link_type, frame)
        parts = packet and roce(packet)
        if not parts:
            continue
        ip, udp, batch = parts
        for index, payload in enumerate(split(ip, udp, batch)):
            good = is_good(ip, udp, payload, index)
            count += 1
            bad += not good
            if verbose or not good:
                print(f"{path}: frame {number}.{index} {describe(ip, udp, payload, index)}{'' if good else ' BAD ICRC'}")
    print(f"{path}: {count} RoCE packets, {bad} with a bad ICRC")
    return count, bad


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-v", "--verbose", action="store_true", help="list every packet")
    parser.add_argument("--min", type=int, default=1, metavar="N", help="fail if there are fewer packets than this")
    parser.add_argument("pcap", nargs="+")
    options = parser.parse_args()
    count = bad = 0
    try:
        for path in options.pcap:
            file_count, file_bad = check(path, options.verbose)
            count += file_count
            bad += file_bad
    except (BadCapture, OSError) as error:
        sys.exit(f"icrc_check: {error}")
    if count < options.min:
        sys.exit(f"icrc_check: {count} RoCE packets, expected at least {options.min}")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
