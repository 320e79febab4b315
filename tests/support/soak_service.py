"""The service of a soak: shards, an RLX server, CartPole clients, and a wire for each connection between them."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from support.processes import Processes, Running
from support.service import PARAMETER_SERVER, RLX_SERVER
from support.soak_evidence import Evidence
from support.soak_parts import Part, Parts
from support.soak_wire import Wire

ALGORITHM = Path(__file__).with_name("soak_algorithm.py")
CLIENT = Path(__file__).with_name("soak_client.py")
SLOTS = 2048
ENVIRONMENTS = 4
CHECKPOINT_SECONDS = 3


def write_soak_config(folder: Path, shards: int, seed: int, bridge: str) -> Path:
    """Write a configuration of CartPole with the soak's da3c. The command line sets the location of checkpoints."""
    journals = folder / "journals"
    journals.mkdir(exist_ok=True)
    document = {
        "relaax-parameter-server": {
            "bind": "127.0.0.1:0",
            "shards": shards,
            "checkpoint-interval": CHECKPOINT_SECONDS,
            "status-bind": "127.0.0.1:0",
            "metrics-dir": str(folder / "metrics"),
        },
        "relaax-rlx-server": {
            "bind": "127.0.0.1:0",
            "bridge": bridge,
            "heartbeat": 1,
            "idle-timeout": 45,
            "max-workers": 64,
        },
        "algorithm": {
            "path": str(ALGORITHM),
            "journals": str(journals),
            "segments": shards,
            "slots": SLOTS,
            "seed": seed,
            "max_global_step": 10**9,
            "anneal_learning_rate": False,
            "initial_learning_rate": 1e-3,
            "max_staleness": 6,
            "episode_len": 5,
            "normalize_rewards": None,
            "network": {"dense": [64, 64], "activation": "tanh", "separate": True},
            "RMSProp": {"decay": 0.99, "epsilon": 0.1, "gradient_norm_clipping": 100},
        },
    }
    path = folder / "soak.yaml"
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")  # JSON is YAML
    return path


def own_host() -> str:
    """Return a loopback address that no other soak uses, so that the port of a restarted server is free."""
    if sys.platform != "linux":
        return "127.0.0.1"
    pid = os.getpid()
    return f"127.{64 + (pid >> 16) % 64}.{pid >> 8 & 255}.{pid & 255}"


class SoakService:
    """The processes of a soak and the wires between them.

    The parts are `shard-0`, `shard-1`, ..., `rlx-server`, `client-0`, ... The wires are `clients` (from clients to the
    RLX server), `shard-0`, ... (from workers to shards), and `join-1`, ... (from the other shards to shard 0).
    """

    def __init__(
        self, processes: Processes, config: Path, shards: int, clients: int, location: Sequence[str], seed: int
    ) -> None:
        self.parts = Parts()
        self.shards = shards
        self.clients = clients
        self._stack = contextlib.ExitStack()
        names = ["clients", *(f"shard-{i}" for i in range(shards)), *(f"join-{i}" for i in range(1, shards))]
        self.wires = {name: self._stack.enter_context(Wire()) for name in names}
        addresses = dict.fromkeys([*(f"shard-{i}" for i in range(shards)), "rlx-server"], f"{own_host()}:0")
        self.addresses = addresses

        def shard(index: int) -> list[str]:
            name = f"shard-{index}"
            command = [*PARAMETER_SERVER, "--config", str(config), "--bind", addresses[name], *location]
            if shards > 1:
                command += ["--shard", f"{index}/{shards}"]
            if index:
                command += ["--first-shard", self.wires[f"join-{index}"].address]
            return command

        def rlx_server() -> list[str]:
            ways = ",".join(self.wires[f"shard-{i}"].address for i in range(shards))
            bind = addresses["rlx-server"]
            return [*RLX_SERVER, "--config", str(config), "--bind", bind, "--parameter-server", ways]

        def client(index: int) -> list[str]:
            way = self.wires["clients"].address
            seeded = str(1000 * seed + ENVIRONMENTS * index)
            return [sys.executable, str(CLIENT), way, "CartPole-v1", str(ENVIRONMENTS), "--seed", seeded]

        self._servers = [
            *(Part(processes, f"shard-{i}", lambda i=i: shard(i)) for i in range(shards)),  # type: ignore[misc]
            Part(processes, "rlx-server", rlx_server),
        ]
        self._clients = [
            Part(processes, f"client-{i}", lambda i=i: client(i))  # type: ignore[misc]
            for i in range(clients)
        ]

    def start(self) -> None:
        """Start all parts at once. A wire refuses connections until its target is ready, so early parts wait."""
        for part in self._servers:
            part.start()
        for part in self._servers:
            address = self.addresses[part.name] = part.running.wait_for_address()
            for name in self._ways_to(part.name):
                self.wires[name].target = address
            self.parts.add(part)
        for part in self._clients:
            part.start()
            self.parts.add(part)
        self.parts.watch()

    def _ways_to(self, part: str) -> list[str]:
        if part == "rlx-server":
            return ["clients"]
        return [part, *(name for name in self.wires if part == "shard-0" and name.startswith("join-"))]

    @property
    def all_processes(self) -> list[Running]:
        """All processes that were started."""
        return [life for part in (*self._servers, *self._clients) for life in part.lives]

    def shard_pids(self) -> list[int]:
        """Return the process ids of the running shards."""
        return [part.running.pid for part in self._servers[:-1]]

    def evidence(self, leg: str) -> Evidence:
        """Return the evidence of the servers from now on."""
        return Evidence(leg, self._servers[:-1], self._servers[-1])

    def stop(self) -> dict[str, int]:
        """End the parts in order and return their exit codes. Raises AssertionError if one hangs."""
        self.parts.unwatch()
        for wire in self.wires.values():
            wire.heal()
        codes = self.parts.end([part.name for part in self._clients], 30)
        codes |= self.parts.end(["rlx-server"], 30)
        codes |= self.parts.end([f"shard-{i}" for i in range(self.shards)], 90)
        self.parts.expect_no_process(self.all_processes)
        return codes

    def close(self) -> None:
        """Stop the restarts and close the wires."""
        self.parts.unwatch()
        self._stack.close()
