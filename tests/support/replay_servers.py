"""Replay servers in this process or as processes, with tables small enough to compute by hand."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from relaax.replay.client.client import ReplayClient
from relaax.replay.interfaces import Insertion
from relaax.replay.spec import Field, TableDeclaration, TableSpec
from relaax.server.command.termination import EndRequests, Reason
from relaax.server.ports.guard import Credentials
from relaax.server.replay_server.server import ReplayServer
from relaax.server.replay_server.service import ReplayService
from support.processes import Processes, Running
from support.service import REPLAY_SERVER

CONFIGURATION = """
relaax-replay-server:
  bind: 127.0.0.1:0
algorithm:
  path: da3c
"""
LARGE = 2**34
SHARE_MEMORY = True
"""Whether clients use shared memory by default."""


def numbered(capacity: int = 1000, **more: Any) -> TableDeclaration:
    """Return a table with one number per item, sampled by priority."""
    names = ("samples_per_insert", "min_size", "error_buffer", "inserts_wait")
    limits = {key: more.pop(key) for key in names if key in more}
    drawn = {"sampler": "prioritized", "alpha": 1.0, **more}
    spec = TableSpec("numbers", {"number": Field("int64")}, capacity, **drawn)
    return TableDeclaration(spec, **limits)


def pictured(capacity: int = 64, **more: Any) -> TableDeclaration:
    """Return a table of stacks of two frames of 2 x 2."""
    fields = {"number": Field("int64"), "stack": Field("uint8", (2, 2, 2), frames=2)}
    min_size = more.pop("min_size", 1)
    return TableDeclaration(TableSpec("pictures", fields, capacity, frame=(2, 2, 1), **more), min_size=min_size)


def numbers(*values: int, priorities: Sequence[float] | None = None) -> Insertion:
    """Return an insertion of items into a numbered table."""
    given = None if priorities is None else np.array(priorities, np.float64)
    return Insertion({"number": np.array(values, np.int64)}, given)


@contextmanager
def serving(
    shards: int = 1,
    memory: int = LARGE,
    credentials: Credentials | None = None,
    status_bind: str | None = None,
    addresses: Sequence[str] = (),
    **more: Any,
) -> Iterator[list[Shard]]:
    """Start shards in this process, and end them at the end of the block."""
    with ExitStack() as closing:
        started = []
        for shard in range(shards):
            service = ReplayService(memory, shard, shards, **more)
            address = addresses[shard] if addresses else "127.0.0.1:0"
            started.append(Shard(service, credentials or Credentials(), status_bind, address))
            closing.callback(started[-1].stop)
        yield started


class Shard:
    """A replay server in this process, with its main loop in a thread."""

    def __init__(self, service: ReplayService, credentials: Credentials, status_bind: str | None, address: str) -> None:
        self.service = service
        self._ends = EndRequests()
        self.server = ReplayServer(service, address, self._ends, credentials, status_bind)
        self.address = self.server.address
        self._thread = threading.Thread(target=self.server.run)
        self.server.start()
        self._thread.start()

    def stop(self) -> None:
        self._ends.put(Reason.TERMINATED)
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._ends.close()


@contextmanager
def client_of(servers: Sequence[Any], declaration: TableDeclaration, **more: Any) -> Iterator[ReplayClient]:
    """Open a client of shards or addresses, with one environment by default, and close it at the end of the block."""
    addresses = [getattr(server, "address", server) for server in servers]
    client = ReplayClient(
        addresses, declaration, **{"actors": (0,), "patience": 60.0, "share_memory": SHARE_MEMORY, **more}
    )
    try:
        yield client
    finally:
        client.close()


def write_replay_configuration(folder: Path, text: str = CONFIGURATION) -> Path:
    """Write the configuration of a replay server."""
    path = folder / "replay.yaml"
    path.write_text(text)
    return path


def command(config: Path, *arguments: str) -> list[str]:
    """Return the command line of a replay server, as a module."""
    return [*REPLAY_SERVER, "--config", str(config), *arguments]


def start_replay_server(processes: Processes, config: Path, *arguments: str) -> tuple[Running, str]:
    """Start the real server, wait until it listens, and return the process and its address."""
    return processes.start_server(*command(config, *arguments))
