"""What a measurement needs of the machine: programs, daemons, and two network namespaces with a veth pair.

Everything that is started here ends with the `with` block, or the ExitStack, that it was started in.
"""

import contextlib
import os
import signal
import subprocess
import tempfile
import time

import parsers

START_TIMEOUT_S = 15
RUN_TIMEOUT_S = 60


class NotHere(Exception):
    """Something that cannot be measured on this machine, and why. Not a failure."""


class Failed(Exception):
    """Something that should have worked, and did not."""


def _last_line(text):
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


def _name_of(argv):
    return os.path.basename(argv[4] if argv[:3] == ["ip", "netns", "exec"] else argv[0])


def _as_error(argv, code, stdout, stderr):
    return Failed(f"{_name_of(argv)}: exit code {code}: {_last_line(stderr or stdout)}")


def run(argv, env=None, timeout_s=RUN_TIMEOUT_S):
    """What the program prints. Raises Failed if it does not end well or in time."""
    try:
        done = subprocess.run(argv, env=_environment(env), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise Failed(f"{_name_of(argv)}: not done within {timeout_s} s") from None
    except OSError as error:
        raise Failed(f"{argv[0]}: {error.strerror}") from None
    if done.returncode != 0:
        raise _as_error(argv, done.returncode, done.stdout, done.stderr)
    return done.stdout


def _environment(extra):
    return {**os.environ, "LC_ALL": "C.UTF-8", **(extra or {})}


@contextlib.contextmanager
def started(argv, env=None, stdin=subprocess.DEVNULL):
    """A process that runs as long as the block. Its output goes to a file, `process.log`."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(argv, env=_environment(env), stdin=stdin, stdout=log, stderr=log, text=True)
        process.log = log
        try:
            yield process
        finally:
            _end(process)


def _end(process):
    if process.stdin:
        with contextlib.suppress(OSError):
            process.stdin.close()
    for ask, wait_s in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
        if process.poll() is None:
            process.send_signal(ask)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(wait_s)


def log_of(process):
    """Everything that a `started` process has printed so far."""
    # The descriptor is shared with the process: its position is where the process writes on.
    return os.pread(process.log.fileno(), 1 << 20, 0).decode(errors="replace")


def wait_until(process, condition, what, timeout_s=START_TIMEOUT_S):
    """Until condition() is true. Raises Failed if the process ends first, or after timeout_s."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if process.poll() is not None:
            raise _as_error(process.args, process.returncode, log_of(process), "")
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not within {timeout_s} s")
        time.sleep(0.02)


def wait_listening(process, port):
    """Until somebody listens on the TCP port, in the network namespace of the process."""
    def listens():
        for name in ("tcp", "tcp6"):
            with contextlib.suppress(OSError):
                with open(f"/proc/{process.pid}/net/{name}", encoding="ascii") as table:
                    if port in parsers.parse_listening_ports(table.read()):
                        return True
        return False
    wait_until(process, listens, f"{_name_of(process.args)} listening on port {port}")


def _busy_and_total():
    """Ticks that all cores together have worked, and that have passed."""
    with open("/proc/stat", encoding="ascii") as stat:
        ticks = [int(word) for word in stat.readline().split()[1:]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def wait_quiet(patience_s, share=0.06, look_s=0.3):
    """Waits until the cores have next to nothing to do; False if that takes longer than patience_s. 0: does not look."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        busy, total = _busy_and_total()
        time.sleep(look_s)
        busy_then, total_then = _busy_and_total()
        if busy_then - busy <= share * (total_then - total):
            return True
    return patience_s == 0


class Host:
    """Where programs run: this machine, or one of its network namespaces. `address` is what others reach it at."""

    def __init__(self, address, namespace=None, netdev=None):
        self.address = address
        self.namespace = namespace
        self.netdev = netdev

    def command(self, *argv):
        # `ip netns exec` becomes the program: its process id is the program's.
        return (["ip", "netns", "exec", self.namespace] if self.namespace else []) + [str(word) for word in argv]


@contextlib.contextmanager
def two_hosts(mtu, tag=""):
    """Two namespaces with a veth pair of this MTU: yields two Hosts. Needs root. Those that exist at the same time differ in
    their tags, and do not see each other."""
    if os.geteuid() != 0:
        raise NotHere("network namespaces take root")
    hosts = [Host(f"192.0.2.{i + 1}", f"rdmad-compare-{os.getpid()}{tag}-{i}", f"veth{i}") for i in (0, 1)]
    with contextlib.ExitStack() as stack:
        try:
            for host in hosts:
                run(["ip", "netns", "add", host.namespace])
                stack.callback(subprocess.run, ["ip", "netns", "delete", host.namespace], check=False)
            run(["ip", "link", "add", "veth0", "mtu", str(mtu), "netns", hosts[0].namespace, "type", "veth",
                 "peer", "name", "veth1", "mtu", str(mtu), "netns", hosts[1].namespace])
            for host in hosts:
                inside = ["ip", "-n", host.namespace]
                run([*inside, "address", "add", f"{host.address}/24", "dev", host.netdev])
                run([*inside, "link", "set", "lo", "up"])
                run([*inside, "link", "set", host.netdev, "up"])
        except Failed as error:
            raise NotHere(f"no network namespaces: {error}") from None
        yield hosts


def lose_packets(programs, hosts, share):
    """From now on this share of the packets between two_hosts() is lost, each way, whoever sends them. Packets cross the pair
    singly then: a batch of UDP_SEGMENT, or of TCP, would be lost as one. (tc-netem, beside being a module that few kernels
    have, works on batches.)"""
    ethtool, nft = programs.tool("ethtool"), programs.tool("nft")
    one_in = round(1 / share)
    for host in hosts:
        try:
            run(host.command(ethtool, "-K", host.netdev, "tso", "off", "gso", "off", "tx-udp-segmentation", "off"))
            run(host.command(nft, "add table inet loss; "
                             "add chain inet loss in { type filter hook prerouting priority -300; }; "
                             f"add rule inet loss in iifname {host.netdev} numgen random mod {one_in} 0 counter drop; "
                             f"add rule inet loss in iifname {host.netdev} counter"))
        except Failed as error:
            raise NotHere(f"this kernel cannot lose packets by chance: {error}") from None


class Daemon:
    """A running rdmad. Made by `daemon`."""

    def __init__(self, programs, host, run_dir, process):
        self.host = host
        self.run_dir = run_dir
        self.pid = process.pid
        self._rdmactl = programs.of("client/rdmactl/rdmactl")

    def rdmactl(self, *words):
        """The command line of rdmactl for this daemon."""
        # On a busy machine a daemon that takes leave of thousands of connections answers late.
        return self.host.command(self._rdmactl, "--wait", "30", "--run-dir", self.run_dir, *words)

    def status(self):
        return parsers.parse_status_json(run(self.rdmactl("--json", "status")))


@contextlib.contextmanager
def daemon(programs, host):
    """Starts rdmad on the host's address and waits until it answers."""
    program = programs.of("daemon/rdmad")
    with tempfile.TemporaryDirectory(prefix="rdmad-compare-") as folder:
        config = os.path.join(folder, "rdmad.toml")
        with open(config, "w", encoding="utf-8") as out:
            out.write(f'[soft]\naddresses = ["{host.address}"]\n\n[metrics]\naddress = "off"\n')
        run_dir = os.path.join(folder, "run")
        with started(host.command(program, "--config", config, "--run-dir", run_dir)) as process:
            wait_until(process, lambda: os.path.exists(os.path.join(run_dir, "attach.sock")), f"rdmad on {host.address}")
            running = Daemon(programs, host, run_dir, process)
            running.status()  # raises if it does not answer
            yield running


class Programs:
    """Where the programs are: ours under `bin_dir`, others by name."""

    def __init__(self, bin_dir, tools):
        self._bin_dir = bin_dir
        self._tools = tools

    def of(self, path):
        """One that was built here. Raises Failed if it is missing."""
        full = os.path.join(self._bin_dir, path)
        if not os.access(full, os.X_OK):
            raise Failed(f"{os.path.basename(path)} was not built")
        return full

    def tool(self, name):
        """One that others wrote. Raises NotHere if it is missing."""
        path = self._tools.get(name, "")
        if not path or not os.access(path, os.X_OK):
            raise NotHere(f"{name} is not installed and could not be fetched")
        return path
