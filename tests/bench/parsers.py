"""What the measured programs print, as figures. Strict: output of another shape is a ParseError, never a guess.

Each parser returns {name: float}. Times are in us, of the whole way there and back; bandwidth in MB/s (10^6 bytes);
rates in messages a second; costs in ns.
"""

import json
import math
import re

MIB = 1024 * 1024


class ParseError(Exception):
    """The output is not what this program is known to print."""


def _fail(program, text):
    shown = " ".join(text.split())
    raise ParseError(f"{program}: unknown output: {shown[:200]!r}")


def _number(program, value, text):
    """A finite number that is not negative."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        _fail(program, text)
    return float(value)


def _json(program, text):
    try:
        return json.loads(text)
    except ValueError:
        _fail(program, text)


def _fields(program, record, names, text):
    if not isinstance(record, dict) or any(name not in record for name in names):
        _fail(program, text)
    return {name: _number(program, record[name], text) for name in names}


def parse_rdmactl_bench(text, metric):
    """`rdmactl --json bench` of one metric: latency, bandwidth or rate."""
    program = "rdmactl bench"
    results = _json(program, text)
    if not isinstance(results, list) or len(results) != 1 or not isinstance(results[0], dict) or \
            results[0].get("metric") != metric:
        _fail(program, text)
    if metric != "latency":
        return _fields(program, results[0], ("mbytes_per_s", "per_second", "ns_per_operation"), text)
    if results[0].get("round_trip") is not True:
        _fail(program, text)
    return _fields(program, results[0], ("p50_us", "p99_us", "mean_us", "min_us"), text)


def parse_ping_pong(text):
    """//tests/bench/peers:ping_pong: one line of JSON."""
    program = "ping_pong"
    return _fields(program, _json(program, text), ("p50_us", "p99_us", "mean_us", "min_us"), text)


def parse_memcpy(text):
    """//tests/bench/peers:memcpy_bandwidth with --region: one line of JSON."""
    program = "memcpy_bandwidth"
    figures = _fields(program, _json(program, text), ("gigabytes_per_s",), text)
    return {"mbytes_per_s": figures["gigabytes_per_s"] * 1000}


def parse_idle_clients(text):
    """//tests/bench/peers:idle_clients: one line of JSON, when they are there."""
    program = "idle_clients"
    return _fields(program, _json(program, text), ("count",), text)


_MANY_CONNECTIONS = {"listening": ("port",), "connected": ("count", "seconds", "first_tenth_s", "last_tenth_s"),
                     "disconnected": ("count", "first_at_s", "last_at_s")}


def parse_many_connections(text, event):
    """//tests/bench/peers:many_connections: one line of JSON for what has happened."""
    program = "many_connections"
    record = _json(program, text)
    if not isinstance(record, dict) or record.get("event") != event:
        _fail(program, text)
    return _fields(program, record, _MANY_CONNECTIONS[event], text)


def parse_engine_bench(text, batch):
    """//tests/bench:engine_bench: the cost of a work request, posted in batches of this size."""
    program = "engine_bench"
    pattern = rf"^batched +batch={batch} +client_ns=([\d.]+) +engine_ns=([\d.]+) +ns_per_wr=([\d.]+)$"
    lines = re.findall(pattern, text, re.MULTILINE)
    if len(lines) != 1:
        _fail(program, text)
    try:
        client, engine, both = (float(number) for number in lines[0])
    except ValueError:
        _fail(program, text)
    return {"client_ns": client, "engine_ns": engine, "ns_per_wr": both}


def parse_iperf3(text):
    """`iperf3 --client ... --json`, one TCP stream: what the receiver got."""
    program = "iperf3"
    document = _json(program, text)
    if isinstance(document, dict) and "error" in document:
        raise ParseError(f"iperf3: {document['error']}")
    try:
        bits_per_s = document["end"]["sum_received"]["bits_per_second"]
        streams = len(document["end"]["streams"])
    except (KeyError, TypeError):
        _fail(program, text)
    if streams != 1:
        _fail(program, text)
    return {"mbytes_per_s": _number(program, bits_per_s, text) / 8e6}


_UCX_COLUMNS = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr"


def parse_ucx_perftest(text, kind):
    """`ucx_perftest -v`: CSV with a head. `kind` is "lat" or "bw".

    Its latency is of one way: half of there and back. Its MB are MiB.
    """
    program = "ucx_perftest"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) != 2 or lines[0] != _UCX_COLUMNS:
        _fail(program, text)
    try:
        values = [_number(program, float(value), text) for value in lines[1].split(",")]
    except ValueError:
        _fail(program, text)
    if len(values) != 8:
        _fail(program, text)
    if kind == "lat":
        return {"p50_us": 2 * values[1], "mean_us": 2 * values[3]}
    return {"mbytes_per_s": values[5] * MIB / 1e6, "per_second": values[7]}


def parse_fi_pingpong(text, size_bytes):
    """`fi_pingpong`: a table of one line. Its usec/xfer is of one way, and a mean."""
    program = "fi_pingpong"
    lines = [line.split() for line in text.splitlines() if line.strip()]
    if len(lines) != 2 or lines[0] != ["bytes", "#sent", "#ack", "total", "time", "MB/sec", "usec/xfer", "Mxfers/sec"]:
        _fail(program, text)
    if len(lines[1]) != len(lines[0]) or lines[1][0] != str(size_bytes):
        _fail(program, text)
    try:
        one_way_us = _number(program, float(lines[1][6]), text)
    except ValueError:
        _fail(program, text)
    return {"mean_us": 2 * one_way_us}


def parse_status_json(text):
    """`rdmactl --json status`: the daemon's process and what it holds. 64-bit numbers are strings there."""
    program = "rdmactl status"
    document = _json(program, text)
    try:
        objects = document["objects"]
        return {"pid": int(document["pid"]), "sessions": int(document["sessions"]), "qps": int(objects["qps"]),
                "arena_bytes": int(objects["arena_bytes"]), "pool_bytes": int(objects["pool_bytes"])}
    except (KeyError, TypeError, ValueError):
        _fail(program, text)


def parse_schedstat(text):
    """/proc/PID/task/TID/schedstat: ns on a core, ns waiting for one, times it was given one."""
    match = re.fullmatch(r"(\d+) (\d+) (\d+)\s*", text)
    if match is None:
        _fail("schedstat", text)
    return {"run_ns": float(match[1]), "slices": float(match[3])}


def parse_proc_status(text, names):
    """The given numbers of /proc/PID/status; kB become bytes."""
    figures = {}
    for name in names:
        values = re.findall(rf"^{name}:\s+(\d+)( kB)?$", text, re.MULTILINE)
        if len(values) != 1:
            _fail("/proc status", text)
        figures[name] = float(values[0][0]) * (1024 if values[0][1] else 1)
    return figures


def parse_listening_ports(text):
    """The TCP ports of /proc/PID/net/tcp or tcp6 on which somebody listens."""
    ports = set()
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) < 4:
            _fail("/proc net tcp", text)
        if words[3] == "0A":
            ports.add(int(words[1].rsplit(":", 1)[1], 16))
    return ports
