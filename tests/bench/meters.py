"""One class for each kind of program that is measured. `measure()` runs it once and returns {figure: value}, in the units
of parsers.py. It raises machine.NotHere, machine.Failed or parsers.ParseError.
"""

import contextlib
import itertools
import os
import subprocess

import machine
import parsers

MESSAGE_BYTES = 64
LARGE_BYTES = 1 << 20

# Each server gets a port of its own: one that was just used may still be taken.
_ports = itertools.count(21000 + os.getpid() % 1000 * 8)


class Meter:
    """`name` is what the table says; `seconds` how long one measurement should take, roughly."""

    def __init__(self, name, seconds):
        self.name = name
        self.seconds = seconds

    def measure(self):
        raise NotImplementedError

    def _with_server(self, server, port, client, server_env=None, client_env=None):
        """What the client prints, beside a server that listens on a TCP port."""
        with machine.started(server, server_env) as process:
            machine.wait_listening(process, port)
            return machine.run(client, client_env)


class Rdmad(Meter):
    """`rdmactl bench` between two applications: of one daemon, or of two."""

    def __init__(self, name, seconds, daemons, metric, *, mode="send", polled=False, size=MESSAGE_BYTES, depth=64,
                 buffers=None):
        super().__init__(name, seconds)
        self._daemons = daemons
        self._metric = metric
        self._flags = ["--" + {"latency": "lat", "bandwidth": "bw", "rate": "rate"}[metric], "--mode", mode,
                       "--polled" if polled else "--blocking", "--size", size, "--depth", depth, "--seconds", seconds]
        if buffers is not None:
            self._flags += ["--buffers", buffers]

    def measure(self):
        near, far = self._daemons[0], self._daemons[-1]
        command = near.rdmactl("--json", "bench", *self._flags)
        if near is far:
            return parsers.parse_rdmactl_bench(machine.run(command), self._metric)
        peer = f"{far.host.address}:{next(_ports)}"
        with machine.started(far.rdmactl("bench", "--once", "--listen", peer)) as server:
            machine.wait_until(server, lambda: "listening on" in machine.log_of(server), "rdmactl bench --listen")
            return parsers.parse_rdmactl_bench(machine.run([*command, "--connect", peer]), self._metric)


class PingPong(Meter):
    """Our own ping_pong over a stream socket: AF_UNIX, or TCP on this host or between two. With `core` both its processes
    share that one: where they hand over fastest, as nobody has to wake a sleeping core."""

    def __init__(self, name, seconds, programs, kind, *, polled=False, hosts=None, core=None):
        super().__init__(name, seconds)
        self._programs = programs
        self._kind = kind
        self._hosts = hosts
        self._pinned = [] if core is None else ["taskset", "--cpu-list", core]
        self._flags = ["--size", MESSAGE_BYTES, "--seconds", seconds] + (["--polled"] if polled else [])

    def measure(self):
        program = self._programs.of("tests/bench/peers/ping_pong")
        if self._hosts is None:
            words = [*self._pinned, program, self._kind, *self._flags]
            return parsers.parse_ping_pong(machine.run([str(word) for word in words]))
        near, far = self._hosts
        port = next(_ports)
        server = far.command(program, "tcp-server", far.address, port, *self._flags)
        client = near.command(program, "tcp-client", far.address, port, *self._flags)
        return parsers.parse_ping_pong(self._with_server(server, port, client))


class Memcpy(Meter):
    """Plain memcpy on one core, through two regions of `region_bytes`."""

    def __init__(self, name, seconds, programs, region_bytes):
        super().__init__(name, seconds)
        self._programs = programs
        self._region_bytes = region_bytes

    def measure(self):
        program = self._programs.of("tests/bench/peers/memcpy_bandwidth")
        return parsers.parse_memcpy(machine.run([program, "--size", str(LARGE_BYTES), "--region",
                                                 str(self._region_bytes), "--seconds", str(self.seconds)]))


class EngineBench(Meter):
    """A work request through the rings and back, without a network: posted in batches of 32."""

    BATCH = 32

    def __init__(self, name, seconds, programs):
        super().__init__(name, seconds)
        self._programs = programs

    def measure(self):
        program = self._programs.of("tests/bench/engine_bench")
        return parsers.parse_engine_bench(machine.run([program, str(int(self.seconds * 500_000))]), self.BATCH)


class Iperf3(Meter):
    """One TCP stream between two hosts, with the system's congestion control or the given one."""

    def __init__(self, name, seconds, programs, hosts, congestion=None):
        super().__init__(name, seconds)
        self._programs = programs
        self._hosts = hosts
        self._flags = ["--congestion", congestion] if congestion else []

    def measure(self):
        program = self._programs.tool("iperf3")
        near, far = self._hosts
        port = next(_ports)
        server = far.command(program, "--server", "--one-off", "--bind", far.address, "--port", port)
        client = near.command(program, "--client", far.address, "--port", port, "--time", max(1, round(self.seconds)),
                              "--json", *self._flags)
        return parsers.parse_iperf3(self._with_server(server, port, client))


class UcxPerftest(Meter):
    """ucx_perftest over the given transports. It polls."""

    def __init__(self, name, seconds, programs, hosts, transports, test, kind, size, iterations):
        super().__init__(name, seconds)
        self._programs = programs
        self._hosts = hosts
        self._env = {"UCX_TLS": transports, "UCX_LOG_LEVEL": "error"}
        self._kind = kind
        count = max(100, int(iterations * seconds))
        self._flags = ["-t", test, "-s", size, "-n", count, "-w", max(10, count // 20), "-v", "-f"]

    def measure(self):
        program = self._programs.tool("ucx_perftest")
        near, far = self._hosts
        port = next(_ports)
        text = self._with_server(far.command(program, "-p", port), port,
                                 near.command(program, far.address, "-p", port, *self._flags),
                                 self._env_of(far), self._env_of(near))
        return parsers.parse_ucx_perftest(text, self._kind)

    def _env_of(self, host):
        return {**self._env, **({"UCX_NET_DEVICES": host.netdev} if host.netdev else {})}


class FiPingpong(Meter):
    """libfabric's fi_pingpong over the given provider. It polls, and knows only the mean."""

    def __init__(self, name, seconds, programs, hosts, provider, endpoint, iterations):
        super().__init__(name, seconds)
        self._programs = programs
        self._hosts = hosts
        self._flags = ["-p", provider, "-e", endpoint, "-S", MESSAGE_BYTES, "-I", max(100, int(iterations * seconds))]

    def measure(self):
        program = self._programs.tool("fi_pingpong")
        near, far = self._hosts
        port = next(_ports)
        text = self._with_server(far.command(program, *self._flags, "-B", port), port,
                                 near.command(program, *self._flags, "-P", port, far.address))
        return parsers.parse_fi_pingpong(text, MESSAGE_BYTES)


def read_threads(pid):
    """{thread id: (name, ns on a core, times it was given one)} of a process."""
    threads = {}
    for tid in os.listdir(f"/proc/{pid}/task"):
        folder = f"/proc/{pid}/task/{tid}"
        try:
            with open(f"{folder}/comm", encoding="utf-8") as comm, open(f"{folder}/schedstat", encoding="ascii") as stat:
                figures = parsers.parse_schedstat(stat.read())
                threads[int(tid)] = (comm.read().strip(), figures["run_ns"], figures["slices"])
        except FileNotFoundError:
            if os.path.exists(folder):
                raise machine.NotHere("this kernel has no schedstat") from None
    return threads


def read_memory(pid):
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        return parsers.parse_proc_status(status.read(), ["RssAnon", "RssShmem"])


class _IdleClients(Meter):
    def __init__(self, name, seconds, programs, running, count):
        super().__init__(name, seconds)
        self._programs = programs
        self._daemon = running
        self._count = count

    @contextlib.contextmanager
    def _clients(self, *words):
        program = self._programs.of("tests/bench/peers/idle_clients")
        with machine.started([program, "--run-dir", self._daemon.run_dir, *words], stdin=subprocess.PIPE) as process:
            yield process

    @staticmethod
    def _wait_for(process, count):
        machine.wait_until(process, lambda: len(machine.log_of(process).splitlines()) == count, "idle_clients")
        return int(parsers.parse_idle_clients(machine.log_of(process).splitlines()[-1])["count"])


class IdleDaemon(_IdleClients):
    """What a daemon does while applications are attached that do nothing."""

    SETTLE_S = 2

    def __init__(self, name, seconds, programs, running, count, sleep):
        super().__init__(name, seconds, programs, running, count)
        self._sleep = sleep

    def measure(self):
        with self._clients("--clients", str(self._count)) as process:
            if self._wait_for(process, 1) != self._count:
                raise machine.Failed("idle_clients: not all clients attached")
            self._sleep(self.SETTLE_S)
            before = read_threads(self._daemon.pid)
            self._sleep(self.seconds)
            after = read_threads(self._daemon.pid)
        figures = {"cpu_percent": 0.0, "wakeups_per_s": 0.0}
        for tid, (name, run_ns, slices) in after.items():
            _, run_ns_before, slices_before = before.get(tid, (name, 0.0, 0.0))
            wakeups = (slices - slices_before) / self.seconds
            figures["cpu_percent"] += (run_ns - run_ns_before) / self.seconds / 1e9 * 100
            figures["wakeups_per_s"] += wakeups
            if wakeups > 0:
                key = f"wakeups_per_s {name}"
                figures[key] = figures.get(key, 0.0) + wakeups
        return figures


class ConnectionMemory(_IdleClients):
    """What an idle connection takes: both of its ends are of this daemon, each of an application of its own session."""

    def measure(self):
        with self._clients("--connections", str(self._count), "--address", self._daemon.host.address) as process:
            self._wait_for(process, 1)
            before = self._memory(process.pid)
            process.stdin.write("\n")
            process.stdin.flush()
            self._wait_for(process, 2)
            after = self._memory(process.pid)
        if after["qps"] - before["qps"] != 2 * (self._count - 1):
            raise machine.Failed("idle_clients: not all connections are there")
        each = {name: (after[name] - before[name]) / (self._count - 1) / 1024 for name in after}
        # The queues count once, though both processes map them.
        both = each["arena_bytes"] + each["daemon_anon"]
        return {"kib": both, "kib_of_one_end": both / 2, "kib_queues": each["arena_bytes"],
                "kib_daemon": each["daemon_anon"], "kib_applications": each["client_anon"]}

    def _memory(self, client_pid):
        status = self._daemon.status()
        return {"qps": status["qps"], "arena_bytes": status["arena_bytes"],
                "daemon_anon": read_memory(self._daemon.pid)["RssAnon"], "client_anon": read_memory(client_pid)["RssAnon"]}
