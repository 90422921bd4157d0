#!/usr/bin/env python3
"""Makes the first corpora from the kernel's packets in tests/data/rxe-pcaps: make_corpus.py, from the top folder.

One input a capture: its packets as records (see targets.h), fitted to the state of the fuzzed QPs or ids. What fuzzing
adds later lies beside these under names of its own.
"""
import glob
import os
import struct

MAX_BYTES = 6000


def datagrams(path):
    """The UDP payloads of a capture."""
    data = open(path, 'rb').read()
    at = 24
    while at < len(data):
        size = struct.unpack_from('<IIII', data, at)[2]
        frame = data[at + 16:at + 16 + size]
        at += 16 + size
        kind = struct.unpack_from('>H', frame, 12)[0]
        if kind == 0x0800 and frame[23] == 17:
            yield frame[14 + (frame[14] & 15) * 4 + 8:]
        elif kind == 0x86dd and frame[20] == 17:
            yield frame[62:]


def record(kind, fit, payload, length=None):
    return struct.pack('<BBH', kind, fit, len(payload) if length is None else length) + payload


def main():
    folder = 'tests/fuzz/corpus'
    for target in ('transport', 'cm', 'work_queue'):
        os.makedirs(f'{folder}/{target}', exist_ok=True)
    for path in sorted(glob.glob('tests/data/rxe-pcaps/*.pcap')):
        name = os.path.basename(path)[:-5]
        packets, mads = b'', b''
        for payload in datagrams(path):
            destination = int.from_bytes(payload[5:8], 'big')
            if destination == 1:
                # BTH and DETH before, ICRC behind.
                mads += record(8, 3, payload[20:20 + 256])
            else:
                packets += record(5, 0, b'', 4096) + record(0, 7, payload)
        if packets and len(packets) <= MAX_BYTES:
            start = record(4, 0x10, b'', 512) + record(4, 0x15, b'', 512)
            open(f'{folder}/transport/{name}', 'wb').write(start + packets)
        if mads and len(mads) <= MAX_BYTES:
            open(f'{folder}/cm/{name}', 'wb').write(mads)
    for opcode in range(10):
        slot = struct.pack('<QBBBBIQIIQQIIII', 1, opcode, 1, 1, 0, 7, 64, 0, 0, 1, 2, 0, 0, 0, 0)
        slot += struct.pack('<QII', 4096, 8 if opcode in (6, 7) else 100, 0) + bytes(48)
        receive = struct.pack('<BB', 1, 0x70) + slot
        open(f'{folder}/work_queue/op-{opcode}', 'wb').write(receive + struct.pack('<BB', 0, 0x70) + slot)


if __name__ == '__main__':
    main()
