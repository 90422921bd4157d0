#!/usr/bin/python3
"""Tests icrc_check.py: against the golden captures, against damage, and against batches made here."""

import os
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))
CHECK = os.path.join(HERE, "icrc_check.py")
CAPTURES = os.path.join(os.path.dirname(HERE), "data", "rxe-pcaps")


def run(*arguments):
    result = subprocess.run([sys.executable, CHECK, *arguments], capture_output=True, text=True, check=False)
    return result.returncode, result.stdout + result.stderr


def ipv4_frame(payload, identification=0):
    """An Ethernet frame that carries a UDP payload to the RoCE port."""
    udp = struct.pack(">HHHH", 4791, 4791, 8 + len(payload), 0) + payload
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), identification, 0x4000, 64, 17, 0,
                     bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2]))
    return bytes(12) + b"\x08\x00" + ip + udp


def packet(psn, payload, identification):
    """A RC SEND_ONLY with the ICRC for an identification. Written out in the order of the header fields."""
    body = bytes([4, 0, 0xFF, 0xFF, 0, 0, 0, 9, 0]) + psn.to_bytes(3, "big") + payload
    length = 8 + len(body) + 4
    covered = (b"\xff" * 8
               + struct.pack(">BBHHHBBH4s4s", 0x45, 0xFF, 20 + length, identification, 0x4000, 0xFF, 17, 0xFFFF,
                             bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2]))
               + struct.pack(">HHHH", 4791, 4791, length, 0xFFFF)
               + body[:4] + b"\xff" + body[5:])
    return body + struct.pack("<I", zlib.crc32(covered))


class IcrcCheck(unittest.TestCase):
    def write(self, frames):
        path = os.path.join(self.folder.name, "x.pcap")
        with open(path, "wb") as file:
            file.write(struct.pack("<IHHIIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
            for frame in frames:
                file.write(struct.pack("<IIII", 0, 0, len(frame), len(frame)) + frame)
        return path

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()

    def tearDown(self):
        self.folder.cleanup()

    def test_golden_captures_are_good(self):
        paths = [os.path.join(CAPTURES, name) for name in sorted(os.listdir(CAPTURES)) if name.endswith(".pcap")]
        self.assertEqual(len(paths), 37)
        status, output = run("--min", "163", *paths)
        self.assertEqual(status, 0, output)
        status, output = run("--min", "164", *paths)
        self.assertNotEqual(status, 0)
        self.assertIn("163 RoCE packets, expected at least 164", output)

    def test_every_damaged_byte_is_seen(self):
        good = ipv4_frame(packet(1, b"payload!", 0))
        self.assertEqual(run(self.write([good]))[0], 0)
        for at in list(range(26, 34)) + list(range(42, len(good))):  # addresses, UDP payload
            damaged = bytearray(good)
            damaged[at] ^= 0x10
            status, output = run(self.write([bytes(damaged)]))
            if at == 46:  # FECN and BECN
                self.assertEqual(status, 0, output)
            else:
                self.assertEqual(status, 1, f"byte {at}: {output}")
                self.assertIn("BAD ICRC", output)

    def test_one_bad_packet_among_good_ones(self):
        good = ipv4_frame(packet(1, b"payload!", 0))
        bad = ipv4_frame(packet(1, b"payload!", 1))  # made for another identification
        status, output = run(self.write([good, bad, good]))
        self.assertEqual(status, 1)
        self.assertIn("3 RoCE packets, 1 with a bad ICRC", output)
        self.assertIn("frame 2.0", output)

    def test_batches_are_split(self):
        batch = b"".join(packet(psn, bytes([psn]) * 256, psn) for psn in range(5)) + packet(5, b"last", 5)
        status, output = run("-v", self.write([ipv4_frame(batch)]))
        self.assertEqual(status, 0, output)
        self.assertIn("6 RoCE packets, 0 with a bad ICRC", output)

    def test_a_bad_packet_in_a_batch_is_seen(self):
        batch = b"".join(packet(psn, bytes([psn]) * 256, 0 if psn == 3 else psn) for psn in range(5))
        status, output = run(self.write([ipv4_frame(batch)]))
        self.assertEqual(status, 1)
        self.assertIn("5 RoCE packets, 1 with a bad ICRC", output)
        self.assertIn("frame 1.3", output)

    def test_no_packet_is_a_failure(self):
        status, output = run(self.write([]))
        self.assertNotEqual(status, 0)
        self.assertIn("expected at least 1", output)

    def test_files_that_are_no_capture(self):
        self.assertIn("not a pcap file", run(CHECK)[1])
        self.assertNotEqual(run(CHECK)[0], 0)
        self.assertNotEqual(run("/nonexistent.pcap")[0], 0)
        path = self.write([ipv4_frame(packet(1, b"payload!", 0))])
        with open(path, "r+b") as file:
            file.truncate(os.path.getsize(path) - 1)
        status, output = run(path)
        self.assertNotEqual(status, 0)
        self.assertIn("cut short", output)


if __name__ == "__main__":
    unittest.main()
