#!/usr/bin/python3
"""Tests of what tests/bench/compare does without measuring: parsers, medians and ratios, rows, report."""

import contextlib
import io
import json
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import compare  # noqa: E402  (found beside this file)
import machine  # noqa: E402
import parsers  # noqa: E402
import report  # noqa: E402
import rows  # noqa: E402
from ratios import Spread, Target, ratio_of, spread_of  # noqa: E402

LATENCY = {"metric": "latency", "mode": "send", "wait": "blocking", "size_bytes": 64, "operations": 3, "seconds": 1.0,
           "round_trip": True, "min_us": 9.3, "p50_us": 12.4, "p90_us": 15.2, "p99_us": 17.3, "p999_us": 49.3,
           "max_us": 1822.5, "mean_us": 12.1}
BANDWIDTH = {"metric": "bandwidth", "mode": "write", "size_bytes": 1048576, "operations": 8689, "seconds": 1.0,
             "depth": 64, "per_second": 8688.9, "mbytes_per_s": 9111.0, "ns_per_operation": 115089.1}
PING_PONG = ('{"bench": "AF_UNIX stream blocking", "size_bytes": 64, "iterations": 20000, "mean_us": 5.074, '
             '"p50_us": 5.107, "p90_us": 5.6, "p99_us": 8.7, "min_us": 3.9, "max_us": 152.2}\n')
MEMCPY = '{"bench": "memcpy region", "size_bytes": 1048576, "region_bytes": 1048576, "gigabytes_per_s": 17.815}\n'
ENGINE = ("batched       batch=16   client_ns=16.0    engine_ns=47.0    ns_per_wr=63.0\n"
          "batched       batch=32   client_ns=15.1    engine_ns=46.5    ns_per_wr=61.6\n"
          "two threads   batch=1    ns_per_wr=90.1\n")
IPERF3 = {"end": {"streams": [{}], "sum_received": {"bits_per_second": 16e9}}}
UCX = ("iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n"
       " 2000,4.5,36.9,49.6,100.00,200.00,27073,20138\n")
FI = ("bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n"
      "64      10k     =10k     1.2m        0.54s      2.39      26.76       0.04\n")
STATUS = {"pid": 7, "sessions": 1, "objects": {"qps": 2, "arena_bytes": "32768", "pool_bytes": "0"}}

# Each parser with what it must take, and what it makes of it.
GOOD = [
    ("rdmactl latency", lambda text: parsers.parse_rdmactl_bench(text, "latency"), json.dumps([LATENCY]),
     {"p50_us": 12.4, "p99_us": 17.3, "mean_us": 12.1, "min_us": 9.3}),
    ("rdmactl bandwidth", lambda text: parsers.parse_rdmactl_bench(text, "bandwidth"), json.dumps([BANDWIDTH]),
     {"mbytes_per_s": 9111.0, "per_second": 8688.9, "ns_per_operation": 115089.1}),
    ("ping_pong", parsers.parse_ping_pong, PING_PONG, {"p50_us": 5.107, "p99_us": 8.7, "mean_us": 5.074, "min_us": 3.9}),
    ("memcpy", parsers.parse_memcpy, MEMCPY, {"mbytes_per_s": 17815.0}),
    ("engine_bench", lambda text: parsers.parse_engine_bench(text, 32), ENGINE,
     {"client_ns": 15.1, "engine_ns": 46.5, "ns_per_wr": 61.6}),
    ("iperf3", parsers.parse_iperf3, json.dumps(IPERF3), {"mbytes_per_s": 2000.0}),
    ("ucx latency", lambda text: parsers.parse_ucx_perftest(text, "lat"), UCX, {"p50_us": 9.0, "mean_us": 99.2}),
    ("ucx bandwidth", lambda text: parsers.parse_ucx_perftest(text, "bw"), UCX,
     {"mbytes_per_s": 209.7152, "per_second": 20138.0}),
    ("fi_pingpong", lambda text: parsers.parse_fi_pingpong(text, 64), FI, {"mean_us": 53.52}),
    ("status", parsers.parse_status_json, json.dumps(STATUS),
     {"pid": 7, "sessions": 1, "qps": 2, "arena_bytes": 32768, "pool_bytes": 0}),
    ("schedstat", parsers.parse_schedstat, "51901 7 13\n", {"run_ns": 51901.0, "slices": 13.0}),
    ("proc status", lambda text: parsers.parse_proc_status(text, ["RssAnon"]), "VmRSS:\t 9 kB\nRssAnon:\t  12 kB\n",
     {"RssAnon": 12288.0}),
    ("many connections", lambda text: parsers.parse_many_connections(text, "disconnected"),
     '{"event": "disconnected", "count": 9, "first_at_s": 1.5, "last_at_s": 2.5}\n',
     {"count": 9.0, "first_at_s": 1.5, "last_at_s": 2.5}),
    ("idle clients", parsers.parse_idle_clients, '{"bench": "idle clients", "count": 100}\n', {"count": 100.0}),
]


class Parsers(unittest.TestCase):

    def test_each_takes_what_its_program_prints(self):
        for name, parse, text, figures in GOOD:
            with self.subTest(name):
                got = parse(text)
                self.assertEqual(got.keys(), figures.keys())
                for figure, value in figures.items():
                    self.assertAlmostEqual(got[figure], value, msg=figure)

    def test_each_refuses_every_truncation_that_loses_something(self):
        for name, parse, text, figures in GOOD:
            with self.subTest(name):
                for length in range(len(text)):
                    try:
                        got = parse(text[:length])
                    except parsers.ParseError:
                        continue
                    # A number cut short cannot be told from a shorter one; nothing may be missing, though.
                    self.assertEqual(got.keys(), figures.keys(), text[:length])

    def test_each_refuses_other_output(self):
        for name, parse, text, _ in GOOD:
            for other in ("", "\n", "error: no such device\n", "[]", "{}", "null", "[[]]", "3", "\x00", text + text):
                with self.subTest(name, other=other[:20]):
                    self.assertRaises(parsers.ParseError, parse, other)

    def test_another_metric_is_refused(self):
        self.assertRaises(parsers.ParseError, parsers.parse_rdmactl_bench, json.dumps([BANDWIDTH]), "rate")
        one_way = json.dumps([{**LATENCY, "round_trip": False}])
        self.assertRaises(parsers.ParseError, parsers.parse_rdmactl_bench, one_way, "latency")

    def test_what_is_no_number_is_refused(self):
        for value in ("fast", True, None, -1, float("nan"), float("inf"), [1]):
            with self.subTest(value=value):
                self.assertRaises(parsers.ParseError, parsers.parse_ping_pong, json.dumps({**LATENCY, "p50_us": value}))
        self.assertRaises(parsers.ParseError, parsers.parse_ucx_perftest, UCX.replace("4.5", "nan"), "lat")
        self.assertRaises(parsers.ParseError, parsers.parse_fi_pingpong, FI.replace("26.76", "-1"), 64)

    def test_iperf3_says_why(self):
        with self.assertRaisesRegex(parsers.ParseError, "unable to connect"):
            parsers.parse_iperf3('{"start": {}, "error": "unable to connect to server"}')

    def test_progress_lines_of_ucx_are_no_result(self):
        self.assertRaises(parsers.ParseError, parsers.parse_ucx_perftest, UCX + "[thread 0] 1,1,1,1,1,1,1,1\n", "lat")

    def test_listening_ports(self):
        table = ("  sl  local_address rem_address   st tx_queue\n"
                 "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000\n"
                 "   1: 0100007F:1F91 0100007F:0050 01 00000000:00000000\n")
        self.assertEqual(parsers.parse_listening_ports(table), {8080})
        self.assertRaises(parsers.ParseError, parsers.parse_listening_ports, "head\nshort\n")


class Ratios(unittest.TestCase):

    def test_a_median_stands_within_its_range(self):
        self.assertEqual(spread_of([3, 1, 2]), Spread(2, 1, 3))
        self.assertEqual(spread_of([4, 1, 2, 3]), Spread(2.5, 1, 4))
        self.assertEqual(spread_of([7]), Spread(7, 7, 7))

    def test_the_ratio_is_that_of_the_medians_and_its_range_is_over_the_rounds(self):
        ratio = ratio_of({0: 2.0, 1: 4.0, 2: 9.0}, {0: 1.0, 1: 2.0, 2: 3.0})
        self.assertEqual(ratio, Spread(2.0, 2.0, 3.0))

    def test_rounds_that_only_one_has_count_for_its_median_only(self):
        self.assertEqual(ratio_of({0: 2.0, 1: 6.0, 2: 8.0}, {1: 2.0}), Spread(3.0, 3.0, 3.0))
        self.assertEqual(ratio_of({0: 6.0}, {1: 2.0}), Spread(3.0, 3.0, 3.0))

    def test_there_is_no_ratio_to_nothing(self):
        for samples, beside in (({}, {0: 1.0}), ({0: 1.0}, {}), ({0: 1.0}, {0: 0.0})):
            self.assertIsNone(ratio_of(samples, beside))

    def test_targets(self):
        for kind, bound, value, met in (("<=", 1.1, 1.1, True), ("<=", 1.1, 1.11, False), ("<", 300, 300, False),
                                        ("<", 300, 299, True), (">=", 0.7, 0.7, True), (">=", 0.7, 0.69, False)):
            self.assertEqual(Target(kind, bound).met(value), met, (kind, bound, value))
        self.assertRaises(ValueError, Target, "==", 1)


class FakeMeter:
    """Gives the next of `results`: figures, or an exception to raise."""

    def __init__(self, name, *results):
        self.name = name
        self.results = list(results)

    def measure(self):
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result


ROW = rows.Row("lat", "64 B there and back", "us", "own", "p50_us", (rows.Beside("other", "p50_us", Target("<=", 1.1)),))
OPTIONS = compare.parse_arguments(["--rounds", "2"])


class Measuring(unittest.TestCase):

    def measure(self, own, other, prepare=None, **options):
        order = []
        meters = {"own": own, "other": other, "unused": FakeMeter("unused")}
        section = rows.Section("s", (ROW,), prepare or (lambda *_: meters), **options)
        measured = compare.measure_section(section, [ROW], None, OPTIONS, order.append)
        return measured, order

    def test_rounds_are_interleaved(self):
        _, said = self.measure(FakeMeter("A", {"p50_us": 1.0}, {"p50_us": 2.0}),
                               FakeMeter("B", {"p50_us": 3.0}, {"p50_us": 4.0}))
        self.assertEqual(said, ["round 1 of 2", "A: p50_us 1", "B: p50_us 3", "round 2 of 2", "A: p50_us 2", "B: p50_us 4"])

    def test_a_ratio_is_judged(self):
        measured, _ = self.measure(FakeMeter("A", {"p50_us": 1.0}, {"p50_us": 2.0}),
                                   FakeMeter("B", {"p50_us": 1.0}, {"p50_us": 1.0}))
        text = report.table([("s", [(ROW, measured)])])
        self.assertRegex(text, r"B +1\.00 +1\.50 \(1\.00\.\.2\.00\) +<= 1\.1: NOT MET")
        beside = report.row_json(ROW, measured)["beside"][0]
        self.assertEqual(beside["ratio"], {"median": 1.5, "min": 1.0, "max": 2.0})
        self.assertEqual((beside["target"], beside["met"], beside["samples"]), ("<= 1.1", False, [1.0, 1.0]))

    def test_a_missing_tool_says_why_and_is_asked_once(self):
        other = FakeMeter("B", machine.NotHere("B is not installed"))
        measured, _ = self.measure(FakeMeter("A", {"p50_us": 1.0}, {"p50_us": 2.0}), other)
        self.assertIn("B: not here: B is not installed", report.table([("s", [(ROW, measured)])]))
        document = report.row_json(ROW, measured)
        self.assertEqual(document["rdmad"]["median"], 1.5)
        self.assertEqual(document["beside"][0]["not_here"], "B is not installed")
        self.assertNotIn("met", document["beside"][0])

    def test_an_unknown_output_is_an_error_of_its_row(self):
        measured, _ = self.measure(FakeMeter("A", {"p50_us": 1.0}, parsers.ParseError("A: unknown output")),
                                   FakeMeter("B", {"p50_us": 1.0}, {"p50_us": 1.0}))
        self.assertEqual(measured["own"].samples("p50_us"), {0: 1.0})
        self.assertIn("A: error: A: unknown output", report.table([("s", [(ROW, measured)])]))
        self.assertEqual(report.row_json(ROW, measured)["rdmad"]["error"], "A: unknown output")

    def test_a_section_that_cannot_be_prepared_says_why(self):
        def prepare(*_):
            raise machine.NotHere("network namespaces take root")
        measured, _ = self.measure(None, None, prepare)
        self.assertIn("own: not here: network namespaces take root", report.table([("s", [(ROW, measured)])]))

    def test_one_long_measurement_has_no_rounds(self):
        measured, _ = self.measure(FakeMeter("A", {"p50_us": 1.0}), FakeMeter("B", {"p50_us": 3.0}), once=True)
        self.assertEqual(measured["own"].samples("p50_us"), {0: 1.0})

    def test_details_are_the_figures_of_the_same_name(self):
        row = rows.Row("memory", "of a connection", "KiB", "own", "kib", limit=Target("<", 32), details=True)
        measured = {"own": report.Measured("rdmad", {0: {"kib": 40.0, "kib_daemon": 14.0, "other": 1.0}})}
        document = report.row_json(row, measured)
        self.assertEqual(list(document["details"]), ["kib_daemon"])
        self.assertIs(document["met"], False)
        self.assertIn("kib_daemon", report.table([("s", [(row, measured)])]))


class Rows(unittest.TestCase):

    def test_names_are_unique(self):
        names = [row.name for row in rows.all_rows()]
        self.assertEqual(len(names), len(set(names)))

    def test_selecting_keeps_only_those(self):
        chosen = rows.select(["memory", "same-lat"])
        self.assertEqual([row.name for _, some in chosen for row in some], ["same-lat", "memory"])
        self.assertEqual(sum(len(some) for _, some in rows.select([])), len(rows.all_rows()))

    def test_only_what_the_rows_name_is_measured(self):
        row = next(row for row in rows.all_rows() if row.name == "same-send")
        self.assertEqual(compare.needed_meters([row, row]), ["send", "memcpy"])

    def test_an_unknown_row_is_wrong_usage(self):
        for arguments in (["--only", "same-lat,nonsense"], ["--rounds", "0"], ["--rounds", "x"], ["--fast"]):
            with self.subTest(arguments), contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit) as end:
                compare.parse_arguments(arguments)
            self.assertEqual(end.exception.code, 2)

    def test_the_figures_of_the_issue_have_targets(self):
        targets = {(row.name, str(beside.target)) for row in rows.all_rows() for beside in row.besides if beside.target}
        targets |= {(row.name, str(row.limit)) for row in rows.all_rows() if row.limit}
        for target in (("same-lat", "<= 1.1"), ("same-lat-polled", "<= 0.6"), ("same-send", ">= 0.7"),
                       ("veth1500-write", ">= 1.3"), ("veth1500-write", ">= 0.8"), ("veth9000-write", ">= 1.3"),
                       ("veth9000-write", ">= 0.8"), ("loss0.1-1500-write", ">= 0.5"), ("loss1-1500-write", ">= 0.5"), ("wr-cost", "< 300"),
                       ("idle-cpu", "< 0.5"), ("memory", "< 32"), ("many-lat", "<= 1.1"), ("many-rate", "<= 1.1"),
                       ("many-message", "<= 1.1"), ("many-veth-message", "<= 1.1"),
                       ("many-veth-lat", "<= 1.1"), ("many-veth-rate", "<= 1.1"), ("many-cpu", "< 0.5"), ("many-kill", "< 2")):
            self.assertIn(target, targets)


class Machine(unittest.TestCase):

    def test_a_program_that_fails_says_what_it_said(self):
        with self.assertRaisesRegex(machine.Failed, "sh: exit code 3: no luck"):
            machine.run(["sh", "-c", "echo no luck >&2; exit 3"])
        with self.assertRaisesRegex(machine.Failed, "No such file"):
            machine.run(["/nonexistent/program"])

    def test_a_program_that_hangs_is_ended(self):
        with self.assertRaisesRegex(machine.Failed, "not done within"):
            machine.run(["sleep", "60"], timeout_s=0.1)

    def test_what_was_started_ends_with_the_block(self):
        with self.assertRaises(KeyError), machine.started(["sleep", "60"]) as process:
            raise KeyError
        self.assertIsNotNone(process.poll())

    def test_a_server_that_ends_at_once_is_a_failure(self):
        with self.assertRaisesRegex(machine.Failed, "sh: exit code 1: address in use"):
            with machine.started(["sh", "-c", "echo address in use; exit 1"]) as process:
                machine.wait_listening(process, 1)

    def test_a_tool_that_is_not_installed_is_not_here(self):
        with self.assertRaisesRegex(machine.NotHere, "iperf3 is not installed"):
            machine.Programs("/nonexistent", {"iperf3": ""}).tool("iperf3")
        with self.assertRaisesRegex(machine.Failed, "rdmad was not built"):
            machine.Programs("/nonexistent", {}).of("daemon/rdmad")


if __name__ == "__main__":
    unittest.main()
