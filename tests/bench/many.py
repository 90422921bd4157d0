"""Meters of thousands of connections that do nothing: tests/bench/peers/many_connections, as rows.py uses them."""

import contextlib
import signal
import subprocess
import time

import machine
import meters
import parsers

SETTLE_S = 2
SET_UP_TIMEOUT_S = 180
# Within which a daemon must have forgotten an application that was killed.
FORGET_TIMEOUT_S = 30


class Crowd:
    """Connections from an application of one daemon to one of another, or the same. Made by `crowd`."""

    def __init__(self, daemons, count, taker, maker, connected):
        self.daemons = daemons
        self.count = count
        self.taker = taker
        self.maker = maker
        self.connected = connected  # figures of their making


def _next_event(process, name, number, timeout_s=SET_UP_TIMEOUT_S):
    """The figures of line `number` of a many_connections, which tells of `name`."""
    machine.wait_until(process, lambda: len(machine.log_of(process).splitlines()) > number, f"many_connections: {name}",
                       timeout_s)
    return parsers.parse_many_connections(machine.log_of(process).splitlines()[number], name)


@contextlib.contextmanager
def crowd(programs, daemons, count):
    """`count` idle connections from an application of daemons[0] to one of daemons[-1]."""
    near, far = daemons[0], daemons[-1]
    program = programs.of("tests/bench/peers/many_connections")

    def end(of, *words):
        return machine.started(of.host.command(program, "--run-dir", of.run_dir, "--connections", count, *words),
                               stdin=subprocess.PIPE)

    with end(far, "--listen", far.host.address) as taker:
        port = int(_next_event(taker, "listening", 0)["port"])
        with end(near, "--connect", f"{far.host.address}:{port}") as maker:
            connected = _next_event(maker, "connected", 0)
            yield Crowd(daemons, count, taker, maker, connected)


def _objects(running):
    status = running.status()
    memory = meters.read_memory(running.pid)
    return {"qps": status["qps"], "arena_bytes": status["arena_bytes"], "daemon_anon": memory["RssAnon"]}


def _cpu_ns(running):
    return sum(run_ns for _, run_ns, _ in meters.read_threads(running.pid).values())


class MessageCost(meters.Rdmad):
    """Messages one after the other, and what of a core each costs the daemons: a figure that stands also on a busy machine."""

    WARM_UP_S = 0.1  # of rdmactl bench

    def measure(self):
        daemons = set(self._daemons)
        before = sum(map(_cpu_ns, daemons))
        figures = super().measure()
        messages = figures["per_second"] * (self.seconds + self.WARM_UP_S)
        return {**figures, "daemon_ns": (sum(map(_cpu_ns, daemons)) - before) / messages}


def meters_beside(programs, seconds, stack, crowds):
    """{name: Meter}: "lat-X" and "rate-X" for each X: (daemons, idle connections) of `crowds`, all there at the same time, so
    that rounds of one and of another alternate."""
    made = {}
    for name, (daemons, count) in crowds.items():
        stack.enter_context(crowd(programs, daemons, count))
        made[f"lat-{name}"] = meters.Rdmad(f"rdmad, {count} idle", seconds, daemons, "latency", polled=True)
        made[f"rate-{name}"] = MessageCost(f"rdmad, {count} idle", seconds, daemons, "rate", polled=True)
    return made


class ManyConnections(meters.Meter):
    """One daemon with `count` connections between two of its applications: what making them takes, what they cost while they
    do nothing, and how they end when one of the applications is killed."""

    def __init__(self, name, seconds, programs, running, count):
        super().__init__(name, seconds)
        self._programs = programs
        self._daemon = running
        self._count = count

    def measure(self):
        # What is made once is made before it counts.
        with crowd(self._programs, [self._daemon], 1) as one:
            self._kill(one)
        before = _objects(self._daemon)
        with crowd(self._programs, [self._daemon], self._count) as many:
            time.sleep(SETTLE_S)
            after = _objects(self._daemon)
            if after["qps"] - before["qps"] != 2 * self._count:
                raise machine.Failed("many_connections: not all connections are there")
            queues, anon = ((after[key] - before[key]) / self._count / 1024 for key in ("arena_bytes", "daemon_anon"))
            busy = _cpu_ns(self._daemon)
            time.sleep(self.seconds)
            busy = _cpu_ns(self._daemon) - busy
            figures = {
                "kib": queues + anon, "kib_queues": queues, "kib_daemon": anon,
                "cpu_percent": busy / self.seconds / 1e9 * 100,
                "per_second": self._count / many.connected["seconds"],
                "last_to_first_tenth": many.connected["last_tenth_s"] / many.connected["first_tenth_s"],
            }
            figures.update(self._kill(many))
        time.sleep(SETTLE_S)
        figures["mib_kept"] = (_objects(self._daemon)["daemon_anon"] - before["daemon_anon"]) / 1048576
        return figures

    def _kill(self, many):
        """Kills the application that made the connections, then the other."""
        killed = time.monotonic()
        many.maker.send_signal(signal.SIGKILL)
        heard = _next_event(many.taker, "disconnected", 1)
        # One question at a time: the longest one is how long somebody else has to wait.
        longest = 0.0
        while True:
            asked = time.monotonic()
            qps = self._daemon.status()["qps"]
            longest = max(longest, time.monotonic() - asked)
            if qps <= many.count:
                break
            if time.monotonic() > killed + FORGET_TIMEOUT_S:
                raise machine.Failed(f"{qps - many.count} queue pairs of a killed application are still there")
        forgotten = time.monotonic()
        many.taker.send_signal(signal.SIGKILL)
        while self._daemon.status()["qps"] > 0:
            if time.monotonic() > forgotten + FORGET_TIMEOUT_S:
                raise machine.Failed("queue pairs of a killed application are still there")
        return {"peer_hears_s": heard["last_at_s"] - killed, "forgotten_s": forgotten - killed, "others_wait_s": longest}
