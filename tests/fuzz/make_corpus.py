#!/usr/bin/env python3
"""Makes the first corpora from the kernel's packets in tests/data/rxe-pcaps: make_corpus.py, from the top folder.

One input a capture: its packets as records (see targets.h), fitted to the state of the fuzzed QPs or ids; the same for
a UC, a datagram, an SRQ's and a QP with a window. What fuzzing adds later lies beside these under names of its own.
"""
import glob
import os
import struct

MAX_BYTES = 6000
MAX_VARIANT_BYTES = 3000


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


def qp(number):
    """The bits of a record's kind that name this QP of the transport target."""
    return (number & 3) << 6 | (number >> 2) << 4


def variants(datagram):
    """What the QPs are called, their numbers and how to fit a capture's packets to them."""
    if datagram:
        return (('ud', 9, 0x10), ('group', 9, 0x11), ('ud-srq', 10, 0x10))
    return (('uc', 6, 0x17), ('uc-srq', 8, 0x17), ('srq', 4, 0x07), ('window', 0, 0x27))


def slot(opcode, length, flags=1):
    """A work queue slot of one SGE; see proto/shm/work_queue.h."""
    head = struct.pack('<QBBBBIQIIQQIIII', 1, opcode, flags, 1, 0, 7, 64, 0, 0, 1, 2, 1, 0, 0, 0)
    return head + struct.pack('<QII', 4096, length, 0) + bytes(48)


def engine_inputs():
    """Good posts to each QP, and some of what a client should not do."""
    for i in range(6):
        posts = record(0 | 6 << 3, 1, slot(0, 2000)) + record(0 | i << 3, 3, slot(0, 2000))
        for opcode in range(10):
            posts += record(0 | i << 3, 1, slot(opcode, 8 if opcode in (6, 7) else 100))
        yield f'posts-{i}', posts + record(4, 0, b'', 0)
        # The tail far ahead, an index of the completion queue, a doorbell of nobody, a reset.
        yield f'scribble-{i}', (posts + record(2 | (2 + 2 * i) << 3 & 0xff, 0x81, bytes(2)) +
                                record(2 | 1 << 3, 0xc0, b'\xff' * 2) + record(3, 7, b'', 0) +
                                record(5 | i << 3, 0, b'', 0) + record(6 | i << 3, 0, b'', 0) + posts)


def congestion_inputs():
    """Something under way, notifications of marks on it, and a packet that has both bits and a mark."""
    cnp = bytes([0x81, 0x40, 0xff, 0xff, 0x40, 0, 0, 0x11]) + bytes(4 + 16 + 4)
    write_only = bytes([0x0a, 0x40, 0xff, 0xff, 0x40, 0, 0, 0x11, 0x80, 0, 0, 0]) + bytes(16 + 8 + 4)
    for number in (0, 3, 4, 6, 9, 13):
        at = qp(number)
        data = record(4 | at, 0x17, b'', 60000) + record(6 | at, 4, b'', 100)
        for _ in range(3):
            data += record(at, 0, cnp) + record(at, 0x5f, write_only) + record(6 | at, 8, b'', 300)
        yield f'congestion-{number}', data


def frame(kind, flags, stream, payload=b''):
    """Of HTTP/2."""
    return struct.pack('>I', len(payload))[1:] + struct.pack('>BBI', kind, flags, stream) + payload


def grpc_inputs():
    """Calls as clients make them, and the frames that floods are made of."""
    def field(name, value):
        return b'\0' + bytes([len(name)]) + name + bytes([len(value)]) + value

    def piece(how, data):
        return struct.pack('<BH', how, len(data)) + data

    fields = b''.join(field(*pair) for pair in (
        (b':method', b'POST'), (b':scheme', b'http'), (b':path', b'/rdmad.v1.AdminService/GetStatus'),
        (b':authority', b'x'), (b'te', b'trailers'), (b'content-type', b'application/grpc'),
        (b'rdmad-token-bin', b'YWJj')))
    hello = piece(4, b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + frame(4, 0, 0))
    calls = b''.join(piece(5, frame(1, 4, stream, fields) + frame(0, 1, stream, struct.pack('>BI', 0, 3) + b'abc'))
                     for stream in (1, 3, 5))
    yield 'calls', hello + calls
    yield 'reset', hello + piece(0, frame(1, 4, 1, fields) + frame(3, 0, 1, struct.pack('>I', 8))) + calls[:0]
    yield 'continued', hello + piece(0, frame(1, 0, 1, fields[:50])) + piece(4, frame(9, 4, 1, fields[50:]))
    yield 'control', hello + piece(4, frame(6, 0, 0, bytes(8)) + frame(8, 0, 0, struct.pack('>I', 1000)) +
                                   frame(4, 1, 0) + frame(7, 0, 0, bytes(8))) + piece(0xf4, b'')


def main():
    folder = 'tests/fuzz/corpus'
    for target in ('cm', 'engine', 'grpc', 'transport', 'work_queue'):
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
            for variant, number, fit in variants(name.startswith(('ud', 'mckey', 'ipv6-ud'))):
                if len(packets) > MAX_VARIANT_BYTES:
                    continue
                fitted = record(4 | qp(number), 0x1d, b'', 512) + record(4 | qp(number), 0x11, b'', 512)
                for payload in datagrams(path):
                    if int.from_bytes(payload[5:8], 'big') != 1:
                        fitted += record(5 | qp(number), 0, b'', 4096) + record(qp(number), fit, payload)
                open(f'{folder}/transport/{name}-{variant}', 'wb').write(fitted)
        if mads and len(mads) <= MAX_BYTES:
            open(f'{folder}/cm/{name}', 'wb').write(mads)
    for opcode in range(10):
        sent = slot(opcode, 8 if opcode in (6, 7) else 100)
        receive = struct.pack('<BB', 1, 0x70) + sent
        open(f'{folder}/work_queue/op-{opcode}', 'wb').write(receive + struct.pack('<BB', 0, 0x70) + sent)
    for name, data in congestion_inputs():
        open(f'{folder}/transport/{name}', 'wb').write(data)
    for name, data in grpc_inputs():
        open(f'{folder}/grpc/{name}', 'wb').write(data)
    for name, data in engine_inputs():
        open(f'{folder}/engine/{name}', 'wb').write(data)


if __name__ == '__main__':
    main()
