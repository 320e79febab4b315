"""Starts the processes of a run, keeps them alive, and ends them in order."""

from __future__ import annotations

import logging
import socket
import sys
import threading
import time

from relaax.cli.run.plan import Plan
from relaax.cli.run.process import Process
from relaax.cli.run.run_directory import RunDirectory
from relaax.cli.run.secrets import RunTokens
from relaax.server.address import name_of, reserve

_log = logging.getLogger(__name__)

START_SECONDS = 90.0
RLX_SERVER_SECONDS = 10.0  # it gives its workers 5 s itself (listener.STOP_SECONDS), and ends at once without any
CHECKPOINT_SECONDS = 120.0  # it tries for a minute (checkpointing.LAST_SECONDS), and the last attempt takes its time


class Supervisor:
    """The parameter server (each of its shards), the RLX server, and the environment clients."""

    def __init__(self, plan: Plan, directory: RunDirectory, tokens: RunTokens) -> None:
        self._plan = plan
        self._directory = directory
        logs = directory.logs
        shards = plan.configuration.parameter_server.shards
        names = ["parameter-server", *(f"parameter-server-{shard}" for shard in range(1, shards))]
        self._shards = [Process(name, logs / f"{name}.log", server=True, secrets=tokens.shard) for name in names]
        self.parameter_server = self._shards[0]
        """The one that knows how training goes: the first shard."""
        self.rlx_server = Process("rlx-server", logs / "rlx-server.log", server=True, secrets=tokens.rlx_server)
        self.clients = [
            Process(f"client-{i}", logs / f"client-{i}.log", secrets=tokens.client) for i in range(plan.run.clients)
        ]
        self._addresses: list[str] = []
        """Of each shard, which are this run's from before it starts until it has ended for good, by these sockets:"""
        self._reserved: list[socket.socket] = []
        self.stopping = threading.Event()
        """Set by a signal: nothing that is still starting is waited for."""

    @property
    def parameter_server_address(self) -> str:
        """HOST:PORT of the first shard; a restart keeps it."""
        return self._addresses[0]

    @property
    def shard_addresses(self) -> str:
        """HOST:PORT of every shard, in their order, with commas between: what workers are told."""
        return ",".join(self._addresses)

    def start_servers(self) -> None:
        """Both side by side. Raises StartError."""
        self._reserve()
        self.rlx_server.start(self._rlx_server_command())
        self.start_parameter_server()
        self.rlx_server.wait_ready(START_SECONDS, self.stopping)

    def start_parameter_server(self) -> None:
        """The first shard, which the others ask, then those together. Raises StartError."""
        self._reserve()
        first, *others = self._shards
        first.start(self._shard_command(0))
        first.wait_ready(START_SECONDS, self.stopping)
        for shard, process in enumerate(others, 1):
            process.start(self._shard_command(shard))
        for process in others:
            process.wait_ready(START_SECONDS, self.stopping)

    def _reserve(self) -> None:
        if not self._reserved:
            self._reserved = [reserve("127.0.0.1:0") for _ in self._shards]
            self._addresses = [name_of(reserved) for reserved in self._reserved]

    def _release(self) -> None:
        while self._reserved:
            self._reserved.pop().close()

    def start_clients(self) -> None:
        """Connect the environments."""
        for index, client in enumerate(self.clients):
            client.start(self._plan.client_command(self.rlx_server.address or "", index))

    def watch(self) -> None:
        """Restart what has died. Raises StartError where that does not help."""
        for shard, process in enumerate(self._shards):
            code = process.exit_code()
            if code is not None and (code or shard):  # shard 0 alone says when training is over
                what = "the parameter server" if len(self._shards) == 1 else f"shard {shard} of the parameter server"
                self._restart(process, f"{what} has {'died' if code else 'ended'}", self._shard_command(shard))
        if self.rlx_server.exit_code() is not None:
            self._restart(self.rlx_server, "the RLX server has ended", self._rlx_server_command())
        for index, client in enumerate(self.clients):
            code = client.exit_code()
            if code not in (None, 0):
                client.restart(self._plan.client_command(self.rlx_server.address or "", index))
                _log.warning("%s had died (%s) and was started again", client.name, code)

    def _restart(self, server: Process, what: str, command: list[str]) -> None:
        _log.warning("%s (%s); restarting", what, server.exit_code())
        server.restart(command)
        server.wait_ready(START_SECONDS, self.stopping)

    @property
    def ended_by_itself(self) -> bool:
        """Training has finished and the parameter server drew the conclusion, or every environment has had enough."""
        return self.parameter_server.exit_code() == 0 or all(client.exit_code() == 0 for client in self.clients)

    def stop_training(self) -> None:
        """First the environments, then the workers with their server. The parameter server is still there."""
        for client in self.clients:
            client.terminate()
        _end(self.clients, self._plan.run.stop_timeout, "; relaax-run.stop-timeout gives clients longer")
        self.rlx_server.terminate()
        _end([self.rlx_server], RLX_SERVER_SECONDS)

    def stop_parameter_server(self) -> None:
        """Last: it writes the last checkpoint, which may take its time. Shard 0 lets the others go, who wait for it."""
        for shards in ([self.parameter_server], self._shards[1:]):
            for process in shards:
                process.terminate()
            _end(shards, CHECKPOINT_SECONDS)
        self._release()

    def kill(self) -> None:
        """Now."""
        for process in (*self.clients, self.rlx_server, *self._shards):
            process.kill()
            process.wait(1.0)
        self._release()

    def _shard_command(self, shard: int) -> list[str]:
        command = [
            sys.executable,
            *("-m", "relaax.server.parameter_server.main"),
            *("--config", str(self._directory.configuration)),
            *("--bind", self._addresses[shard]),
        ]
        if len(self._shards) > 1:
            command += ["--shard", f"{shard}/{len(self._shards)}"]
        if shard > 0:  # one page tells how training goes: the first shard's
            command += ["--first-shard", self.parameter_server_address]
            command += ["--set", "relaax-parameter-server.status_bind=null"]
        return command

    def _rlx_server_command(self) -> list[str]:
        return [
            sys.executable,
            *("-m", "relaax.server.rlx_server.main"),
            *("--config", str(self._directory.configuration)),
            *("--bind", self.rlx_server.address or "127.0.0.1:0"),
            *("--parameter-server", self.shard_addresses),
        ]


def _end(processes: list[Process], seconds: float, way_out: str = "") -> None:
    deadline = time.monotonic() + seconds
    for process in processes:
        if not process.wait(deadline - time.monotonic()):
            _log.warning("%s has not ended within %g s and is killed%s", process.name, seconds, way_out)
            process.kill()
            process.wait(1.0)
