"""What is measured beside what. A Section has rows and knows how to make the meters that they name."""

import dataclasses
import os
import time
import typing

import machine
import many
import meters
from ratios import Target

IDLE_CLIENTS = 100
CONNECTIONS = 200
MANY_CONNECTIONS = 10_000
WINDOW = 16  # messages under way in the rows that keep a pipe full


@dataclasses.dataclass(frozen=True)
class Beside:
    """What a row is compared with: the ratio is of the row's figure to this one."""
    meter: str
    figure: str
    target: typing.Optional[Target] = None


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    title: str
    unit: str
    meter: str
    figure: str
    besides: tuple = ()
    limit: typing.Optional[Target] = None  # of the figure itself
    details: bool = False  # the meter's other figures are worth a line each


@dataclasses.dataclass(frozen=True)
class Section:
    title: str
    rows: tuple
    # (programs, seconds, ExitStack) -> {name: Meter}. Raises NotHere or Failed.
    prepare: typing.Callable
    once: bool = False  # one long measurement instead of rounds


def _same_daemon(programs, seconds, stack):
    host = machine.Host("127.0.0.2")
    running = [stack.enter_context(machine.daemon(programs, host))]
    local = (machine.Host("127.0.0.1"), machine.Host("127.0.0.1"))
    large = meters.LARGE_BYTES

    def rdmad(name, metric, **options):
        return meters.Rdmad(name, seconds, running, metric, **options)

    def ucx(name, transports, test, kind, iterations):
        return meters.UcxPerftest(name, seconds, programs, local, transports, test, kind, meters.MESSAGE_BYTES, iterations)

    return {
        "lat": rdmad("rdmad, blocking", "latency"),
        "unix": meters.PingPong("AF_UNIX stream", seconds, programs, "unix"),
        "unix-core": meters.PingPong("AF_UNIX stream, on one core", seconds, programs, "unix", core=min(os.sched_getaffinity(0))),
        "lat-polled": rdmad("rdmad, polled", "latency", polled=True),
        "unix-polled": meters.PingPong("AF_UNIX stream, polled", seconds, programs, "unix", polled=True),
        "tcp": meters.PingPong("TCP loopback", seconds, programs, "tcp"),
        "ucx-shm-lat": ucx("ucx_perftest shm", "shm", "ucp_am_lat", "lat", 100_000),
        "ucx-tcp-lat": ucx("ucx_perftest tcp", "tcp", "ucp_am_lat", "lat", 20_000),
        "fi-shm": meters.FiPingpong("fi_pingpong shm", seconds, programs, local, "shm", "rdm", 40_000),
        "fi-tcp": meters.FiPingpong("fi_pingpong tcp", seconds, programs, local, "tcp", "msg", 20_000),
        "send": rdmad("rdmad", "bandwidth", size=large, depth=WINDOW),
        "write": rdmad("rdmad", "bandwidth", size=large, depth=WINDOW, mode="write"),
        "memcpy": meters.Memcpy("memcpy, as many buffers", seconds, programs, WINDOW * large),
        "send-one": rdmad("rdmad", "bandwidth", size=large, depth=1, polled=True),
        "memcpy-one": meters.Memcpy("memcpy, one buffer", seconds, programs, large),
        "rate": rdmad("rdmad, blocking", "rate"),
        "rate-polled": rdmad("rdmad, polled", "rate", polled=True),
        "ucx-shm-rate": ucx("ucx_perftest shm", "shm", "ucp_am_bw", "bw", 1_000_000),
        "ucx-tcp-rate": ucx("ucx_perftest tcp", "tcp", "ucp_am_bw", "bw", 500_000),
    }


_SAME_DAEMON = Section("one daemon, two applications", (
    Row("same-lat", "64 B there and back, blocking", "us", "lat", "p50_us", (
        Beside("unix", "p50_us", Target("<=", 1.1)),
        Beside("unix-core", "p50_us", Target("<=", 1.1)),
        Beside("tcp", "p50_us"))),
    Row("same-lat-mean", "the same, mean", "us", "lat", "mean_us", (
        Beside("unix", "mean_us"), Beside("unix-core", "mean_us"), Beside("tcp", "mean_us"))),
    Row("same-lat-polled", "64 B there and back, polled", "us", "lat-polled", "p50_us", (
        Beside("unix", "p50_us", Target("<=", 0.6)),
        Beside("unix-core", "p50_us", Target("<=", 0.6)),
        Beside("unix-polled", "p50_us"),
        Beside("ucx-shm-lat", "p50_us"),
        Beside("ucx-tcp-lat", "p50_us"))),
    Row("same-lat-polled-mean", "the same, mean", "us", "lat-polled", "mean_us", (
        Beside("unix-polled", "mean_us"), Beside("ucx-shm-lat", "mean_us"), Beside("ucx-tcp-lat", "mean_us"),
        Beside("fi-shm", "mean_us"), Beside("fi-tcp", "mean_us"))),
    Row("same-send", f"1 MiB sends, {WINDOW} under way", "MB/s", "send", "mbytes_per_s", (
        Beside("memcpy", "mbytes_per_s", Target(">=", 0.7)),)),
    Row("same-write", f"1 MiB writes, {WINDOW} under way", "MB/s", "write", "mbytes_per_s", (
        Beside("memcpy", "mbytes_per_s", Target(">=", 0.7)),)),
    Row("same-send-one", "1 MiB sends, one at a time, polled", "MB/s", "send-one", "mbytes_per_s", (
        Beside("memcpy-one", "mbytes_per_s", Target(">=", 0.7)),)),
    Row("same-rate", "64 B sends", "msg/s", "rate", "per_second", (
        Beside("ucx-shm-rate", "per_second"), Beside("ucx-tcp-rate", "per_second"))),
    Row("same-rate-polled", "64 B sends, polled", "msg/s", "rate-polled", "per_second", (
        Beside("ucx-shm-rate", "per_second"), Beside("ucx-tcp-rate", "per_second"))),
), _same_daemon)


def _veth(mtu):
    def prepare(programs, seconds, stack):
        hosts = stack.enter_context(machine.two_hosts(mtu))
        running = [stack.enter_context(machine.daemon(programs, host)) for host in hosts]
        large = meters.LARGE_BYTES

        def rdmad(name, metric, **options):
            return meters.Rdmad(name, seconds, running, metric, **options)

        def ucx(test, kind, size, iterations):
            return meters.UcxPerftest("ucx_perftest tcp", seconds, programs, hosts, "tcp", test, kind, size, iterations)

        small = meters.MESSAGE_BYTES
        return {
            "lat": rdmad("rdmad, blocking", "latency"),
            "tcp": meters.PingPong("TCP", seconds, programs, "tcp", hosts=hosts),
            "lat-polled": rdmad("rdmad, polled", "latency", polled=True),
            "tcp-polled": meters.PingPong("TCP, polled", seconds, programs, "tcp", polled=True, hosts=hosts),
            "ucx-lat": ucx("ucp_am_lat", "lat", small, 20_000),
            "fi": meters.FiPingpong("fi_pingpong tcp", seconds, programs, hosts, "tcp", "msg", 20_000),
            # From one buffer, as iperf3 and ucx_perftest send theirs.
            "write": rdmad("rdmad", "bandwidth", size=large, depth=WINDOW, mode="write", buffers=1),
            "write-many": rdmad("rdmad", "bandwidth", size=large, depth=WINDOW, mode="write"),
            "iperf3": meters.Iperf3("iperf3, one stream", seconds, programs, hosts),
            "ucx-put": ucx("ucp_put_bw", "bw", large, 1000),
            "send": rdmad("rdmad", "bandwidth", size=large, depth=WINDOW),
            "ucx-am": ucx("ucp_am_bw", "bw", large, 1000),
            "rate": rdmad("rdmad, blocking", "rate"),
            "ucx-rate": ucx("ucp_am_bw", "bw", small, 500_000),
        }

    name = f"veth{mtu}"
    return Section(f"two daemons over veth, MTU {mtu}", (
        Row(f"{name}-lat", "64 B there and back, blocking", "us", "lat", "p50_us", (
            Beside("tcp", "p50_us"),)),
        Row(f"{name}-lat-mean", "the same, mean", "us", "lat", "mean_us", (
            Beside("tcp", "mean_us"),)),
        Row(f"{name}-lat-polled", "64 B there and back, polled", "us", "lat-polled", "p50_us", (
            Beside("tcp-polled", "p50_us"), Beside("ucx-lat", "p50_us"))),
        Row(f"{name}-lat-polled-mean", "the same, mean", "us", "lat-polled", "mean_us", (
            Beside("tcp-polled", "mean_us"), Beside("ucx-lat", "mean_us"), Beside("fi", "mean_us"))),
        Row(f"{name}-write", "1 MiB RDMA WRITE", "MB/s", "write", "mbytes_per_s", (
            Beside("iperf3", "mbytes_per_s", Target(">=", 1.3)),
            Beside("ucx-put", "mbytes_per_s", Target(">=", 0.8)))),
        Row(f"{name}-write-many", f"the same, from {WINDOW} buffers: more than a cache holds", "MB/s", "write-many",
            "mbytes_per_s", (Beside("iperf3", "mbytes_per_s"),)),
        Row(f"{name}-send", "1 MiB sends", "MB/s", "send", "mbytes_per_s", (
            Beside("iperf3", "mbytes_per_s"), Beside("ucx-am", "mbytes_per_s"))),
        Row(f"{name}-rate", "64 B sends", "msg/s", "rate", "per_second", (
            Beside("ucx-rate", "per_second"),)),
    ), prepare)


def _lossy(mtu, percent):
    def prepare(programs, seconds, stack):
        hosts = stack.enter_context(machine.two_hosts(mtu))
        machine.lose_packets(programs, hosts, percent / 100)
        running = [stack.enter_context(machine.daemon(programs, host)) for host in hosts]

        def rdmad(size, depth, mode):
            return meters.Rdmad("rdmad", seconds, running, "bandwidth", size=size, depth=depth, mode=mode)

        return {
            "write": rdmad(meters.LARGE_BYTES, WINDOW, "write"),
            "write-64k": rdmad(meters.LARGE_BYTES // 16, WINDOW * 16, "write"),
            "read": rdmad(meters.LARGE_BYTES, WINDOW, "read"),
            "cubic": meters.Iperf3("iperf3 -C cubic, one stream", seconds, programs, hosts, "cubic"),
        }

    name = f"loss{percent:g}-{mtu}"
    beside = (Beside("cubic", "mbytes_per_s", Target(">=", 0.5)),)
    return Section(f"two daemons over veth, MTU {mtu}, packets singly (no TSO, GSO, USO), {percent:g} % of them lost each way", (
        Row(f"{name}-write", f"1 MiB RDMA WRITE, {WINDOW} under way", "MB/s", "write", "mbytes_per_s", beside),
        Row(f"{name}-write64k", f"64 KiB RDMA WRITE, {WINDOW * 16} under way", "MB/s", "write-64k", "mbytes_per_s", beside),
        Row(f"{name}-read", f"1 MiB RDMA READ, {WINDOW} under way", "MB/s", "read", "mbytes_per_s", beside),
    ), prepare)


_WORK_REQUEST = Section("a work request, from the post through the engine to the completion", (
    Row("wr-cost", f"batches of {meters.EngineBench.BATCH}, both sides' work", "ns", "engine", "ns_per_wr",
        limit=Target("<", 300)),
    Row("wr-message", "a 64 B send between two applications, as the sender sees it", "ns", "rate", "ns_per_operation"),
), lambda programs, seconds, stack: {
    "engine": meters.EngineBench("engine_bench", seconds, programs),
    "rate": meters.Rdmad("rdmad, polled", seconds,
                         [stack.enter_context(machine.daemon(programs, machine.Host("127.0.0.2")))], "rate", polled=True),
})


def _idle(programs, seconds, stack):
    running = stack.enter_context(machine.daemon(programs, machine.Host("127.0.0.2")))
    return {"idle": meters.IdleDaemon("rdmad", 10 if seconds >= 1 else 3, programs, running, IDLE_CLIENTS, time.sleep)}


def _memory(programs, seconds, stack):
    running = stack.enter_context(machine.daemon(programs, machine.Host("127.0.0.2")))
    return {"memory": meters.ConnectionMemory("rdmad", seconds, programs, running, CONNECTIONS)}


def _crowded(programs, seconds, stack):
    few, crowded = ([stack.enter_context(machine.daemon(programs, machine.Host(f"127.0.0.{last}")))] for last in (2, 3))
    return many.meters_beside(programs, seconds, stack, {"few": (few, 1), "many": (crowded, MANY_CONNECTIONS)})


def _crowded_veth(programs, seconds, stack):
    def two_daemons(name):
        hosts = stack.enter_context(machine.two_hosts(1500, name))
        return [stack.enter_context(machine.daemon(programs, host)) for host in hosts]

    return many.meters_beside(programs, seconds, stack, {
        "few": (two_daemons("-few"), 1), "many": (two_daemons("-many"), MANY_CONNECTIONS)})


def _many_rows(name):
    return (
        Row(f"{name}-lat", "64 B there and back, polled", "us", "lat-many", "p50_us", (
            Beside("lat-few", "p50_us", Target("<=", 1.1)),)),
        Row(f"{name}-rate", "64 B sends, polled, time each", "ns", "rate-many", "ns_per_operation", (
            Beside("rate-few", "ns_per_operation", Target("<=", 1.1)),)),
        Row(f"{name}-message", "the same, work of the daemons each", "ns", "rate-many", "daemon_ns", (
            Beside("rate-few", "daemon_ns", Target("<=", 1.1)),)),
    )


def _many_once(programs, seconds, stack):
    running = stack.enter_context(machine.daemon(programs, machine.Host("127.0.0.2")))
    return {"many": many.ManyConnections("rdmad", 10 if seconds >= 1 else 3, programs, running, MANY_CONNECTIONS)}


SECTIONS = (
    _SAME_DAEMON,
    _veth(1500),
    _veth(9000),
    _lossy(1500, 0.1),
    _lossy(1500, 1),
    _lossy(9000, 0.1),
    _lossy(9000, 1),
    _WORK_REQUEST,
    Section(f"a daemon with {IDLE_CLIENTS} attached applications that do nothing", (
        Row("idle-cpu", "share of a core", "%", "idle", "cpu_percent", limit=Target("<", 0.5)),
        Row("idle-wakeups", "threads given a core", "/s", "idle", "wakeups_per_s", details=True),
    ), _idle, once=True),
    Section(f"memory of an idle connection, of {CONNECTIONS}", (
        Row("memory", "queues and the daemon's state, of both ends", "KiB", "memory", "kib", limit=Target("<", 32),
            details=True),
    ), _memory, once=True),
    Section(f"messages beside {MANY_CONNECTIONS} idle connections, one daemon", _many_rows("many"), _crowded),
    Section(f"messages beside {MANY_CONNECTIONS} idle connections, two daemons over veth", _many_rows("many-veth"),
            _crowded_veth),
    Section(f"{MANY_CONNECTIONS} idle connections of one daemon: made, kept, and one of their applications killed", (
        Row("many-cpu", "share of a core while nothing happens", "%", "many", "cpu_percent", limit=Target("<", 0.5)),
        Row("many-memory", "a connection, both ends: queues and the daemon's state", "KiB", "many", "kib"),
        Row("many-setup", "connections made", "/s", "many", "per_second"),
        Row("many-slowdown", "the last tenth of them beside the first, time", "x", "many", "last_to_first_tenth",
            limit=Target("<=", 2)),
        Row("many-kill", "until the peer has heard of the end of all", "s", "many", "peer_hears_s", limit=Target("<", 2),
            details=True),
    ), _many_once, once=True),
)


def all_rows():
    return [row for section in SECTIONS for row in section.rows]


def select(names):
    """[(section, its rows among `names`)]; all if `names` is empty. Raises ValueError for a name that no row has."""
    known = {row.name for row in all_rows()}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"no such row: {', '.join(unknown)} (--list names them)")
    chosen = [(section, [row for row in section.rows if not names or row.name in names]) for section in SECTIONS]
    return [(section, rows) for section, rows in chosen if rows]
