"""Nodes of a Ray cluster with token authentication, in network namespaces or on this machine."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import psutil

from support.namespaces import Namespaces
from support.ports import free_ports
from support.processes import Processes, Running

RAY = (sys.executable, str(Path(__file__).with_name("patient_ray.py")))
STORE_BYTES = 100_000_000
START_SECONDS = 240.0
_CONNECTED = "Ray runtime started"
_AGENTS = ("dashboard-agent-grpc-port", "dashboard-agent-listen-port", "metrics-export-port", "runtime-env-agent-port")
"""Options with the ports of a raylet's agents. Without them, the raylet waits for the agents, but only for 15 s."""


class RayNodes:
    """A Ray cluster. Each `start` adds a machine; all machines end with the block.

    `network`: machines in namespaces. Without it, all nodes are on this machine.
    """

    def __init__(self, processes: Processes, network: Namespaces | None = None) -> None:
        self._processes = processes
        self._network = network
        self._port = 6379 if network is not None else free_ports(1)[0]
        self._folder = tempfile.mkdtemp(prefix="ray-")  # short: Unix sockets have names of at most 107 bytes
        self.running: dict[int, Running] = {}
        self.environment = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_ADDRESS": self.address,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_agent_register_timeout_ms": "240000",
        }

    def __enter__(self) -> RayNodes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for index in sorted(self.running, reverse=True):
            self.crash(index)
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def address(self) -> str:
        """Address of the cluster's head."""
        return f"{self.host(0)}:{self._port}"

    def host(self, index: int) -> str:
        """Return the address of a machine."""
        return "127.0.0.1" if self._network is None else self._network.address(index)

    def start(self, index: int, cpus: float, resources: str = "{}", config: Path | None = None, **more: str) -> None:
        """Start a node and wait until it is ready. Node 0 is the head. `config`: configuration of Ray's autoscaler."""
        words = ["start", "--block", "--node-ip-address", self.host(index), "--disable-usage-stats"]
        words += ["--object-store-memory", str(STORE_BYTES), "--num-cpus", f"{cpus:g}", "--resources", resources]
        client, *agents = free_ports(1 + len(_AGENTS))
        if index == 0:
            words += ["--head", "--port", str(self._port), "--include-dashboard=false", "--temp-dir", self._folder]
            words += ["--ray-client-server-port", str(client)]
        else:
            words += ["--address", self.address]
        words += [word for name, port in zip(_AGENTS, agents, strict=True) for word in (f"--{name}", str(port))]
        if config is not None:
            words += ["--autoscaling-config", str(config)]
        self.running[index] = running = self._processes.start(
            *self.command(index, [*RAY, *words]), env={**self.environment, **more}
        )
        running.wait_for_line(_CONNECTED, START_SECONDS)

    def command(self, index: int, words: list[str]) -> list[str]:
        """Return the command line that runs `words` on a machine."""
        return words if self._network is None else self._network.command(index, words)

    def relaax(self, *words: str, timeout: float = 300.0, index: int = 0) -> subprocess.CompletedProcess[str]:
        """Run `relaax WORDS` on a machine until it ends."""
        command = self.command(index, [sys.executable, "-m", "relaax.cli.main", *words])
        return subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, env=self.environment, check=False
        )

    def crash(self, index: int) -> None:
        """Kill all processes of a machine at once."""
        running = self.running.pop(index)
        if self._network is not None:
            self._network.crash(index)
            running.wait(60.0)
            return
        for process in psutil.process_iter():  # includes processes that the autoscaler has started
            with suppress(psutil.Error):
                if any(self._folder in word for word in process.cmdline()):
                    process.kill()
        running.end()
