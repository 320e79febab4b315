"""Virtual machines for tests: network namespaces with addresses and a bandwidth, connected by a bridge.

They share processors and memory. A delay requires a kernel with netem; without it, there is no delay.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

NETWORK = "10.97.0"
SERVERS = f"{NETWORK}.254"
"""The address of the servers, outside of all machines."""
BURST = "256kb"


def can_make_namespaces() -> bool:
    """Return whether this process may create namespaces and devices."""
    return os.geteuid() == 0 and _run(["ip", "netns", "list"])


class Namespaces:
    """`count` machines, which exist during the block. Raises RuntimeError if the system does not allow them."""

    def __init__(self, count: int, gigabits: float, delay_ms: float) -> None:
        """`delay_ms`: the round-trip time to the servers."""
        self.names = [f"rlx{os.getpid()}m{index}" for index in range(count)]
        self._bridge = f"rlxb{os.getpid() % 100_000}"
        self._gigabits = gigabits
        self._delay_ms = delay_ms
        self.has_delay = False

    def __enter__(self) -> Namespaces:
        try:
            _run_checked(["ip", "link", "add", self._bridge, "type", "bridge"])
            _run_checked(["ip", "addr", "add", f"{SERVERS}/24", "dev", self._bridge])
            _run_checked(["ip", "link", "set", self._bridge, "up"])
            for index in range(len(self.names)):
                self._join(index)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._end()

    def command(self, index: int, words: Sequence[str]) -> list[str]:
        """Return a command that runs `words` on machine number `index`."""
        return ["ip", "netns", "exec", self.names[index], *words]

    def address(self, index: int) -> str:
        """Return the address of machine number `index`."""
        return f"{NETWORK}.{index + 1}"

    def connect(self, index: int, connected: bool) -> None:
        """Connect the machine to the network, or disconnect it."""
        _run_checked(["ip", "link", "set", self._device(index), "up" if connected else "down"])

    def pids(self, index: int) -> list[int]:
        """Return the process ids of a machine."""
        listed = subprocess.run(["ip", "netns", "pids", self.names[index]], capture_output=True, text=True, check=False)
        return [int(word) for word in listed.stdout.split()]

    def crash(self, index: int) -> None:
        """Kill all processes of a machine at once."""
        for pid in self.pids(index):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def bytes_carried(self) -> int:
        """Return the number of bytes sent from and to all machines, as counted by their devices."""
        total = 0
        for index in range(len(self.names)):
            folder = Path("/sys/class/net") / self._device(index) / "statistics"
            total += sum(int((folder / name).read_text()) for name in ("rx_bytes", "tx_bytes"))
        return total

    def _device(self, index: int) -> str:
        return f"rv{os.getpid() % 100_000}x{index}"

    def _join(self, index: int) -> None:
        name, device = self.names[index], self._device(index)
        inside = ["ip", "netns", "exec", name]
        _run_checked(["ip", "netns", "add", name])
        _run_checked(["ip", "link", "add", device, "type", "veth", "peer", "name", "eth0", "netns", name])
        _run_checked(["ip", "link", "set", device, "master", self._bridge, "up"])
        _run_checked([*inside, "ip", "link", "set", "lo", "up"])
        _run_checked([*inside, "ip", "addr", "add", f"{NETWORK}.{index + 1}/24", "dev", "eth0"])
        _run_checked([*inside, "ip", "link", "set", "eth0", "up"])
        for prefix, at in (([], device), (inside, "eth0")):
            shape = [*prefix, "tc", "qdisc", "add", "dev", at, "root"]
            rate = ["rate", f"{self._gigabits:g}gbit"]
            self.has_delay = self._delay_ms > 0 and _run([*shape, "netem", "delay", f"{self._delay_ms / 2:g}ms", *rate])
            if not self.has_delay:
                _run_checked([*shape, "tbf", *rate, "burst", BURST, "latency", "50ms"])

    def _end(self) -> None:
        for index, name in enumerate(self.names):
            self.crash(index)
            _run(["ip", "link", "del", self._device(index)])
            _run(["ip", "netns", "del", name])
        _run(["ip", "link", "del", self._bridge])


def _run(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def _run_checked(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
